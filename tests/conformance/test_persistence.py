"""A restart, polite or not, changes nothing that anybody could see.

One folder is filled, the server ends, and a second server on the same folder is asked the same
questions. Small log files make sure that segments roll and checkpoints are written on the way.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conformance.api import BINARY, JSON, TEXT, Api, fresh_path, producer
from tests.conformance.conftest import speak_to
from tests.support.http import Reply
from tests.support.server import ServerProcess, running_server

SMALL_LOG = ("--wal-segment-bytes", "65536", "--checkpoint-wal-bytes", "262144")
UNSTABLE = {"date", "stream-cursor"}


@dataclass
class Story:
    """What was stored, and what the first server said about it."""

    paths: dict[str, str] = field(default_factory=dict)
    heads: dict[str, Reply] = field(default_factory=dict)
    reads: dict[str, Reply] = field(default_factory=dict)


@dataclass
class Restarted:
    """The server after its restart, and the story of the one before."""

    story: Story
    server: ServerProcess


def tell(api: Api) -> Story:
    story = Story()
    for name in ("plain", "json", "closed", "writers", "empty", "bulk"):
        story.paths[name] = fresh_path(name)
    paths = story.paths
    api.stream(*[bytes([n]) * n for n in range(1, 40)], content_type=BINARY, path=paths["plain"])
    api.stream(b'[1.0,{"a":1,"a":2}]', b'"\\u0041"', content_type=JSON, path=paths["json"])
    api.stream(b"one", path=paths["closed"])
    api.append(paths["closed"], b"end", headers={**producer("c", 2, 0), "Stream-Closed": "true"})
    api.stream(path=paths["writers"])
    for seq in range(3):
        headers = {**producer("p", 7, seq), "Stream-Seq": f"s{seq}"}
        assert api.append(paths["writers"], f"<{seq}>", headers=headers).status == 200
    api.stream(path=paths["empty"], headers={"Stream-Expires-At": "2040-01-01T00:00:00Z"})
    api.stream(*[b"%06d" % n + b"x" * 4000 for n in range(150)], path=paths["bulk"])
    tell_of_forks(api, story)
    tell_of_deletions(api, story)
    for name, path in paths.items():
        story.heads[name], story.reads[name] = api.head(path), api.get(path)
    return story


def tell_of_forks(api: Api, story: Story) -> None:
    source = story.paths["soft-deleted"] = api.stream(b"one", b"two")
    story.paths["fork"], created = api.fork(
        source, offset="0000000000000001_0000000000000003", sub_offset=2, body=b"!"
    )
    assert created.status == 201
    story.paths["fork-of-fork"], _ = api.fork(story.paths["fork"], headers={"Stream-TTL": "3600"})
    assert api.append(story.paths["fork"], b"own").status == 204
    assert api.delete(source).status == 204


def tell_of_deletions(api: Api, story: Story) -> None:
    story.paths["deleted"] = api.stream(b"gone")
    assert api.delete(story.paths["deleted"]).status == 204
    story.paths["recreated"] = api.stream(b"old", b"older")
    assert api.delete(story.paths["recreated"]).status == 204
    api.stream(b"new", path=story.paths["recreated"])
    story.paths["expired"] = api.stream(b"x", headers={"Stream-TTL": "1"})


@pytest.fixture(
    scope="module",
    params=["SIGTERM", "kill -9", "kill -9, small log", "SIGTERM, small log", "two crashes"],
)
def restarted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Restarted]:
    data_dir = tmp_path_factory.mktemp("data")
    flags = SMALL_LOG if "small log" in request.param or "two" in request.param else ()
    server = ServerProcess(data_dir, *flags)
    api = Api(server)
    try:
        story = tell(api)
    finally:
        api.close()
        end(server, request.param)
    if request.param == "two crashes":
        end(ServerProcess(data_dir, *flags), request.param)
    second = ServerProcess(data_dir, *flags, port=server.port)
    yield Restarted(story, second)
    second.kill()


def end(server: ServerProcess, how: str) -> None:
    if how.startswith("SIGTERM"):
        assert server.stop() == 0
    else:
        server.kill()


@pytest.fixture
def after(restarted: Restarted) -> Iterator[Api]:
    yield from speak_to(restarted.server)


def stable(reply: Reply) -> Reply:
    headers = {name: value for name, value in reply.headers.items() if name not in UNSTABLE}
    return Reply(reply.status, headers, reply.body)


def test_every_stream_reads_as_before(restarted: Restarted, after: Api) -> None:
    for name, path in restarted.story.paths.items():
        if name != "expired":
            assert stable(after.get(path)) == stable(restarted.story.reads[name]), name


def test_every_head_answers_as_before(restarted: Restarted, after: Api) -> None:
    for name, path in restarted.story.paths.items():
        if name != "expired":
            assert stable(after.head(path)) == stable(restarted.story.heads[name]), name


def test_tags_are_still_good(restarted: Restarted, after: Api) -> None:
    for name in ("plain", "json", "closed", "fork", "recreated"):
        tag = restarted.story.reads[name].headers["etag"]
        reply = after.get(restarted.story.paths[name], headers={"If-None-Match": tag})
        assert reply.status == 304, name


def test_message_boundaries_are_where_they_were(restarted: Restarted, after: Api) -> None:
    path = restarted.story.paths["plain"]
    offset, sizes = "-1", list[int]()
    while offset != restarted.story.heads["plain"].next_offset:
        page = after.get(f"{path}?offset={offset}&max_bytes=1")
        sizes.append(len(page.body))
        offset = page.next_offset
    assert sizes == list(range(1, 40))
    assert after.get(f"{path}?offset=0000000000000002_0000000000000002").status == 400


def test_producers_are_remembered(restarted: Restarted, after: Api) -> None:
    path = restarted.story.paths["writers"]
    before = after.get(path).body
    duplicate = after.append(path, b"<2>", headers=producer("p", 7, 2))
    assert (duplicate.status, duplicate.headers["producer-seq"]) == (204, "2")
    zombie = after.append(path, b"x", headers=producer("p", 6, 0))
    assert (zombie.status, zombie.headers["producer-epoch"]) == (403, "7")
    gap = after.append(path, b"x", headers=producer("p", 7, 9))
    assert (gap.status, gap.headers["producer-expected-seq"]) == (409, "3")
    assert after.get(path).body == before


def test_stream_seq_is_remembered(restarted: Restarted, after: Api) -> None:
    path = restarted.story.paths["writers"]
    assert after.append(path, b"x", headers={"Stream-Seq": "s2"}).status == 409
    assert after.append(path, b"x", headers={"Stream-Seq": "s1"}).status == 409


def test_closed_streams_stay_closed_and_know_who_closed_them(
    restarted: Restarted, after: Api
) -> None:
    path = restarted.story.paths["closed"]
    refused = after.append(path, b"x")
    assert (refused.status, refused.headers["stream-closed"]) == (409, "true")
    assert refused.next_offset == restarted.story.heads["closed"].next_offset
    closing = {**producer("c", 2, 0), "Stream-Closed": "true"}
    assert after.append(path, b"end", headers=closing).status == 204


def test_soft_deleted_streams_stay_gone_and_forks_keep_reading(
    restarted: Restarted, after: Api
) -> None:
    paths = restarted.story.paths
    assert after.get(paths["soft-deleted"]).status == 410
    assert after.put(paths["soft-deleted"], content_type=TEXT).status == 409
    assert after.get(paths["fork"]).body == b"onetw!own"
    assert after.get(paths["fork-of-fork"]).body == b"onetw!"
    again = {
        "Stream-Forked-From": paths["soft-deleted"],
        "Stream-Fork-Offset": "0000000000000001_0000000000000003",
        "Stream-Fork-Sub-Offset": "2",
    }
    assert after.put(paths["fork"], headers=again).status == 200


def test_deleted_streams_stay_deleted(restarted: Restarted, after: Api) -> None:
    assert after.get(restarted.story.paths["deleted"]).status == 404
    assert after.get(restarted.story.paths["recreated"]).body == b"new"


def test_settings_are_remembered_by_a_repeated_create(restarted: Restarted, after: Api) -> None:
    paths = restarted.story.paths
    expiry = {"Stream-Expires-At": "2040-01-01T00:00:00Z"}
    assert after.put(paths["empty"], content_type=TEXT, headers=expiry).status == 200
    assert after.put(paths["empty"], content_type=TEXT).status == 409
    assert after.put(paths["json"], content_type=TEXT).status == 409
    assert after.put(paths["json"], content_type=JSON).status == 200


def test_time_passes_while_the_server_is_down(restarted: Restarted, after: Api) -> None:
    deadline = time.monotonic() + 3
    while after.head(restarted.story.paths["expired"]).status != 404:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_writing_goes_on_where_it_stopped(restarted: Restarted, after: Api) -> None:
    path, before = restarted.story.paths["bulk"], restarted.story.heads["bulk"].next_offset
    current = after.tail(path)
    assert current >= before
    appended = after.append(path, b"more")
    assert (appended.status, appended.next_offset > current) == (204, True)
    assert after.get(f"{path}?offset={current}").body == b"more"


@pytest.mark.parametrize("how", ["SIGTERM", "kill -9"])
def test_a_renewed_window_is_still_renewed_after_a_restart(tmp_path: Path, how: str) -> None:
    for ttl_seconds in (3, 10, 30):
        head, is_in_time = head_after_restart(tmp_path / f"data{ttl_seconds}", how, ttl_seconds)
        if is_in_time:  # or the restart took longer than the renewed window
            break
    assert (head.status, head.headers["stream-ttl"]) == (200, str(ttl_seconds))


def head_after_restart(folder: Path, how: str, ttl_seconds: int) -> tuple[Reply, bool]:
    """When the first window would be over, and whether the renewed one was not."""
    server = ServerProcess(folder)
    with contextlib.closing(Api(server)) as api:
        path = api.stream(b"x", headers={"Stream-TTL": str(ttl_seconds)})
        created = time.monotonic()
        time.sleep(ttl_seconds * 0.6)
        renewed = time.monotonic()
        assert api.get(path).status == 200
        # One log serves all streams: what was decided before this append is as durable as it.
        assert api.append(api.stream(), b"x").status == 204
    end(server, how)
    with running_server(folder) as second, contextlib.closing(Api(second)) as api:
        time.sleep(max(0.0, created + ttl_seconds + 0.3 - time.monotonic()))
        head = api.head(path)
        return head, time.monotonic() < renewed + ttl_seconds


def test_a_clean_restart_needs_no_open_streams_and_no_data(tmp_path: Path) -> None:
    for _ in range(3):
        server = ServerProcess(tmp_path / "data")
        assert server.stop() == 0
