"""Content that was given up is gone from every object within the time that is promised."""

from __future__ import annotations

import random
import re
from contextlib import closing
from pathlib import Path

from tests.cold.backup_world import BUCKET, QUIET, TEXT, Writer, run_command, serving
from tests.cold.impatient import MODULE
from tests.support.keys import bearer, make_key_offline
from tests.support.server import ServerProcess
from tests.support.waiting import wait_until

FLAGS = (
    *QUIET,
    *("--shards", "1", "--checkpoint-wal-bytes", "2KiB", "--catalog-upload-interval", "50ms"),
    *("--flush-age", "200ms", "--erase-within", "6s"),
)
WAIT_SECONDS = 90.0


class Marks:
    """Bytes of which no compression can hide all, by name."""

    def __init__(self, seed: int) -> None:
        print(f"seed {seed}")
        self._random = random.Random(seed)
        self._marks: dict[str, bytes] = {}

    def make(self, name: str) -> bytes:
        self._marks[name] = self._random.randbytes(2000)
        return self._marks[name]

    def found_in(self, cold: Path) -> set[str]:
        found = set()
        for path in [*cold.rglob("*")]:
            try:
                stored = path.read_bytes() if path.is_file() else b""
            except FileNotFoundError:  # deleted a moment ago
                continue
            found |= {name for name, mark in self._marks.items() if _is_some_in(stored, mark)}
        return found


def _is_some_in(stored: bytes, mark: bytes) -> bool:
    return any(mark[place : place + 50] in stored for place in range(0, len(mark), 50))


def test_the_bytes_of_what_was_given_up_are_gone_from_every_object(tmp_path: Path) -> None:
    writer, cold = Writer(), tmp_path / "data" / "cold"
    marks = Marks(random.randrange(2**32))
    with serving(writer, tmp_path / "data", *FLAGS, module=MODULE):
        client = writer.client
        writer.make_bucket()
        for name in ("kept", "deleted", "trimmed"):
            writer.create(name, marks.make(f"{name} 0"))
        brief = {"Stream-TTL": "4"}
        path = f"/{BUCKET}/expired"
        reply = client.put(path, marks.make("expired 0"), content_type=TEXT, headers=brief)
        assert reply.status == 201
        middle = client.head(f"/{BUCKET}/trimmed").next_offset
        for name in ("kept", "deleted", "trimmed"):
            writer.append(name, marks.make(f"{name} 1"))
        everything = {f"{name} {k}" for name in ("kept", "deleted", "trimmed") for k in (0, 1)}
        wait_until(lambda: marks.found_in(cold) >= everything | {"expired 0"}, "all of it is cold")
        assert len([*(cold / "segments").rglob("*.parquet")]) < 7, "streams share segments"

        writer.delete("deleted")
        snapshot = marks.make("snapshot 0")
        path = f"/{BUCKET}/trimmed/snapshot"
        assert client.put(f"{path}/{middle}", snapshot, content_type=TEXT).status == 204
        expected = writer.streams["trimmed"]
        expected.start, expected.snapshot = 2000, snapshot
        wait_until(
            lambda: marks.found_in(cold) == {"kept 0", "kept 1", "trimmed 1", "snapshot 0"},
            "what was given up is gone",
            seconds=WAIT_SECONDS,
        )
        writer.check_all()
        metrics = client.get("/metrics").body.decode()
        assert re.search(r"^millstream_dead_bytes_overdue 0\.0$", metrics, re.MULTILINE)
        tail = client.head(f"/{BUCKET}/trimmed").next_offset
        assert client.put(f"{path}/{tail}", b"short", content_type=TEXT).status == 204
        expected.start, expected.snapshot = len(expected.data), b"short"
        wait_until(
            lambda: marks.found_in(cold) == {"kept 0", "kept 1"},
            "the snapshot before it is gone too",
            seconds=WAIT_SECONDS,
        )
        writer.check_all()
    assert run_command("verify", "--data-dir", str(tmp_path / "data"))[0] == 0


def test_the_eraser_of_the_server_gets_in_where_there_are_keys(tmp_path: Path) -> None:
    data, marks = tmp_path / "data", Marks(random.randrange(2**32))
    headers = bearer(make_key_offline(data, "admin", shards=1))
    server = ServerProcess(data, *FLAGS, module=MODULE)
    try:
        with closing(server.client()) as client:
            for name in ("kept", "deleted"):
                path, content = f"/v1/stream/{BUCKET}/{name}", marks.make(name)
                assert client.put(path, content, headers=headers).status == 201
            wait_until(lambda: marks.found_in(data / "cold") == {"kept", "deleted"}, "all is cold")
            assert client.delete(f"/v1/stream/{BUCKET}/deleted").status == 401
            assert client.delete(f"/v1/stream/{BUCKET}/deleted", headers=headers).status == 204
            wait_until(
                lambda: marks.found_in(data / "cold") == {"kept"}, "it is gone", WAIT_SECONDS
            )
    finally:
        server.kill()
