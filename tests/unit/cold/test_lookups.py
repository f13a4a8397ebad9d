"""One key, one moment: found in memory, in runs and in what a fork inherited, as a scan would."""

from __future__ import annotations

import asyncio
import tempfile
from array import array
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from millstream.cold import lookups as lookups_module
from millstream.cold.lookups import Entry, KeyPage, Lookups
from millstream.errors import (
    ColdUnavailable,
    DamagedSegment,
    OffsetGone,
    Overloaded,
    StreamNotFound,
)
from millstream.formats.key_filters import NO_KEYS, UNKNOWN_KEYS
from millstream.formats.runs import Segment
from millstream.formats.segment import SegmentBuilder
from millstream.pipeline.merge import take_rows
from millstream.protocol.offsets import START, Position
from millstream.state.log import PublishedRun
from millstream.state.stream import Stream
from tests.unit.cold.cold_world import NOW_MS, ColdWorld
from tests.unit.effort import brief

ALL = 1 << 40


class Message(NamedTuple):
    data: bytes
    time_ms: int
    key: bytes | None


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ColdWorld]:
    world = ColdWorld(tmp_path, threads=1)
    yield world
    world.close()


def add(stream: Stream, *messages: Message) -> None:
    """One append."""
    data = b"".join(message.data for message in messages)
    ends = array("I", accumulate(len(message.data) for message in messages))
    keys = tuple(message.key for message in messages)
    stream.log.append(data, ends, array("Q", [m.time_ms for m in messages]), keys)


def numbered(count: int, keys: int = 3) -> list[Message]:
    """A millisecond apart, ten bytes each; every key comes again after so many."""
    return [Message(b"%010d" % n, NOW_MS + n, b"key %d" % (n % keys)) for n in range(count)]


def run_page(
    world: ColdWorld,
    stream: Stream,
    key: bytes,
    start: Position = START,
    bytes_max: int = ALL,
    messages_max: int = ALL,
) -> KeyPage:
    async def look() -> KeyPage:
        world.cold_reads.start(asyncio.get_running_loop())
        lookups = Lookups(world.cold_reads)
        return await lookups.page_of_key(stream, key, start, bytes_max, messages_max)

    return asyncio.run(look())


def run_seek(world: ColdWorld, stream: Stream, since_ms: int) -> Position:
    async def look() -> Position:
        world.cold_reads.start(asyncio.get_running_loop())
        return await Lookups(world.cold_reads).seek(stream, since_ms)

    return asyncio.run(look())


# Pages of a key


@pytest.mark.parametrize("run_messages", [None, 1, 2, 7])
def test_all_messages_of_a_key_are_found_in_memory_and_in_runs(
    world: ColdWorld, run_messages: int | None
) -> None:
    stream = world.create()
    add(stream, *numbered(20))
    hot = run_page(world, stream, b"key 1")
    world.freeze(stream, run_messages)
    cold = run_page(world, stream, b"key 1")
    assert hot == cold
    assert cold.entries[:2] == [
        Entry(1, NOW_MS + 1, b"key 1", b"0000000001"),
        Entry(4, NOW_MS + 4, b"key 1", b"0000000004"),
    ]
    assert [entry.ordinal for entry in cold.entries] == list(range(1, 20, 3))
    assert cold.end == (20, 200)


def test_a_page_reaches_over_runs_the_catalog_knows_not_yet_into_memory(world: ColdWorld) -> None:
    stream = world.create()
    add(stream, *numbered(12))
    world.publish(stream, 4)
    world.checkpoint(stream)
    world.publish(stream, 4)
    world.drop(stream)
    page = run_page(world, stream, b"key 0", Position(2, 20))
    assert [entry.ordinal for entry in page.entries] == [3, 6, 9]
    assert page.end == (12, 120)


@pytest.mark.parametrize("is_cold", [False, True])
def test_a_page_ends_where_it_is_full_and_the_next_goes_on_there(
    world: ColdWorld, is_cold: bool
) -> None:
    stream = world.create()
    add(stream, *numbered(20))
    if is_cold:
        world.freeze(stream, 5)
    two = run_page(world, stream, b"key 1", messages_max=2)
    assert ([entry.ordinal for entry in two.entries], two.end) == ([1, 4], (5, 50))
    by_bytes = run_page(world, stream, b"key 1", two.end, bytes_max=25)
    assert ([entry.ordinal for entry in by_bytes.entries], by_bytes.end) == ([7, 10], (13, 130))
    one = run_page(world, stream, b"key 1", by_bytes.end, bytes_max=1)
    assert [entry.ordinal for entry in one.entries] == [13]
    rest = run_page(world, stream, b"key 1", one.end)
    assert ([entry.ordinal for entry in rest.entries], rest.end) == ([16, 19], (20, 200))
    assert run_page(world, stream, b"key 1", rest.end) == ([], (20, 200))


def test_what_has_no_key_or_another_is_never_read(world: ColdWorld) -> None:
    stream = world.create()
    add(stream, *numbered(30))
    world.freeze(stream, 5)
    before = world.store.requests["get"]
    assert run_page(world, stream, b"nobody's") == ([], (30, 300))
    assert world.store.requests["get"] == before


def test_an_empty_key_is_a_key_and_none_is_none(world: ColdWorld) -> None:
    stream = world.create()
    keys = (None, b"", b"k")
    add(stream, *[Message(b"%d" % n, NOW_MS, key) for n, key in enumerate(keys)])
    hot = run_page(world, stream, b"")
    world.freeze(stream)
    assert run_page(world, stream, b"") == hot == ([Entry(1, NOW_MS, b"", b"1")], (3, 3))


def test_runs_of_older_stores_are_read_and_what_they_hold_is_found(world: ColdWorld) -> None:
    stream = world.create()
    add(stream, *numbered(12))
    world.freeze(stream, 3)
    expected = run_page(world, stream, b"key 2")
    at = run_seek(world, stream, NOW_MS + 7)
    unknown = {"first_ms": 0, "last_ms": 0, "keys": UNKNOWN_KEYS}
    world.runs.of[1] = [(segment, replace(run, **unknown)) for segment, run in world.runs.of[1]]
    assert run_page(world, stream, b"key 2") == expected
    assert run_seek(world, stream, NOW_MS + 7) == at == (7, 70)


def test_json_entries_come_with_their_commas(world: ColdWorld) -> None:
    stream = world.create(b"application/json")
    add(stream, Message(b'{"a":1},', NOW_MS, b"k"), Message(b"2,", NOW_MS, b"k"))
    world.freeze(stream)
    assert [entry.data for entry in run_page(world, stream, b"k").entries] == [b'{"a":1},', b"2,"]


def test_a_fork_shows_what_it_inherited_up_to_where_it_was_cut(world: ColdWorld) -> None:
    source = world.create()
    add(source, *numbered(6, keys=2))
    fork = world.fork(source, 3, 25)  # through the third message
    add(fork, Message(b"own", NOW_MS + 9, b"key 0"))
    expected = [
        Entry(0, NOW_MS, b"key 0", b"0000000000"),
        Entry(2, NOW_MS + 2, b"key 0", b"00000"),
        Entry(3, NOW_MS + 9, b"key 0", b"own"),
    ]
    assert run_page(world, fork, b"key 0") == (expected, (4, 28))
    assert run_page(world, fork, b"key 1") == (
        [Entry(1, NOW_MS + 1, b"key 1", b"0000000001")],
        (4, 28),
    )
    assert run_seek(world, fork, NOW_MS + 2) == (2, 20)
    assert run_seek(world, fork, NOW_MS + 3) == (3, 25)
    for stream in (source, fork):
        world.freeze(stream, 2)
    source.deleted = True  # kept for its fork
    assert run_page(world, fork, b"key 0") == (expected, (4, 28))
    assert run_seek(world, fork, NOW_MS + 2) == (2, 20)
    assert run_seek(world, fork, NOW_MS + 3) == (3, 25)
    assert run_seek(world, fork, NOW_MS + 10) == (4, 28)


# Work that is bounded


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("LOOKUP_RUNS_MAX", 3),
        ("LOOKUP_RUNS_PER_TURN", 1),
        ("LOOKUP_LOADS_MAX", 2),
        ("LOOKUP_LOADS_AT_ONCE", 1),
        ("LOOKUP_BYTES_MAX", 25),
        ("LOOKUP_MESSAGES_MAX", 3),
        ("LOOKUP_MESSAGES_PER_TURN", 1),
        ("_HELD_BYTES_PER_TURN", 1),
    ],
)
def test_pages_that_end_early_miss_nothing(
    world: ColdWorld, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    stream = world.create()
    for message in numbered(40, keys=4):
        add(stream, message)
    world.freeze(stream, 2)
    for message in numbered(40, keys=4):  # each a block of its own
        stream.log.append(message.data, None, NOW_MS + 50, message.key)
    whole = run_page(world, stream, b"key 1")
    assert len(whole.entries) == 20
    monkeypatch.setattr(lookups_module, limit, value)
    found, place, pages = list[Entry](), START, 0
    while place != whole.end:
        page = run_page(world, stream, b"key 1", place)
        assert page.end > place
        found, place, pages = found + page.entries, page.end, pages + 1
    assert found == whole.entries
    assert (pages > 1) == (limit.endswith("_MAX"))


def test_a_page_of_few_messages_reads_no_more_row_groups_than_that(world: ColdWorld) -> None:
    stream = world.create()
    add(stream, *numbered(10, keys=1))
    world.freeze(stream, 1)
    before = world.store.requests["get"]
    assert len(run_page(world, stream, b"key 0", messages_max=2).entries) == 2
    assert world.store.requests["get"] - before == 4  # a footer and a row group each


# Moments


@pytest.mark.parametrize("run_messages", [None, 1, 3])
@pytest.mark.parametrize("held", [0, 4, 10])
def test_a_moment_is_found_wherever_it_lies(
    world: ColdWorld, run_messages: int | None, held: int
) -> None:
    stream = world.create()
    times = [5, 5, 5, 8, 8, 9, 12, 12, 20, 20]
    add(stream, *[Message(b"%d" % n, NOW_MS + time, None) for n, time in enumerate(times)])
    while stream.log.cold_ordinal < 10 - held:
        left = 10 - held - stream.log.cold_ordinal
        world.publish(stream, left if run_messages is None else min(run_messages, left))
    world.checkpoint(stream)
    world.drop(stream)
    for since in range(22):
        expected = sum(time < since for time in times)
        assert run_seek(world, stream, NOW_MS + since) == (expected, expected)


def test_a_moment_before_what_was_trimmed_is_the_first_message_that_is_left(
    world: ColdWorld,
) -> None:
    stream = world.create()
    add(stream, *numbered(9))
    world.freeze(stream, 3)
    stream.log.trim(Position(4, 40))
    del world.runs.of[1][0]
    assert run_seek(world, stream, 0) == (4, 40)
    assert run_seek(world, stream, NOW_MS + 5) == (5, 50)
    with pytest.raises(OffsetGone):
        run_page(world, stream, b"key 0")
    page = run_page(world, stream, b"key 0", Position(4, 40))
    assert [entry.ordinal for entry in page.entries] == [6]


def test_an_empty_stream_has_its_tail(world: ColdWorld) -> None:
    stream = world.create()
    assert run_seek(world, stream, 0) == START
    assert run_page(world, stream, b"k") == ([], START)


def test_a_moment_is_found_with_one_row_group_read_at_most(world: ColdWorld) -> None:
    stream = world.create()
    add(stream, *numbered(100))
    world.freeze(stream, 5)
    before, queries = world.store.requests["get"], world.runs.queries
    assert run_seek(world, stream, NOW_MS + 52) == (52, 520)
    assert world.store.requests["get"] - before == 2  # a footer and a row group
    assert world.runs.queries - queries <= 7
    before = world.store.requests["get"]
    assert run_seek(world, stream, NOW_MS + 55) == (55, 550)  # where a run begins
    assert world.store.requests["get"] == before


# Trouble


def test_runs_that_a_compaction_moved_meanwhile_are_looked_up_again(world: ColdWorld) -> None:
    stream = world.create()
    add(stream, *numbered(8, keys=2))
    world.freeze(stream, 2)
    expected = run_page(world, stream, b"key 1")
    old = world.runs.of[1]
    new = compacted(world, stream)
    world.store.delete([segment.name for segment, _ in old])
    asked: list[int] = []
    runs_from = world.runs.runs_from

    def before_and_after(stream_id: int, **place: int) -> object:
        world.runs.of[1] = new if asked else old
        asked.append(stream_id)
        return runs_from(stream_id, **place)  # type: ignore[arg-type]

    world.runs.runs_from = before_and_after  # type: ignore[assignment, method-assign]
    world.reader._row_groups._kept.clear()
    assert run_page(world, stream, b"key 1") == expected
    asked.clear()
    world.reader._row_groups._kept.clear()
    world.reader._footers._kept.clear()
    assert run_seek(world, stream, NOW_MS + 3) == (3, 30)


def compacted(world: ColdWorld, stream: Stream) -> list[PublishedRun]:
    """All runs of the stream in one new segment, as the pipeline makes it."""
    runs = world.runs.of[stream.stream_id]
    loaded = {
        (index, run.row_group): world.reader.load_table(segment, [run.row_group]).to_batches()[0]
        for index, (segment, run) in enumerate(runs)
    }
    builder = SegmentBuilder("0" * 32, 0)
    builder.add(take_rows([(index, run) for index, (_, run) in enumerate(runs)], loaded))
    encoded = builder.finish()
    world.segments += 1
    name = f"segments/0000/{world.segments:013d}-00000000.parquet"
    size, footer = len(encoded.data), encoded.footer_bytes
    segment = Segment(name, 0, size, footer, encoded.rows, NOW_MS)
    world.store.put(segment.name, encoded.data)
    return [(segment, run) for run in encoded.runs]


def test_a_missing_object_is_damage_and_a_deleted_stream_is_gone(world: ColdWorld) -> None:
    stream = world.create()
    add(stream, *numbered(4))
    world.freeze(stream)
    ((segment, _),) = world.runs.of[1]
    world.store.delete([segment.name])
    with pytest.raises(DamagedSegment, match=segment.name):
        run_page(world, stream, b"key 0")
    with pytest.raises(DamagedSegment, match=segment.name):
        run_seek(world, stream, NOW_MS + 2)
    stream.deleted = True
    with pytest.raises(StreamNotFound):
        run_page(world, stream, b"key 0")


def test_a_run_that_is_nowhere_is_a_fault_and_told(world: ColdWorld) -> None:
    stream = world.create()
    add(stream, *numbered(4))
    world.freeze(stream, 2)
    del world.runs.of[1][1]
    with pytest.raises(ColdUnavailable):
        run_page(world, stream, b"key 0")
    assert world.cold_reads.faults.counts["read"] == 1
    assert world.cold_reads.loading == 0


def test_too_many_loads_are_refused(world: ColdWorld) -> None:
    stream = world.create()
    add(stream, *numbered(4))
    world.freeze(stream)
    world.cold_reads.loading = 1 << 20
    with pytest.raises(Overloaded):
        run_page(world, stream, b"key 0")
    world.cold_reads.loading = 0
    assert len(run_page(world, stream, b"key 0").entries) == 2


def test_a_look_that_is_called_off_leaves_nothing_behind(world: ColdWorld) -> None:
    stream = world.create()
    add(stream, *numbered(4))
    world.freeze(stream)

    async def look() -> None:
        world.cold_reads.start(asyncio.get_running_loop())
        lookups = Lookups(world.cold_reads)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await lookups.page_of_key(stream, b"key 0", START, ALL, ALL)
        assert world.cold_reads.loading == 0
        assert len((await lookups.page_of_key(stream, b"key 0", START, ALL, ALL)).entries) == 2

    asyncio.run(look())


def test_what_leaves_memory_during_a_look_is_found_in_runs(
    world: ColdWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups_module, "LOOKUP_MESSAGES_PER_TURN", 1)
    stream = world.create()
    for message in numbered(6, keys=1):
        stream.log.append(message.data, None, message.time_ms, message.key)
    expected = run_page(world, stream, b"key 0")

    async def look() -> KeyPage:
        world.cold_reads.start(asyncio.get_running_loop())
        page = asyncio.create_task(
            Lookups(world.cold_reads).page_of_key(stream, b"key 0", START, ALL, ALL)
        )
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        world.freeze(stream, 2)
        return await page

    assert asyncio.run(look()) == expected


# Against a plain scan


class Model:
    """Streams as lists of messages, made by random steps; forks copy what they inherit."""

    def __init__(self, world: ColdWorld) -> None:
        self.world = world
        self.streams: list[Stream] = []
        self.messages: list[list[Message]] = []

    def create(self) -> None:
        self.streams.append(self.world.create())
        self.messages.append([])

    def fork(self, source: int, cut: int) -> None:
        log, messages = self.streams[source].log, list[Message]()
        low = log.first_byte
        cut = low + cut % (log.tail_byte - low + 1)
        left = cut
        for message in self.messages[source]:
            if left > 0:
                messages.append(message._replace(data=message.data[:left]))
                left -= len(message.data)
        fork = self.world.fork(self.streams[source], len(messages), cut)
        self.streams.append(fork)
        self.messages.append(messages)

    def append(self, index: int, batch: list[tuple[bytes, int, bytes | None]]) -> None:
        """Times grow by what each message says."""
        messages = self.messages[index]
        time_ms = messages[-1].time_ms if messages else NOW_MS
        added = []
        for data, later_ms, key in batch:
            time_ms += later_ms
            added.append(Message(data, time_ms, key))
        if added:
            add(self.streams[index], *added)
            messages += added

    def trim(self, index: int, ordinal: int) -> None:
        """As far as it is published, as retention does; a stream with forks keeps the rest."""
        log = self.streams[index].log
        ordinal = min(log.first_ordinal + ordinal, log.cold_ordinal)
        if ordinal >= log.own_ordinal and ordinal > log.first_ordinal:
            byte = sum(len(message.data) for message in self.messages[index][:ordinal])
            log.trim(Position(ordinal, byte))
            if not self.streams[index].forks:
                log.drop(byte)
                stream_id = self.streams[index].stream_id
                kept = [
                    each
                    for each in self.world.runs.of.get(stream_id, [])
                    if each[1].end_ordinal > ordinal
                ]
                self.world.runs.of[stream_id] = kept

    def compact(self, index: int) -> None:
        stream_id = self.streams[index].stream_id
        if len(self.world.runs.of.get(stream_id, [])) > 1:
            self.world.runs.of[stream_id] = compacted(self.world, self.streams[index])

    def forget(self, index: int) -> None:
        """As if an older version had flushed it."""
        unknown = {"first_ms": 0, "last_ms": 0, "keys": UNKNOWN_KEYS}
        runs = self.world.runs.of.get(self.streams[index].stream_id, [])
        runs[:] = [(segment, replace(run, **unknown)) for segment, run in runs]


keys = st.none() | st.sampled_from([b"a", b"b", b"", b"c" * 30])
batches = st.lists(
    st.tuples(st.binary(min_size=1, max_size=9), st.sampled_from([0, 0, 1, 5]), keys), max_size=6
)
number = st.integers(0, 9)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), number, batches),
        st.tuples(st.just("append"), number, batches),
        st.tuples(st.just("fork"), number, st.integers(0, 200)),
        st.tuples(st.just("publish"), number, st.integers(1, 5)),
        st.tuples(st.just("freeze"), number, st.integers(1, 5)),
        st.tuples(st.just("freeze"), number, st.integers(1, 5)),
        st.tuples(st.just("checkpoint"), number, st.none()),
        st.tuples(st.just("drop"), number, st.integers(1, 8)),
        st.tuples(st.just("trim"), number, st.integers(1, 5)),
        st.tuples(st.just("compact"), number, st.none()),
        st.tuples(st.just("forget"), number, st.none()),
    ),
    max_size=30,
)
looks = st.lists(
    st.tuples(number, keys, st.integers(0, 60), st.integers(1, 40), st.integers(1, 6)),
    min_size=1,
    max_size=6,
)


@settings(brief, max_examples=150)
@given(steps, looks, st.sampled_from([1, 2, 1024]))
def test_keys_and_moments_are_those_of_a_plain_scan(
    steps: list[tuple[str, int, object]],
    looks: list[tuple[int, bytes | None, int, int, int]],
    runs_max: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookups_module, "LOOKUP_RUNS_MAX", runs_max)
        world = ColdWorld(Path(folder))
        model = Model(world)
        model.create()
        model.append(0, [(b"one", 0, b"a"), (b"three", 1, None), (b"fourteen", 2, b"a")])
        for name, which, value in steps:
            index = which % len(model.streams)
            stream = model.streams[index]
            match name:
                case "checkpoint":
                    world.checkpoint(stream)
                case "publish" | "freeze" | "drop":
                    getattr(world, name)(stream, value)
                case "compact" | "forget":
                    getattr(model, name)(index)
                case _:
                    getattr(model, name)(index, value)
        try:
            asyncio.run(check(model, looks))
        finally:
            world.close()


async def check(model: Model, looks: list[tuple[int, bytes | None, int, int, int]]) -> None:
    model.world.cold_reads.start(asyncio.get_running_loop())
    lookups = Lookups(model.world.cold_reads)
    for which, key, place, bytes_max, messages_max in looks:
        index = which % len(model.streams)
        stream, messages = model.streams[index], model.messages[index]
        bounds = [0, *accumulate(len(message.data) for message in messages)]
        first = stream.log.first_ordinal
        since_ms = NOW_MS + place - 1
        sought = sum(message.time_ms < since_ms for message in messages)
        sought = max(first, sought)
        assert await lookups.seek(stream, since_ms) == (sought, bounds[sought])
        ordinal = first + place % (len(messages) - first + 1)
        expected = [
            Entry(n, m.time_ms, m.key, m.data)
            for n, m in enumerate(messages)
            if n >= ordinal and m.key == (key or b"a")
        ]
        found, at = list[Entry](), Position(ordinal, bounds[ordinal])
        while at.ordinal < len(messages):
            page = await lookups.page_of_key(stream, key or b"a", at, bytes_max, messages_max)
            assert page.end.ordinal > at.ordinal
            assert page.end.byte == bounds[page.end.ordinal]
            assert len(page.entries) <= messages_max
            size = sum(len(entry.data) for entry in page.entries)
            assert size <= bytes_max or len(page.entries) == 1
            found, at = found + page.entries, page.end
        assert found == expected


def test_filters_of_runs_without_keys_are_empty(world: ColdWorld) -> None:
    stream = world.create()
    world.append(stream, b"one", b"two")
    world.freeze(stream, 1)
    assert [run.keys for _, run in world.runs.of[1]] == [NO_KEYS] * 2
