"""Where snapshots lie: the visible ones in the cold folder, and nothing else for ever.

What nobody needs any more waits until no copy of the catalog names it, then it goes. The server
here does at once what it else does after a minute or an hour.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cold.impatient import MODULE as IMPATIENT
from tests.conformance.api import Api, Call, token
from tests.conformance.conftest import speak_to
from tests.conformance.multipart import bootstrap
from tests.support.server import ServerProcess

SWIFT = ("--catalog-upload-interval", "50ms", "--log-level", "warning")


@contextlib.contextmanager
def impatient_server(data_dir: Path, *flags: str) -> Iterator[ServerProcess]:
    server = ServerProcess(data_dir, *SWIFT, *flags, module=IMPATIENT)
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def disk_api(tmp_path: Path) -> Iterator[Api]:
    with impatient_server(tmp_path / "data") as server:
        yield from speak_to(server)


def blobs(api: Api) -> list[bytes]:
    assert api.server.data_dir is not None
    folder = api.server.data_dir / "cold" / "snapshots"
    found = list[bytes]()
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(path.read_bytes())
    return sorted(found)


def wait_for_blobs(api: Api, *expected: bytes) -> None:
    """Blobs nobody needs are cleared away once two copies of the catalog do without them."""
    deadline = time.monotonic() + 20
    while blobs(api) != sorted(expected):
        assert time.monotonic() < deadline, blobs(api)
        time.sleep(0.01)


def test_a_superseded_blob_is_cleared_away(disk_api: Api) -> None:
    path = disk_api.bucketed(b"one", b"two")
    assert disk_api.publish(path, token(1, 3), b"older").status == 204
    assert blobs(disk_api) == [b"older"]
    assert disk_api.publish(path, token(2, 6), b"newer").status == 204
    wait_for_blobs(disk_api, b"newer")


def test_what_is_refused_or_known_already_leaves_no_blob(disk_api: Api) -> None:
    path = disk_api.bucketed(b"one", b"two")
    assert disk_api.publish(path, token(1, 3), b"state").status == 204
    assert disk_api.publish(path, token(1, 3), b"state").status == 204
    assert disk_api.publish(path, token(1, 3), b"other").status == 409
    assert disk_api.publish(path, token(1, 2), b"gone").status == 410
    assert disk_api.publish(path, token(9, 9), b"beyond").status == 409
    wait_for_blobs(disk_api, b"state")


def test_of_publications_at_once_only_the_winner_stays(disk_api: Api) -> None:
    path = disk_api.bucketed(*[b"%d" % n for n in range(8)])
    calls = [Call("PUT", f"{path}/snapshot/{token(n, n)}", b"at %d" % n) for n in range(1, 9)]
    calls += [Call("PUT", f"{path}/snapshot/{token(8, 8)}", b"rival %d" % n) for n in range(4)]
    disk_api.together(calls)
    wait_for_blobs(disk_api, bootstrap(disk_api, path).snapshot.body)


def test_a_deleted_or_expired_stream_takes_its_blob_along(disk_api: Api) -> None:
    path = disk_api.bucketed(b"one")
    brief = disk_api.bucketed(b"one", headers={"Stream-TTL": "1"})
    assert disk_api.publish(path, token(1, 3), b"deleted").status == 204
    assert disk_api.publish(brief, token(1, 3), b"expired").status == 204
    assert disk_api.delete(path).status == 204
    wait_for_blobs(disk_api)


def test_a_blob_that_forks_share_stays_until_the_last_of_them_is_gone(disk_api: Api) -> None:
    source = disk_api.bucketed(b"one", b"two")
    assert disk_api.publish(source, token(1, 3), b"shared").status == 204
    forks = [disk_api.fork(source, path=f"{disk_api.bucket()}/fork")[0] for _ in range(2)]
    assert disk_api.publish(source, token(2, 6), b"newer").status == 204
    assert disk_api.delete(source).status == 204
    wait_for_blobs(disk_api, b"shared")
    assert disk_api.delete(forks[0]).status == 204
    assert bootstrap(disk_api, forks[1]).snapshot.body == b"shared"
    assert blobs(disk_api) == [b"shared"]
    assert disk_api.delete(forks[1]).status == 204
    wait_for_blobs(disk_api)


@pytest.mark.parametrize("how", ["SIGTERM", "kill -9"])
def test_orphans_are_cleared_after_a_restart_and_what_is_visible_is_kept(
    tmp_path: Path, how: str
) -> None:
    data_dir = tmp_path / "data"
    with impatient_server(data_dir) as server, contextlib.closing(Api(server)) as api:
        path = api.bucketed(b"one")
        assert api.publish(path, token(1, 3), b"visible").status == 204
        fork, _ = api.fork(path, path=f"{api.bucket()}/fork")
        assert api.delete(path).status == 204
        if how == "SIGTERM":
            assert server.stop() == 0
        else:
            server.kill()
    (data_dir / "cold" / "snapshots" / "7-7-0000000000000000").write_bytes(b"orphan")
    with impatient_server(data_dir) as second, contextlib.closing(Api(second)) as api:
        wait_for_blobs(api, b"visible")
        assert bootstrap(api, fork).snapshot.body == b"visible"


def test_checkpoints_and_small_logs_keep_snapshots_and_buckets(tmp_path: Path) -> None:
    flags = ("--wal-segment-bytes", "16384", "--checkpoint-wal-bytes", "60000")
    with (
        impatient_server(tmp_path / "data", *flags) as server,
        contextlib.closing(Api(server)) as api,
    ):
        empty, path = api.bucket(), api.bucketed()
        for number in range(60):
            tail = api.append(path, b"%04d" % number + b"x" * 3000).next_offset
            if number % 7 == 6:
                assert api.publish(path, tail, b"state %d" % number).status == 204
        before = bootstrap(api, path)
        server.kill()
    for _ in range(2):
        with (
            impatient_server(tmp_path / "data", *flags) as again,
            contextlib.closing(Api(again)) as api,
        ):
            after = bootstrap(api, path)
            assert (after.snapshot, after.updates) == (before.snapshot, before.updates)
            assert after.snapshot_offset == before.snapshot_offset
            assert api.get(empty).json()["streams"] == 0
            wait_for_blobs(api, b"state 55")
            again.kill()
