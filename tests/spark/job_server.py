"""A store with segments, its catalog, and a real HTTP server with the job contract over both.

What the whole server does with a committed swap is one call here: it goes into the catalog.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from millstream.api.errors import respond_error
from millstream.api.jobs import JobRoutes
from millstream.api.web_pages import WebPages
from millstream.clock import SystemClock
from millstream.engine.threads import Threads
from millstream.errors import StreamError
from millstream.faults import Faults
from millstream.formats.blocks import Block
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment, index_problem, segment_name
from millstream.formats.segment import Content, encode_segment
from millstream.http.message import Request
from millstream.http.server import HttpLimits, Listener, Server
from millstream.jobs.compaction import Policy
from millstream.jobs.erasure import Erasure
from millstream.jobs.rewrites import rewriting_kinds
from millstream.jobs.service import Jobs
from millstream.jobs.source import cold_place
from millstream.jobs.table import JobTable
from millstream.limits import MIB
from millstream.tier.catalog import (
    Catalog,
    Changes,
    Decay,
    Replacement,
    SegmentSpan,
    SegmentUse,
    StreamRow,
)
from millstream.tier.objects import ColdSettings, ObjectStore
from millstream.tier.segments import SegmentReader
from tests.support.blocks import messages_of

STORE_ID = "spark-test"
LIMITS = HttpLimits(
    32_768, 64 * MIB, 64 * MIB, 512 * MIB, 1000, 75.0, 30.0, 900.0, 8192, 30.0, 256 * 1024
)

Message = tuple[bytes, int]  # wire bytes with their comma, time of the append


class Growing(NamedTuple):
    """A stream as a plain list: what must be read back."""

    stream_id: int
    path: bytes
    is_json: bool
    messages: list[Message]


class World:
    """Streams of one shard, flushed into segments; the catalog knows where they lie."""

    def __init__(self, folder: Path, cold: ColdSettings, shards: int = 1) -> None:
        self.cold = cold
        self.store = ObjectStore(cold)
        self.catalog = Catalog.open(folder / "catalog", shards, STORE_ID)
        self.streams: dict[int, Growing] = {}
        self.flushed: dict[int, tuple[int, int]] = {}  # ordinal and byte that are cold
        self.swapped: list[tuple[list[str], list[Segment]]] = []
        self._lsn = 0
        self._lock = threading.Lock()  # one merge at a time, as one checkpoint at a time

    def append(self, stream_id: int, message: bytes, time_ms: int) -> None:
        if stream_id not in self.streams:
            is_json = stream_id % 2 == 1
            path = b"spark/stream-%d" % stream_id
            self.streams[StreamId(stream_id)] = Growing(stream_id, path, is_json, [])
            self.flushed[StreamId(stream_id)] = (0, 0)
        stream = self.streams[StreamId(stream_id)]
        stream.messages.append((message + b"," * stream.is_json, time_ms))

    def flush(self, created_ms: int) -> Segment:
        """One segment with everything that is not cold yet."""
        contents: list[Content] = []
        for stream_id in sorted(self.streams):
            stream, (ordinal, byte) = (
                self.streams[StreamId(stream_id)],
                self.flushed[StreamId(stream_id)],
            )
            fresh = stream.messages[ordinal:]
            if fresh:
                contents.append(_content(stream, ordinal, byte, fresh))
                size = sum(len(data) for data, _ in fresh)
                self.flushed[StreamId(stream_id)] = (ordinal + len(fresh), byte + size)
        return self.publish(contents, created_ms)

    def publish(self, contents: Sequence[Content], created_ms: int) -> Segment:
        encoded = encode_segment(contents, store_id=STORE_ID, shard=0)
        name = segment_name(0, created_ms, secrets.token_hex(4))
        self.store.put(name, encoded.data)
        size, footer = len(encoded.data), encoded.footer_bytes
        segment = Segment(name, 0, size, footer, encoded.rows, created_ms)
        rows = [
            StreamRow(content.stream_id, content.path, None, True, created_ms, b"image")
            for content in contents
        ]
        self.merge(streams=rows, segments=[segment], runs=[encoded.runs])
        return segment

    def delete(self, stream_id: int) -> None:
        del self.streams[StreamId(stream_id)]
        self.merge(removed=[StreamId(stream_id)])

    def merge(
        self,
        streams: list[StreamRow] | None = None,
        removed: list[StreamId] | None = None,
        segments: list[Segment] | None = None,
        runs: list[list[Run]] | None = None,
        replacements: list[Replacement] | None = None,
    ) -> None:
        with self._lock:
            self._lsn += 1
            self.catalog.merge(
                Changes(
                    self._lsn,
                    streams=streams or [],
                    removed=removed or [],
                    segments=segments or [],
                    runs=runs or [],
                    replacements=replacements or [],
                )
            )

    def read_all(self, reader: SegmentReader) -> dict[int, list[Message]]:
        """All messages of all streams, from their runs, which must join without a gap."""
        messages: dict[int, list[Message]] = {}
        places: dict[int, tuple[int, int]] = {}
        for segment, run in self.located_runs():
            place = places.get(run.stream_id, (run.first_ordinal, run.first_byte))
            assert (run.first_ordinal, run.first_byte) == place
            places[run.stream_id] = (run.end_ordinal, run.end_byte)
            found = messages.setdefault(run.stream_id, [])
            [block] = reader.load_runs(segment, [run])
            assert index_problem(run, block) is None
            found += _messages(block)
        return messages

    def located_runs(self) -> list[tuple[Segment, Run]]:
        """As of one moment, on connections of this thread."""
        while True:
            before = self.catalog.segments()
            segments = {use.segment.name: use.segment for use in before}
            found = [(segments[name], run) for name, run in self.catalog.live_runs(list(segments))]
            if self.catalog.segments() == before:
                return found

    def written(self) -> dict[int, list[Message]]:
        """What `read_all` has to find."""
        return {
            stream_id: stream.messages[: self.flushed[StreamId(stream_id)][0]]
            for stream_id, stream in self.streams.items()
            if self.flushed[StreamId(stream_id)][0]
        }

    # What the job routes need

    def segments(self) -> list[SegmentUse]:
        return self.catalog.segments()

    def segment_spans(self, shard: int) -> dict[str, SegmentSpan]:
        return self.catalog.segment_spans(shard)

    def live_runs(self, names: Sequence[str]) -> Iterator[tuple[str, Run]]:
        return self.catalog.live_runs(names)

    def object_size(self, name: str) -> int | None:
        return self.store.size(name)

    def decayed(self) -> list[Decay]:
        return self.catalog.decayed()

    def cuts(self, shard: int, names: Sequence[str]) -> dict[int, int]:
        return self.catalog.cuts(shard, names)

    def segment_names(self, shard: int) -> set[str]:
        return self.catalog.segment_names(shard)

    def swaps(self) -> int:
        return len(self.swapped)

    def swap(self, old: list[str], segments: list[Segment], runs: list[list[Run]]) -> None:
        self.merge(replacements=[Replacement(old, segments, runs)])
        self.swapped.append((old, segments))


def _content(stream: Growing, ordinal: int, byte: int, fresh: list[Message]) -> Content:
    blocks = [Block(data, None, time_ms, _key_of(data)) for data, time_ms in fresh]
    return Content(StreamId(stream.stream_id), stream.path, stream.is_json, ordinal, byte, blocks)


def _key_of(data: bytes) -> bytes | None:
    """Every message has the key that its length says."""
    return (None, b"", b"tenant-%d" % len(data))[len(data) % 3]


def _messages(block: Block) -> list[Message]:
    messages = messages_of(block)
    assert [message.key for message in messages] == [_key_of(message.data) for message in messages]
    return [message[:2] for message in messages]


def fill(world: World, seed: int, *, streams: int, flushes: int, message_bytes: int) -> None:
    """Every flush holds something of most streams: what compaction is for."""
    print(f"seed {seed}")
    numbers = random.Random(seed)
    for flush in range(flushes):
        now_ms = 1_750_000_000_000 + flush * 1000
        for stream_id in range(1, streams + 1):
            for _ in range(numbers.choice((0, 1, 1, 2, 5))):
                data = numbers.randbytes(numbers.randint(1, 2 * message_bytes))
                if stream_id % 2 == 1:
                    data = b'"' + data.hex().encode() + b'"'
                world.append(stream_id, data, now_ms + numbers.randint(0, 999))
        world.flush(now_ms)


class JobServer:
    """Runs on a loop of its own thread."""

    def __init__(self, world: World, policy: Policy) -> None:
        self._world = world
        self._policy = policy
        self.table = JobTable(SystemClock())
        self.requests: list[tuple[str, str]] = []
        self.before_commit: Callable[[], None] = lambda: None

    def end_leases(self) -> None:
        """As if the time had passed for all who are dead."""
        lease_ms, self.table.lease_ms = self.table.lease_ms, -1
        assert self.table.busy_names() == set()
        self.table.lease_ms = lease_ms

    async def _serve(self, started: Callable[[int], None], stopped: asyncio.Event) -> None:
        threads, faults, policy = Threads("jobs", 2), Faults(), self._policy

        async def swap(
            shard: int,
            old: list[str],
            segments: list[Segment],
            runs: list[list[Run]],
            swaps_seen: int,
        ) -> None:
            def work() -> None:
                self.before_commit()
                self._world.swap(old, segments, runs)

            await threads.run(work)

        erasure = Erasure(self._world, SystemClock(), policy)
        kinds = rewriting_kinds(self._world, erasure, swap, threads, policy)
        place = cold_place(self._world.cold)
        routes = JobRoutes(Jobs(kinds, self.table, threads, STORE_ID, place, faults), faults)

        def handle(request: Request) -> None:
            self.requests.append((request.method.decode(), request.path.decode()))
            try:
                routes.handle(request)
            except StreamError as error:
                respond_error(request, error)

        server = Server(LIMITS, b"")
        pages = WebPages(SystemClock(), hosts=None, origins=None)
        async with asyncio.TaskGroup() as group, routes.running(group):
            _, port = await server.listen("127.0.0.1", 0, None, Listener(handle, pages))
            started(port)
            await stopped.wait()
            await server.close(1.0)
        await threads.close()

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """The URL."""
        ready = threading.Event()
        ports: list[int] = []
        loop = asyncio.new_event_loop()
        stopped = asyncio.Event()

        def started(port: int) -> None:
            ports.append(port)
            ready.set()

        def run() -> None:
            loop.run_until_complete(self._serve(started, stopped))
            loop.close()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert ready.wait(10)
            yield f"http://127.0.0.1:{ports[0]}"
        finally:
            loop.call_soon_threadsafe(stopped.set)
            thread.join()
