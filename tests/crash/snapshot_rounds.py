"""Rounds of kill -9 around snapshots and buckets: one seed, one folder, several lives of a server.

Every stream has one writer and one publisher, each with one request out at a time, so after a kill
at most one append and one snapshot per stream are in doubt. Contents follow from stream and place
alone. What is in doubt must be there wholly or not at all; what was acknowledged must be there.

`python -m tests.crash.snapshot_rounds --seed 42` replays one round, `--seeds 50` hunts for long.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.multipart import Bootstrap, bootstrap
from tests.crash.rounds import DrainedServer
from tests.crash.variants import VARIANTS
from tests.crash.writers import LOST, ServerGone
from tests.support.http import Client, Reply
from tests.support.waiting import let_work

STREAMS = 3
BUCKETS = 6
BUCKET = "/crashes"
TEXT = "text/plain"
JOIN_SECONDS = 60.0
WATCH_SECONDS_MAX = 2.0
APPENDS_MIN, SNAPSHOTS_MIN, BUCKETS_MIN = 20, 4, 2  # per life
START = "0000000000000000_0000000000000000"


def message(stream: str, number: int) -> bytes:
    size = random.Random(f"message {stream} {number}").choice([20, 20, 200, 3000])
    return f"<{stream} {number}>".encode().ljust(size, b".")


def folded(stream: str, place: int) -> bytes:
    """The snapshot of a stream at a place: nobody else's bytes, and any size."""
    size = random.Random(f"snapshot {stream} {place}").choice([50, 5_000, 70_000, 600_000])
    return (f"[{stream} up to {place}]".encode() * (size // 20))[:size]


def folded_type(place: int) -> str:
    return f"application/x-folded; place={place}"


@dataclass
class Record:
    """What the clients of one stream know; `name` is whose contents a fork inherited."""

    path: str
    name: str
    acknowledged: int = 0  # messages
    offsets: list[str] = field(default_factory=lambda: [START])
    append_in_doubt: bool = False
    snapshot: int | None = None
    snapshot_in_doubt: int | None = None


@dataclass
class History:
    streams: list[Record] = field(default_factory=list)
    forks: list[Record] = field(default_factory=list)
    buckets: dict[str, bool] = field(default_factory=dict)
    bucket_in_doubt: str | None = None
    violations: list[str] = field(default_factory=list)


@dataclass
class Report:
    seed: int
    kills: int = 0
    appends: int = 0
    snapshots: int = 0
    in_doubt: int = 0
    in_doubt_and_there: int = 0
    buckets: int = 0
    forks: int = 0


class Round:
    """`tamper` may change the data folder after a kill: that is how this is tested itself."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        tamper: Callable[[Path], None] = lambda _: None,
        flags: tuple[str, ...] = (),
    ) -> None:
        self.report = Report(seed)
        self.flags = flags  # after those drawn, see variants.py
        self.tamper = tamper
        self.dice = random.Random(f"snapshot round {seed}")
        self.data_dir = folder / "data"
        self.history = History()
        self.ending = threading.Event()
        self.fork_number = 0

    def run(self, generations: int) -> Report:
        for generation in range(generations):
            self.run_generation(generation)
            self.tamper(self.data_dir)
        server = self.start()
        try:
            self.verify(server)
        finally:
            server.kill()
        return self.report

    def start(self) -> DrainedServer:
        segment = str(self.dice.choice([8_192, 65_536]))
        checkpoint = str(self.dice.choice([30_000, 200_000, 10_000_000]))
        flags = ("--wal-segment-bytes", segment, "--checkpoint-wal-bytes", checkpoint, *self.flags)
        if self.history.streams and self.dice.random() < 0.4:
            self.kill_during_start(flags)
        return DrainedServer(self.data_dir, *flags)

    def kill_during_start(self, flags: tuple[str, ...]) -> None:
        server = DrainedServer(self.data_dir, *flags, wait=False)
        time.sleep(self.dice.uniform(0.05, 0.5))
        server.kill()
        self.report.kills += 1

    def run_generation(self, generation: int) -> None:
        server = self.start()
        try:
            if generation == 0:
                self.create(server)
            else:
                self.verify(server)
            self.work_until_killed(server, generation)
        finally:
            server.kill()
        assert b"Traceback" not in server.output, server.output[-3000:].decode()
        assert not self.history.violations, "\n".join(self.history.violations)

    def create(self, server: DrainedServer) -> None:
        with contextlib.closing(server.client()) as client:
            assert client.put(BUCKET).status == 201
            for index in range(STREAMS):
                path = f"{BUCKET}/s{index}"
                assert client.put(path, content_type=TEXT).status == 201
                self.history.streams.append(Record(path, f"s{index}"))

    # Work

    def work_until_killed(self, server: DrainedServer, generation: int) -> None:
        self.ending.clear()
        seed = f"{self.report.seed} {generation}"
        works: list[Callable[[Client, random.Random], None]] = [self.churn_buckets]
        for record in self.history.streams:
            works.append(lambda client, dice, record=record: self.append(client, record))  # type: ignore[misc]
            works.append(lambda client, dice, record=record: self.publish(client, dice, record))  # type: ignore[misc]
        threads = [
            threading.Thread(
                target=self.guard, args=(work, server.client(), random.Random(f"{seed} {index}"))
            )
            for index, work in enumerate(works)
        ]
        for thread in threads:
            thread.start()
        self.wait_for_the_moment()
        died = server.process.poll()
        self.ending.set()
        server.kill()
        self.report.kills += 1
        for thread in threads:
            thread.join(JOIN_SECONDS)
            assert not thread.is_alive()
        assert died is None, server.output[-3000:].decode()

    def has_done_more(self) -> Callable[[], bool]:
        """Than it has now, by what makes a life worth ending."""
        report = self.report
        appends, snapshots, buckets = report.appends, report.snapshots, report.buckets
        return lambda: (
            report.appends >= appends + APPENDS_MIN
            and report.snapshots >= snapshots + SNAPSHOTS_MIN
            and report.buckets >= buckets + BUCKETS_MIN
        )

    def wait_for_the_moment(self) -> None:
        """Some time; then often until a blob is being written, renamed or cleared away."""
        let_work(self.dice.uniform(0.05, 0.5), self.has_done_more())
        changes = self.dice.choice([0, 1, 1, 2, 3])
        deadline = time.monotonic() + WATCH_SECONDS_MAX
        folder = self.data_dir / "cold" / "snapshots"
        before = set(folder.glob("*"))
        while changes and time.monotonic() < deadline:
            now = set(folder.glob("*"))
            if now != before:
                before, changes = now, changes - 1

    def guard(
        self, work: Callable[[Client, random.Random], None], client: Client, dice: random.Random
    ) -> None:
        try:
            while not self.ending.is_set():
                work(client, dice)
        except ServerGone:
            if not self.ending.is_set():
                self.history.violations.append("a living server dropped a connection")
        except Exception as error:
            self.history.violations.append(f"{type(error).__name__}: {error}")
        finally:
            client.close()

    def append(self, client: Client, record: Record) -> None:
        record.append_in_doubt = True
        body = message(record.name, record.acknowledged)
        reply = call(client, "POST", record.path, body, TEXT)
        assert reply.status == 204, reply
        record.append_in_doubt = False
        record.offsets.append(reply.next_offset)
        record.acknowledged += 1
        self.report.appends += 1

    def publish(self, client: Client, dice: random.Random, record: Record) -> None:
        known = record.acknowledged
        first = record.snapshot or 0
        if known == first:
            return
        if dice.random() < 0.08:
            self.fork(client, record)
        place = dice.randint(first + 1, known)
        record.snapshot_in_doubt = place
        self.put_snapshot(client, record, place)
        record.snapshot, record.snapshot_in_doubt = place, None
        self.report.snapshots += 1
        time.sleep(dice.choice([0, 0, 0.01, 0.03]))

    @staticmethod
    def put_snapshot(client: Client, record: Record, place: int) -> None:
        url = f"{record.path}/snapshot/{record.offsets[place]}"
        body = folded(record.name, place)
        reply = call(client, "PUT", url, body, folded_type(place))
        assert reply.status == 204, reply

    def fork(self, client: Client, record: Record) -> None:
        """At the snapshot or behind it; recorded only when acknowledged."""
        self.fork_number += 1
        place = record.acknowledged
        path = f"{BUCKET}/fork-{record.name}-{self.report.seed}-{self.fork_number}"
        headers = {
            "Stream-Forked-From": record.path,
            "Stream-Fork-Offset": record.offsets[place],
        }
        reply = call(client, "PUT", path, None, None, headers)
        assert reply.status == 201, reply
        offsets = record.offsets[: place + 1]
        fork = Record(path, record.name, place, offsets, snapshot=record.snapshot)
        self.history.forks.append(fork)
        self.report.forks += 1

    def churn_buckets(self, client: Client, dice: random.Random) -> None:
        name = f"/bucket-{dice.randrange(BUCKETS)}"
        exists = self.history.buckets.get(name, False)
        self.history.bucket_in_doubt = name
        reply = call(client, "DELETE" if exists else "PUT", name)
        assert reply.status == (204 if exists else 201), (name, reply)
        self.history.buckets[name] = not exists
        self.history.bucket_in_doubt = None
        self.report.buckets += 1

    # Verify

    def verify(self, server: DrainedServer) -> None:
        with contextlib.closing(server.client()) as client:
            self.verify_buckets(client)
            expected = set[bytes]()
            for record in [*self.history.streams, *self.history.forks]:
                self.settle_snapshot(client, record)
                self.verify_stream(client, record)
                if record.snapshot is not None:
                    expected.add(folded(record.name, record.snapshot))
            self.verify_blobs(expected)
            listed = client.get(f"{BUCKET}/streams").json()["streams"]
            names = {f"{BUCKET}/{entry['stream_id']}" for entry in listed}
            records = {r.path for r in [*self.history.streams, *self.history.forks]}
            assert records <= names
            for stray in names - records:  # a fork in doubt: there wholly
                assert bootstrap(client, stray).messages is not None
                assert client.delete(stray).status == 204

    def verify_buckets(self, client: Client) -> None:
        for name in sorted({*self.history.buckets, self.history.bucket_in_doubt or BUCKET}):
            found = client.get(name).status == 200
            if name == BUCKET:
                assert found
                continue
            if name != self.history.bucket_in_doubt:
                assert found == self.history.buckets[name], name
            self.history.buckets[name] = found
        self.history.bucket_in_doubt = None

    def settle_snapshot(self, client: Client, record: Record) -> None:
        head = client.head(record.path)
        assert head.status == 200, record
        offset = head.headers.get("stream-snapshot-offset")
        allowed = {None if p is None else record.offsets[p]: p for p in (record.snapshot,)}
        if record.snapshot_in_doubt is not None:
            self.report.in_doubt += 1
            allowed[record.offsets[record.snapshot_in_doubt]] = record.snapshot_in_doubt
        assert offset in allowed, (offset, record.snapshot, record.snapshot_in_doubt)
        in_doubt, record.snapshot_in_doubt = record.snapshot_in_doubt, None
        record.snapshot = allowed[offset]
        if in_doubt is None:
            return
        self.report.in_doubt_and_there += record.snapshot == in_doubt
        if self.dice.random() < 0.5:  # the client that never heard asks again
            self.put_snapshot(client, record, in_doubt)
            record.snapshot = in_doubt

    def verify_blobs(self, expected: set[bytes]) -> None:
        """A file for each visible snapshot. What a crash left beside them is swept up later."""
        stored = set[bytes]()
        for path in (self.data_dir / "cold" / "snapshots").glob("*"):
            with contextlib.suppress(FileNotFoundError):  # superseded a moment ago
                stored.add(path.read_bytes())
        assert expected <= stored, (len(stored), len(expected))

    def verify_stream(self, client: Client, record: Record) -> None:
        found = bootstrap(client, record.path)
        first = record.snapshot or 0
        self.verify_snapshot(client, record, found)
        expected = [message(record.name, number) for number in range(first, record.acknowledged)]
        in_doubt = message(record.name, record.acknowledged)
        if record.append_in_doubt and found.messages == [*expected, in_doubt]:
            expected.append(in_doubt)
            record.acknowledged += 1
            record.offsets.append(found.next_offset)
        record.append_in_doubt = False
        assert found.messages == expected, (record.path, len(found.messages), len(expected))
        assert found.next_offset == record.offsets[-1]
        assert int(found.next_offset.split("_")[0]) == record.acknowledged
        read = client.get(f"{record.path}?offset={record.offsets[first]}")
        assert read.body == b"".join(expected)

    def verify_snapshot(self, client: Client, record: Record, found: Bootstrap) -> None:
        place = record.snapshot
        if place is None:
            assert (found.snapshot_offset, found.snapshot.body) == ("-1", b"")
            assert client.get(f"{record.path}/snapshot").status == 404
            return
        assert found.snapshot_offset == record.offsets[place]
        assert found.snapshot.body == folded(record.name, place)
        assert found.snapshot.content_type == folded_type(place)
        read = client.get(f"{record.path}/snapshot/{record.offsets[place]}")
        assert (read.status, read.body) == (200, found.snapshot.body)
        for offset in ("-1", record.offsets[place - 1]):
            gone = client.get(f"{record.path}?offset={offset}")
            assert gone.status == 410
            assert gone.headers["stream-earliest-offset"] == record.offsets[place]


def call(
    client: Client,
    method: str,
    path: str,
    body: bytes | None = None,
    content_type: str | None = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    """Raises ServerGone with the request's fate left in doubt."""
    try:
        return client.call(method, path, body, headers, content_type)
    except LOST as error:
        client.close()
        raise ServerGone(f"{method} {path}: {error!r}") from error


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.snapshot_rounds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--generations", type=int, default=5)
    parser.add_argument("--variant", choices=list(VARIANTS), default="as planned")
    arguments = parser.parse_args()
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        print(f"seed {seed}", flush=True)
        with tempfile.TemporaryDirectory(prefix=f"millstream-snapshots-{seed}-") as folder:
            flags = VARIANTS[arguments.variant]
            print(Round(seed, Path(folder), flags=flags).run(arguments.generations), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
