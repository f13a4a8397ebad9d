"""One disk after the other is full: the log's, the checkpoints', the catalog's, the cold store's.

Whatever the server cannot do it says, clearly; it stays up, goes on when there is room again, and
never loses what it acknowledged, not even by a kill while the disk is full.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cold.traffic import code, read_all
from tests.crash.rounds import DrainedServer
from tests.support.http import Client
from tests.support.server import ServerProcess, is_listening
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.waiting import wait_until

DISK_BYTES = 3 << 20
HOT_BYTES = 512 * 1024
FLAGS = (
    *("--shards", "2", "--wal-segment-bytes", "64KiB", "--checkpoint-wal-bytes", "100KiB"),
    *("--hot-bytes", str(HOT_BYTES), "--flush-bytes", "64KiB", "--cold-cache-bytes", "64KiB"),
    *("--resident-streams", "2"),
)
STREAMS = 4
SIZE = 5000


def start_listening(data_dir: Path, *flags: str) -> DrainedServer:
    """Answers; while the disk is full it does not say that it is ready."""
    server = DrainedServer(data_dir, *flags, wait=False)

    def answers() -> bool:
        assert server.process.poll() is None, server.finish_output()
        with contextlib.closing(server.client()) as client:
            try:
                is_alive = client.get("/healthz").status == 200
                return is_alive and is_listening(server.process.pid, server.port)
            except (OSError, http.client.HTTPException):
                return False

    wait_until(answers)
    return server


class Story:
    """A few streams of numbered messages, and a server that is ended and brought back."""

    def __init__(self, data_dir: Path, *flags: str) -> None:
        self.data_dir, self.flags = data_dir, (*FLAGS, *flags)
        self.counts = [0] * STREAMS
        self.refusals = set[str]()
        self.outputs = b""
        self.start()
        for stream in range(STREAMS):
            reply = self.client.put(self.path(stream), content_type="text/plain")
            assert reply.status == 201, reply

    def start(self) -> None:
        self.server = start_listening(self.data_dir, *self.flags)
        self.client: Client = self.server.client()

    @staticmethod
    def path(stream: int) -> str:
        return f"/v1/stream/stream-{stream}"

    @staticmethod
    def message(stream: int, number: int) -> bytes:
        return b"<%d %d>".ljust(SIZE, b".") % (stream, number)

    def append(self, stream: int) -> bool:
        body = self.message(stream, self.counts[stream])
        reply = self.client.post(self.path(stream), body, content_type="text/plain")
        if reply.status == 204:
            self.counts[stream] += 1
            return True
        assert reply.status == 503, reply
        assert reply.headers["retry-after"]
        self.refusals.add(code(reply))
        return False

    def append_each(self, times: int) -> int:
        """How many were taken."""
        return sum(self.append(stream) for _ in range(times) for stream in range(STREAMS))

    def append_until_taken(self) -> None:
        """Every stream takes something again."""
        for stream in range(STREAMS):
            wait_until(lambda stream=stream: self.append(stream))  # type: ignore[misc]

    def check(self) -> None:
        for stream in range(STREAMS):
            expected = b"".join(self.message(stream, n) for n in range(self.counts[stream]))
            assert read_all(self.client, self.path(stream)) == expected, stream

    def end(self, how: Callable[[ServerProcess], object]) -> None:
        self.client.close()
        how(self.server)
        self.outputs += self.server.output

    def restart(self, how: Callable[[ServerProcess], object]) -> None:
        self.end(how)
        self.start()

    def close(self) -> None:
        self.end(ServerProcess.kill)
        assert b"Traceback" not in self.outputs, self.outputs[-3000:].decode()


def stop(server: ServerProcess) -> None:
    assert server.stop(15) == 0


ENDINGS = pytest.mark.parametrize("ending", [stop, ServerProcess.kill], ids=["SIGTERM", "kill -9"])


@contextlib.contextmanager
def story_on_small(
    tmp_path: Path, folder: str, *flags: str, size_bytes: int = DISK_BYTES
) -> Iterator[tuple[Story, SmallDisk]]:
    """With this folder of the data folder on a disk of its own; "" for the whole data folder."""
    data_dir = tmp_path / "data"
    first = ServerProcess(data_dir, *FLAGS, *flags)
    assert first.stop() == 0
    with small_disk(data_dir / folder, size_bytes) as disk:
        story = Story(data_dir, *flags)
        try:
            yield story, disk
        finally:
            story.close()


@ENDINGS
def test_without_room_for_the_log_appends_are_refused_until_there_is(
    tmp_path: Path, ending: Callable[[ServerProcess], object]
) -> None:
    with story_on_small(tmp_path, "wal") as (story, disk):
        assert story.append_each(5) == 5 * STREAMS
        disk.fill()
        story.append_each(30)
        while not story.refusals:  # a checkpoint let some of the log go: that room is filled too
            disk.fill()
            story.append_each(5)
        assert story.refusals == {"storage_full"}
        assert readiness(story.client) == (503, ["disk_full"])
        story.check()
        disk.free()
        story.append_until_taken()
        assert readiness(story.client) == (200, [])
        disk.fill()
        story.append_each(30)
        story.restart(ending)  # still full
        story.check()
        assert story.client.put("/v1/stream/new", content_type="text/plain").status in (201, 503)
        disk.free()
        story.append_until_taken()
        story.restart(ServerProcess.kill)
        story.check()


@ENDINGS
def test_without_room_for_checkpoints_the_log_is_kept(
    tmp_path: Path, ending: Callable[[ServerProcess], object]
) -> None:
    with story_on_small(tmp_path, "checkpoints") as (story, disk):
        assert story.append_each(5) == 5 * STREAMS
        disk.fill()
        assert story.append_each(40) == 40 * STREAMS
        wait_until(lambda: b"checkpoint failed" in story.server.output)
        story.check()
        story.restart(ending)  # still full
        story.check()
        assert story.append_each(20) == 20 * STREAMS
        disk.free()
        wait_for_short_log(story)
        story.check()
        story.restart(ServerProcess.kill)
        story.check()


@ENDINGS
def test_without_room_for_the_catalog_the_log_is_kept(
    tmp_path: Path, ending: Callable[[ServerProcess], object]
) -> None:
    with story_on_small(tmp_path, "catalog") as (story, disk):
        assert story.append_each(5) == 5 * STREAMS
        disk.fill()
        assert story.append_each(40) == 40 * STREAMS
        wait_until(lambda: b"checkpoint failed" in story.server.output)
        story.check()
        story.end(ending)
        refused = DrainedServer(story.data_dir, *story.flags, wait=False)
        assert refused.process.wait(20) == 2  # it cannot bring the catalog up to date
        output = refused.finish_output()
        assert "cannot bring the catalog up to date" in output, output
        assert "Traceback" not in output, output
        disk.free()
        story.start()
        story.check()
        story.append_until_taken()
        wait_for_short_log(story)
        story.restart(ServerProcess.kill)
        story.check()


@ENDINGS
def test_without_room_in_the_cold_folder_appends_go_on_until_the_budget_is_used(
    tmp_path: Path, ending: Callable[[ServerProcess], object]
) -> None:
    cold = tmp_path / "cold"
    with small_disk(cold, DISK_BYTES) as disk:
        story = Story(tmp_path / "data", "--cold", f"fs:{cold}")
        try:
            assert story.append_each(10) == 10 * STREAMS
            disk.fill()
            taken = story.append_each(60) * SIZE
            assert taken >= HOT_BYTES // 2
            assert story.refusals == {"hot_budget_used"}
            assert readiness(story.client) == (503, ["disk_full"])
            story.check()
            story.restart(ending)  # still full
            story.check()
            disk.free()
            story.append_until_taken()
            story.check()
            story.restart(ServerProcess.kill)
            story.check()
            assert not list((cold / ".new").iterdir()), "half-written objects are left behind"
        finally:
            story.close()


def test_without_room_in_the_cold_folder_a_snapshot_is_refused(tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    with small_disk(cold, DISK_BYTES) as disk:
        story = Story(tmp_path / "data", "--cold", f"fs:{cold}")
        try:
            assert story.client.put("/bucket").status == 201
            assert story.client.put("/bucket/s", content_type="text/plain").status == 201
            tail = story.client.post("/bucket/s", b"one", content_type="text/plain").next_offset
            disk.fill()
            url = f"/bucket/s/snapshot/{tail}"
            reply = story.client.put(url, b"s" * 100_000, content_type="text/plain")
            assert reply.status == 503, reply
            assert story.client.get("/bucket/s").body == b"one"
            disk.free()
            reply = story.client.put(url, b"s" * 100_000, content_type="text/plain")
            assert reply.status == 204, reply
            assert story.client.get(url).body == b"s" * 100_000
        finally:
            story.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_everything_on_one_full_disk(tmp_path: Path, seed: int) -> None:
    """Where the room ends is up to the traffic: 8 KiB steps of free space move it around."""
    with story_on_small(tmp_path, "", size_bytes=8 << 20) as (story, disk):
        story.append_each(5)
        for step in range(4):
            disk.fill(free_bytes=8192 * (seed + 3 * step))
            story.append_each(25)
            assert story.server.process.poll() is None, story.server.output[-2000:]
            assert story.refusals <= {"storage_full", "hot_budget_used"}
            if step % 2:
                story.end(ServerProcess.kill)
                disk.free()
                story.start()
            disk.free()
            story.append_until_taken()
            story.check()


def readiness(client: Client) -> tuple[int, list[str]]:
    reply = client.get("/readyz")
    return reply.status, [reason["code"] for reason in reply.json().get("reasons", [])]


class Filling:
    """Streams of bytes that nothing makes smaller, one after the other, until the disk is full."""

    FLAGS = (
        *("--shards", "2", "--wal-segment-bytes", "128KiB", "--checkpoint-wal-bytes", "512KiB"),
        *("--hot-bytes", "1MiB", "--flush-bytes", "128KiB", "--resident-streams", "4"),
    )
    SIZE = 30_000

    def __init__(self, data_dir: Path, seed: int) -> None:
        print(f"seed {seed}")
        self.data_dir, self.dice = data_dir, random.Random(seed)
        self.content: dict[str, list[bytes]] = {}
        self.start()

    def start(self) -> None:
        self.server = start_listening(self.data_dir, *self.FLAGS)
        self.client = self.server.client()

    def kill(self) -> None:
        self.client.close()
        self.server.kill()
        assert b"Traceback" not in self.server.output, self.server.output[-3000:].decode()

    def create(self, name: str, **headers: str) -> int:
        reply = self.client.put(
            f"/v1/stream/{name}", content_type="application/octet-stream", headers=headers
        )
        if reply.status == 201:
            self.content[name] = []
        return reply.status

    def append(self, name: str) -> bool:
        data = self.dice.randbytes(self.SIZE)
        reply = self.client.post(
            f"/v1/stream/{name}", data, content_type="application/octet-stream"
        )
        if reply.status == 204:
            self.content[name].append(data)
            return True
        assert (reply.status, code(reply)) in ((503, "storage_full"), (503, "hot_budget_used"))
        return False

    def fill(self, name: str, count: int) -> bool:
        """Whether the disk is full before that many are taken."""
        refused = 0
        while len(self.content[name]) < count:
            if self.append(name):
                refused = 0
            elif readiness(self.client) == (503, ["disk_full"]):
                refused += 1
                if refused > 20:  # not only for a moment
                    return True
                time.sleep(0.1)
            else:
                time.sleep(0.02)
        return False

    def check(self) -> None:
        for name, messages in self.content.items():
            assert read_all(self.client, f"/v1/stream/{name}") == b"".join(messages), name


@pytest.mark.parametrize("kills", [False, True], ids=["one life", "killed amid"])
def test_on_a_full_disk_deletions_make_room_without_anybodys_help(
    tmp_path: Path, kills: bool
) -> None:
    data_dir = tmp_path / "data"
    with small_disk(data_dir, 24 << 20):
        story = Filling(data_dir, seed=random.randrange(10**9))
        try:
            assert readiness(story.client) == (200, [])
            names = [f"stream-{number}" for number in range(40)]
            for name in names:
                if story.create(name) != 201 or story.fill(name, 30):
                    break
            else:
                raise AssertionError("the disk was never full")
            wait_until(lambda: readiness(story.client) == (503, ["disk_full"]))
            assert story.create("one-more") == 503
            story.check()
            if kills:
                story.kill()
                story.start()
                story.check()
            for name in list(story.content)[:-1]:
                assert story.client.delete(f"/v1/stream/{name}").status == 204, name
                del story.content[name]
                assert story.client.get(f"/v1/stream/{name}").status == 404
            if kills:
                story.kill()
                story.start()
            wait_until(lambda: readiness(story.client) == (200, []), seconds=90)
            story.check()
            assert story.create("afterwards") == 201
            for _ in range(30):  # a restart had room for a while; garbage goes when it is used up
                wait_until(lambda: story.append("afterwards"))
            story.check()
            story.kill()
            story.start()
            story.check()
        finally:
            story.kill()


def test_on_a_full_disk_streams_still_expire_and_that_makes_room(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with small_disk(data_dir, 24 << 20):
        story = Filling(data_dir, seed=random.randrange(10**9))
        try:
            assert story.create("kept") == 201
            assert not story.fill("kept", 10)
            for number in range(40):
                name = f"brief-{number}"
                if story.create(name, **{"Stream-TTL": "25"}) != 201 or story.fill(name, 30):
                    break
            else:
                raise AssertionError("the disk was never full")
            story.content = {"kept": story.content["kept"]}
            wait_until(lambda: readiness(story.client) == (200, []), seconds=120)
            story.check()
            for _ in range(10):
                wait_until(lambda: story.append("kept"))
            story.check()
        finally:
            story.kill()


def wait_for_short_log(story: Story) -> None:
    """A checkpoint lets the log go; appends in between make sure that one is due."""
    wal = story.data_dir / "wal"

    def log_bytes() -> int:
        total = 0
        for path in wal.glob("*.wal"):
            with contextlib.suppress(FileNotFoundError):  # let go of since it was listed
                total += path.stat().st_size
        return total

    deadline = time.monotonic() + 20
    while log_bytes() > 600 * 1024:
        assert time.monotonic() < deadline, log_bytes()
        story.append_each(1)
        time.sleep(0.1)
