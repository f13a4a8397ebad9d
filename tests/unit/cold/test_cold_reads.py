from __future__ import annotations

import asyncio
import tempfile
from array import array
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.cold import cold_reads as cold_reads_module
from millstream.errors import (
    ColdUnavailable,
    DamagedSegment,
    OffsetGone,
    Overloaded,
    StreamError,
    StreamNotFound,
)
from millstream.protocol.offsets import Offset, Position
from millstream.state.log import Log
from millstream.state.stream import Stream, resolve_in
from tests.unit.cold.cold_world import ColdWorld, bytes_of
from tests.unit.effort import brief


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ColdWorld]:
    world = ColdWorld(tmp_path, threads=1)  # so that work is done in the order it is given
    yield world
    world.close()


def numbered(count: int, size: int = 10) -> list[bytes]:
    return [b"%0*d" % (size, number) for number in range(count)]


def run_window(world: ColdWorld, stream: Stream, offset: Offset, bytes_max: int) -> Log:
    return asyncio.run(world.window(stream, offset, bytes_max))


def test_what_is_in_memory_is_read_from_the_log_itself(world: ColdWorld) -> None:
    stream = world.create()
    world.append(stream, *numbered(3))
    assert world.cold_reads.in_memory(stream, Offset(0, 0), 100) is stream.log
    assert world.cold_reads.in_memory(stream, Offset(3, 30), 100) is stream.log


def test_what_is_cold_is_not_in_memory(world: ColdWorld) -> None:
    stream = world.create()
    world.append(stream, *numbered(3))
    world.freeze(stream)
    assert world.cold_reads.in_memory(stream, Offset(0, 0), 100) is None
    assert world.cold_reads.in_memory(stream, Offset(3, 30), 100) is stream.log
    assert world.runs.queries == 0


def test_a_window_reaches_over_runs_into_what_is_held(world: ColdWorld) -> None:
    stream = world.create()
    world.append(stream, *numbered(6))
    world.publish(stream, 2)
    world.checkpoint(stream)
    world.publish(stream, 2)  # not in the catalog yet
    world.drop(stream)
    window = run_window(world, stream, Offset(1, 10), 1000)
    assert bytes_of(window) == b"".join(numbered(6))
    assert window.page_end(Position(1, 10), 25) == (3, 30)


def test_a_window_ends_when_it_has_enough(world: ColdWorld) -> None:
    stream = world.create()
    world.append(stream, *numbered(10))
    world.freeze(stream, 2)
    window = run_window(world, stream, Offset(2, 20), 25)
    assert (window.held_ordinal, window.tail_ordinal) == (2, 6)


@pytest.mark.parametrize("offset", [Offset(3, 30), Offset(None, 30), Offset(3, None)])
def test_a_place_is_found_by_either_half(world: ColdWorld, offset: Offset) -> None:
    stream = world.create()
    world.append(stream, *numbered(6))
    world.freeze(stream, 2)
    assert resolve_in(run_window(world, stream, offset, 1), offset) == (3, 30)


@pytest.mark.parametrize("offset", [Offset(3, 31), Offset(None, 31), Offset(3, 2**50)])
def test_what_is_no_boundary_is_none_in_the_window_either(world: ColdWorld, offset: Offset) -> None:
    stream = world.create()
    world.append(stream, *numbered(6))
    world.freeze(stream, 2)
    window = run_window(world, stream, offset, 1)
    assert resolve_in(window, offset) is None
    assert window.tail_byte - window.held_byte <= 20


def test_a_fork_of_hot_content_needs_no_load(world: ColdWorld) -> None:
    source = world.create()
    world.append(source, *numbered(3))
    fork = world.fork(source, 2, 15)  # through the second message
    world.append(fork, b"own")
    window = world.cold_reads.in_memory(fork, Offset(0, 0), 1000)
    assert window is not None
    assert bytes_of(window) == b"0000000000" + b"00000" + b"own"
    assert [window.byte_at(ordinal) for ordinal in range(4)] == [0, 10, 15, 18]


def test_a_fork_of_a_fork_reads_through_both(world: ColdWorld) -> None:
    source = world.create()
    world.append(source, *numbered(4))
    middle = world.fork(source, 3, 25)
    world.append(middle, b"middle")
    fork = world.fork(middle, 4, 31)
    world.append(fork, b"fork")
    for stream in (source, middle, fork):
        world.freeze(stream, 1)
    source.deleted = middle.deleted = True  # kept for their forks
    window = run_window(world, fork, Offset(0, 0), 1000)
    assert bytes_of(window) == b"".join(numbered(4))[:25] + b"middle" + b"fork"
    lower = world.fork(middle, 3, 22)  # before where the middle one begins
    assert bytes_of(run_window(world, lower, Offset(0, 0), 99)) == b"".join(numbered(4))[:22]


def test_a_run_that_is_still_held_in_part_is_not_read_twice(world: ColdWorld) -> None:
    stream = world.create()
    stream.log.append(b"".join(numbered(6)), array("I", range(10, 70, 10)), 0)  # one block
    world.publish(stream, 4)
    world.drop(stream, 2)
    window = run_window(world, stream, Offset(0, 0), 1000)
    assert bytes_of(window) == b"".join(numbered(6))


@pytest.mark.parametrize("byte", [10, 15, 20, 25])
def test_a_fork_is_cut_inside_a_run_at_a_message_or_in_one(world: ColdWorld, byte: int) -> None:
    source = world.create()
    world.append(source, *numbered(4))
    world.freeze(source)
    fork = world.fork(source, -(-byte // 10), byte)
    world.append(fork, b"own")
    window = run_window(world, fork, Offset(0, 0), 1000)
    assert bytes_of(window) == b"".join(numbered(4))[:byte] + b"own"
    assert window.tail_ordinal == fork.log.tail_ordinal


def test_a_window_of_too_many_runs_ends_early(
    world: ColdWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.cold.read_plans.WINDOW_RUNS_MAX", 5)
    stream = world.create()
    world.append(stream, *numbered(20, 3))
    world.freeze(stream, 1)
    window = run_window(world, stream, Offset(3, 9), 1000)
    assert (window.held_ordinal, window.tail_ordinal) == (3, 8)


def test_an_object_that_a_compaction_replaced_is_looked_up_again(world: ColdWorld) -> None:
    stream = world.create()
    world.append(stream, *numbered(4))
    world.freeze(stream, 2)
    ((old, _), _) = world.runs.of[1]
    replaced = world.create()
    world.append(replaced, *numbered(4))
    world.publish(replaced)
    ((segment, run),) = replaced.log.runs or []
    world.store.delete([old.name])

    class Compacting:
        def runs_from(self, stream_id: int, **place: int) -> list[tuple[object, object]]:
            world.runs.queries += 1
            if world.runs.queries == 1:
                return list(world.runs.of[1])
            return [(segment, run)]

    world.cold_reads.runs = Compacting()  # type: ignore[assignment]
    assert bytes_of(run_window(world, stream, Offset(0, 0), 99)) == b"".join(numbered(4))


def test_a_missing_object_is_damage_and_named(world: ColdWorld) -> None:
    stream = world.create()
    world.append(stream, *numbered(4))
    world.freeze(stream)
    ((segment, _),) = world.runs.of[1]
    world.store.delete([segment.name])
    with pytest.raises(DamagedSegment, match=segment.name):
        run_window(world, stream, Offset(0, 0), 99)
    stream.deleted = True
    with pytest.raises(StreamNotFound):
        run_window(world, stream, Offset(0, 0), 99)


def test_a_damaged_object_is_never_served_in_part(world: ColdWorld) -> None:
    stream = world.create()
    world.append(stream, *numbered(40))
    world.freeze(stream, 20)
    (_, (segment, _)) = world.runs.of[1]
    data = bytearray(world.store.get(segment.name))
    data[20] ^= 1
    world.store.put(segment.name, bytes(data))
    with pytest.raises(DamagedSegment, match=segment.name):
        run_window(world, stream, Offset(0, 0), 1000)
    assert bytes_of(run_window(world, stream, Offset(0, 0), 100)) == b"".join(numbered(20))


def test_content_that_was_trimmed_meanwhile_is_gone(world: ColdWorld) -> None:
    stream = world.create()
    world.append(stream, *numbered(4))
    world.freeze(stream, 2)
    stream.log.trim(Position(2, 20))
    del world.runs.of[1][0]
    with pytest.raises(OffsetGone):
        run_window(world, stream, Offset(0, 0), 99)
    assert bytes_of(run_window(world, stream, Offset(2, 20), 99)) == b"".join(numbered(4)[2:])


def test_a_store_that_is_away_is_said_so(world: ColdWorld, tmp_path: Path) -> None:
    stream = world.create()
    world.append(stream, *numbered(4))
    world.freeze(stream)
    ((segment, _),) = world.runs.of[1]
    (tmp_path / segment.name).unlink()
    (tmp_path / segment.name).mkdir()  # reading it fails, and not because it is missing
    with pytest.raises((ColdUnavailable, DamagedSegment)):
        run_window(world, stream, Offset(0, 0), 99)


def test_those_who_want_the_same_share_one_load(world: ColdWorld) -> None:
    stream = world.create()
    world.append(stream, *numbered(4))
    world.freeze(stream)

    async def read() -> list[Log]:
        return list(
            await asyncio.gather(*(world.loaded(stream, Offset(0, 0), 99) for _ in range(5)))
        )

    found = asyncio.run(read())
    assert all(window is found[0] for window in found)
    assert (world.cold_reads.loads, world.cold_reads.loading) == (1, 0)


def test_whoever_comes_after_an_append_does_not_share_a_load_from_before(
    world: ColdWorld,
) -> None:
    stream = world.create()
    world.append(stream, *numbered(4))
    world.freeze(stream)

    async def read() -> tuple[Log, Log]:
        first = asyncio.create_task(world.loaded(stream, Offset(0, 0), 99))
        await asyncio.sleep(0)
        world.append(stream, b"new")
        return await world.loaded(stream, Offset(0, 0), 99), await first

    later, first = asyncio.run(read())
    assert (later.tail_ordinal, first.tail_ordinal) == (5, 4)


def test_too_many_loads_are_refused(world: ColdWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads_module, "WINDOW_LOADS_MAX", 2)
    stream = world.create()
    world.append(stream, *numbered(4))
    world.freeze(stream)

    async def read() -> list[Log | BaseException]:
        reads = (world.loaded(stream, Offset(number, None), 99) for number in range(3))
        return list(await asyncio.gather(*reads, return_exceptions=True))

    first, second, third = asyncio.run(read())
    assert isinstance(first, Log)
    assert isinstance(second, Log)
    assert isinstance(third, Overloaded)
    assert world.cold_reads.loading == 0


def test_a_load_that_is_called_off_calls_nobody(world: ColdWorld) -> None:
    stream = world.create()
    world.append(stream, *numbered(4))
    world.freeze(stream)
    called: list[Log | StreamError] = []

    async def read() -> None:
        world.cold_reads.start(asyncio.get_running_loop())
        call_off = world.cold_reads.load(stream, Offset(0, 0), 99, called.append)
        call_off()
        await world.loaded(stream, Offset(1, 10), 99)

    asyncio.run(read())
    assert (called, world.cold_reads.loading) == ([], 0)


def test_a_stream_that_is_read_in_sequence_is_read_ahead(world: ColdWorld) -> None:
    stream = world.create()
    world.append(stream, *numbered(8))
    world.freeze(stream, 2)

    async def requests_of(ordinal: int) -> int:
        before = world.store.requests["get"]
        await world.loaded(stream, Offset(ordinal, ordinal * 10), 10)
        await asyncio.get_running_loop().run_in_executor(world.cold_reads._pool, int)
        return world.store.requests["get"] - before

    async def read() -> list[int]:
        return [await requests_of(ordinal) for ordinal in (0, 2, 4, 6)]

    first, second, *others = asyncio.run(read())
    assert first > 0
    assert second > first  # its own run and those behind it
    assert others == [0, 0]


# Against a plain model: lists of messages


class Model:
    """Streams as lists of messages, made by random steps; forks copy what they inherit."""

    def __init__(self, world: ColdWorld) -> None:
        self.world = world
        self.streams: list[Stream] = []
        self.messages: list[list[bytes]] = []

    def create(self) -> None:
        self.streams.append(self.world.create())
        self.messages.append([])

    def fork(self, source: int, cut: int) -> None:
        whole = b"".join(self.messages[source])
        cut %= len(whole) + 1
        messages, left = [], cut
        for message in self.messages[source]:
            if left > 0:
                messages.append(message[:left])
                left -= len(message)
        self.streams.append(self.world.fork(self.streams[source], len(messages), cut))
        self.messages.append(messages)

    def append(self, index: int, messages: list[bytes]) -> None:
        self.world.append(self.streams[index], *messages)
        self.messages[index] += messages


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.integers(0, 9),
            st.lists(st.binary(min_size=1, max_size=9), max_size=6),
        ),
        st.tuples(st.just("fork"), st.integers(0, 9), st.integers(0, 200)),
        st.tuples(st.just("publish"), st.integers(0, 9), st.integers(1, 5)),
        st.tuples(st.just("checkpoint"), st.integers(0, 9), st.none()),
        st.tuples(st.just("drop"), st.integers(0, 9), st.integers(1, 8)),
    ),
    max_size=30,
)
pages = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 60), st.integers(1, 40), st.integers(0, 2)),
    min_size=1,
    max_size=8,
)


@settings(brief, max_examples=120)
@given(steps, pages)
def test_pages_of_windows_are_those_of_a_plain_list(
    steps: list[tuple[str, int, object]], pages: list[tuple[int, int, int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = ColdWorld(Path(folder))
        model = Model(world)
        model.create()
        model.append(0, [b"one", b"three", b"fourteen", b"2"])
        for name, number, value in steps:
            index = number % len(model.streams)
            stream = model.streams[index]
            if name == "append":
                model.append(index, value)  # type: ignore[arg-type]
            elif name == "fork":
                model.fork(index, value)  # type: ignore[arg-type]
            elif name == "publish":
                world.publish(stream, value)  # type: ignore[arg-type]
            elif name == "checkpoint":
                world.checkpoint(stream)
            else:
                world.drop(stream, value)  # type: ignore[arg-type]
        try:
            asyncio.run(check_pages(model, pages))
        finally:
            world.close()


async def check_pages(model: Model, pages: list[tuple[int, int, int, int]]) -> None:
    for number, ordinal, bytes_max, form in pages:
        index = number % len(model.streams)
        messages = model.messages[index]
        bounds = [0, *accumulate(map(len, messages))]
        ordinal %= len(bounds)
        byte = bounds[ordinal]
        offset = (Offset(ordinal, byte), Offset(ordinal, None), Offset(None, byte))[form]
        window = await model.world.window(model.streams[index], offset, bytes_max)
        assert resolve_in(window, offset) == (ordinal, byte)
        end_ordinal, end_byte = window.page_end(Position(ordinal, byte), bytes_max)
        last = max(o for o, b in enumerate(bounds) if b <= byte + bytes_max)
        assert end_ordinal == (last if last > ordinal else min(ordinal + 1, len(messages)))
        assert end_byte == bounds[end_ordinal]
        page = b"".join(window.slices(byte, end_byte))
        assert page == b"".join(messages[ordinal:end_ordinal])
        for inside in range(max(ordinal, window.held_ordinal), window.tail_ordinal + 1):
            assert window.byte_at(inside) == bounds[inside]


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, OSError])
@pytest.mark.parametrize("step", ["runs_from", "load_runs", "new_plan", "put_together", "run"])
def test_whatever_fails_those_who_wait_are_told_and_the_next_read_works(
    world: ColdWorld, monkeypatch: pytest.MonkeyPatch, step: str, error: type[Exception]
) -> None:
    owner: object = {"runs_from": world.runs, "load_runs": world.reader}.get(step, world.cold_reads)
    stream = world.create()
    world.append(stream, *numbered(4))
    world.freeze(stream)

    def fail(*_: object, **__: object) -> None:
        raise error("injected")

    async def story() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(owner, step, fail)
            told = await asyncio.wait_for(
                asyncio.gather(
                    *(world.loaded(stream, Offset(0, 0), 99) for _ in range(3)),
                    return_exceptions=True,
                ),
                timeout=20,
            )
            assert [type(each) for each in told] == [ColdUnavailable] * 3
        assert (world.cold_reads.loading, world.cold_reads._under_way) == (0, {})
        assert bool(world.cold_reads.faults.counts["read"]) == (error is not OSError)
        assert bytes_of(await world.loaded(stream, Offset(0, 0), 99)) == b"".join(numbered(4))

    asyncio.run(story())


def test_a_reader_that_fails_and_a_read_ahead_that_fails_harm_nobody(
    world: ColdWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = world.create()
    world.append(stream, *numbered(4))
    world.freeze(stream)

    def fail(*_: object) -> None:
        raise RuntimeError("injected")

    async def story() -> None:
        monkeypatch.setattr(world.cold_reads, "read_ahead", fail)
        world.cold_reads.start(asyncio.get_running_loop())
        world.cold_reads.load(stream, Offset(0, 0), 99, fail)
        assert bytes_of(await world.loaded(stream, Offset(0, 0), 99)) == b"".join(numbered(4))
        assert world.cold_reads.faults.counts["read"] == 2

    asyncio.run(story())
