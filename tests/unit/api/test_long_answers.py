from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.api import long_answers
from millstream.api.long_answers import LongAnswers
from millstream.faults import Faults
from millstream.protocol.offsets import Offset, Position
from millstream.state.log import Log
from millstream.state.stream import Stream
from tests.unit.api.fake_body import FakeBody
from tests.unit.cold.cold_world import ColdWorld
from tests.unit.effort import briefer

WAITS_MAX = 2000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ColdWorld]:
    world = ColdWorld(tmp_path)
    yield world
    world.close()


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few hundred bytes are a long answer."""
    monkeypatch.setattr(long_answers, "ANSWER_PIECE_BYTES_MIN", 16)
    monkeypatch.setattr(long_answers, "ANSWER_PIECE_BYTES_MAX", 64)
    monkeypatch.setattr(long_answers, "ANSWER_UNSENT_BYTES", 1024)
    monkeypatch.setattr(long_answers, "ANSWER_FIRST_BYTES", 50)
    monkeypatch.setattr(long_answers, "ANSWER_WINDOW_BYTES", 100)
    monkeypatch.setattr(long_answers, "ANSWER_WINDOWS_BYTES", 2000)


class Reading:
    """Long answers of one world, and the bodies they are written to."""

    def __init__(self, world: ColdWorld) -> None:
        self.world = world
        world.cold_reads.start(asyncio.get_running_loop())
        self.faults = Faults()
        self.renewed: list[Stream] = []
        self.answers = LongAnswers(world, world.cold_reads, self.faults, self.renewed.append)

    async def begin(self, stream: Stream, byte: int = 0, *, is_slow: bool = True) -> FakeBody:
        """An answer from a byte to the tail as it is now."""
        body = FakeBody(is_slow=is_slow)
        place = Offset(None, byte)
        window = self.world.cold_reads.in_memory(stream, place, 100)
        if window is None:
            window = await self.world.loaded(stream, place, 100)
        self.answers.begin(body.stream, stream, byte, stream.log.tail_byte, window)
        return body

    async def settle(self, body: FakeBody) -> None:
        """Until the answer waits for its client, or is over."""
        for wait in range(WAITS_MAX):
            if body.ended or body.is_blocked:
                return
            await asyncio.sleep(0 if wait < 20 else 0.001)
        raise AssertionError("the answer does not go on")

    async def read_all(self, body: FakeBody) -> bytes:
        while not body.ended:
            await self.settle(body)
            body.drain()
        return body.content


def reading(world: ColdWorld, story: Callable[[Reading], Awaitable[None]]) -> None:
    async def tell() -> None:
        told = Reading(world)
        await story(told)
        assert sum(told.faults.counts.values()) == 0
        assert (told.answers.held_bytes, told.answers.unsent_bytes) == (0, 0)

    asyncio.run(tell())


def filled(world: ColdWorld, count: int = 100, content_type: bytes = b"text/plain") -> Stream:
    stream = world.create(content_type)
    comma = b"," if stream.is_json else b""
    world.append(stream, *[b"%09d" % number + comma for number in range(count)])
    return stream


def content_of(stream: Stream) -> bytes:
    """While all of it is in memory."""
    return b"".join(stream.log.slices(0, stream.log.tail_byte))


def test_an_answer_comes_in_bounded_pieces(world: ColdWorld) -> None:
    async def story(told: Reading) -> None:
        stream = filled(world)
        body = await told.begin(stream)
        assert await told.read_all(body) == content_of(stream)
        assert max(sum(map(len, parts)) for parts in body.pieces) <= 64
        assert body.is_whole

    reading(world, story)


@pytest.mark.parametrize("messages_per_run", [1, 7, None])
def test_what_is_cold_comes_from_windows(world: ColdWorld, messages_per_run: int | None) -> None:
    async def story(told: Reading) -> None:
        stream = filled(world)
        expected = content_of(stream)
        world.freeze(stream, messages_per_run)
        for byte in (0, 5, 449):
            assert await told.read_all(await told.begin(stream, byte)) == expected[byte:]

    reading(world, story)


def test_an_array_has_its_brackets_and_no_comma_at_its_end(world: ColdWorld) -> None:
    async def story(told: Reading) -> None:
        stream = filled(world, content_type=b"application/json")
        expected = b"[" + content_of(stream)[:-1] + b"]"
        assert await told.read_all(await told.begin(stream)) == expected
        world.freeze(stream, 9)
        assert await told.read_all(await told.begin(stream)) == expected

    reading(world, story)


def test_what_goes_cold_under_a_slow_reader_is_loaded(world: ColdWorld) -> None:
    async def story(told: Reading) -> None:
        stream = filled(world)
        expected = content_of(stream)
        body = await told.begin(stream)
        await told.settle(body)
        world.freeze(stream, 3)
        world.append(stream, b"not in this answer")
        assert await told.read_all(body) == expected

    reading(world, story)


def test_a_fork_shows_what_it_inherited(world: ColdWorld) -> None:
    async def story(told: Reading) -> None:
        source = filled(world)
        expected = content_of(source)[:400] + b"own" * 50
        fork = world.fork(source, 45, 400)
        world.append(fork, b"own" * 50)
        assert await told.read_all(await told.begin(fork)) == expected
        world.freeze(source, 4)
        world.freeze(fork)
        assert await told.read_all(await told.begin(fork)) == expected

    reading(world, story)


@pytest.mark.parametrize("is_cold", [False, True])
def test_a_stream_that_is_deleted_or_trimmed_ends_its_readers_visibly(
    world: ColdWorld, is_cold: bool
) -> None:
    async def story(told: Reading) -> None:
        deleted, trimmed, gone = filled(world), filled(world), filled(world)
        bodies = []
        for stream in (deleted, trimmed, gone):
            if is_cold:
                world.freeze(stream, 5)
            bodies.append(await told.begin(stream))
            await told.settle(bodies[-1])
        deleted.deleted = True
        trimmed.log.trim(Position(50, 450))
        del world.streams[gone.stream_id]
        for body in bodies:
            before = len(body.content)
            body.drain()
            await told.settle(body)
            assert body.was_aborted
            assert len(body.content) == before

    reading(world, story)


def test_a_stream_lives_as_long_as_somebody_reads_it(world: ColdWorld) -> None:
    async def story(told: Reading) -> None:
        lasting, mortal = filled(world), filled(world)
        mortal.ttl_ms = 1000
        for stream in (lasting, mortal):
            await told.read_all(await told.begin(stream))
        assert len(told.renewed) > 2
        assert set(told.renewed) == {mortal}

    reading(world, story)


def test_a_trim_behind_a_reader_does_not_harm_it(world: ColdWorld) -> None:
    async def story(told: Reading) -> None:
        stream = filled(world)
        expected = content_of(stream)
        body = await told.begin(stream, 450)
        await told.settle(body)
        stream.log.trim(Position(50, 450))
        assert await told.read_all(body) == expected[450:]

    reading(world, story)


def test_content_that_cannot_be_read_ends_the_answer_visibly(world: ColdWorld) -> None:
    async def story(told: Reading) -> None:
        stream = filled(world)
        expected = content_of(stream)
        world.freeze(stream, 20)
        segment, _ = world.runs.of[stream.stream_id][-1]
        world.store.delete([segment.name])
        body = await told.begin(stream)
        content = await told.read_all(body)
        assert body.was_aborted
        assert expected[:-180].startswith(content)
        assert len(content) >= 180

    reading(world, story)


def test_a_reader_that_leaves_leaves_nothing_behind(world: ColdWorld) -> None:
    async def story(told: Reading) -> None:
        stream = filled(world)
        world.freeze(stream, 5)
        bodies = [await told.begin(stream, byte) for byte in range(0, 450, 9)]
        for _ in range(3):
            await asyncio.sleep(0)
        assert told.answers.held_bytes > 0
        for body in bodies:
            body.leave()
        async with asyncio.timeout(20):  # what was being loaded for them comes and goes
            while told.answers.held_bytes or told.answers.unsent_bytes:
                await asyncio.sleep(0.001)
        assert await told.read_all(await told.begin(stream)) != b""  # loads are not used up

    reading(world, story)


def test_slow_readers_hold_little_together_and_all_get_everything(world: ColdWorld) -> None:
    async def story(told: Reading) -> None:
        stream = filled(world, 250)
        expected = content_of(stream)
        world.freeze(stream, 5)
        places = list(range(0, 1800, 45))
        bodies = [await told.begin(stream, byte) for byte in places]
        for body in bodies:
            await told.settle(body)
        # Far less than a window each.
        assert told.answers.held_bytes <= 2000
        assert told.answers.unsent_bytes <= 1024 + 16 * len(bodies)
        assert max(map(len, bodies[-1].pieces[-1])) <= 16
        for byte, body in zip(places, bodies, strict=True):
            assert await told.read_all(body) == expected[byte:]

    reading(world, story)


def test_a_fast_reader_does_not_keep_the_loop(
    world: ColdWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_answers, "ANSWER_TURN_BYTES", 128)

    async def story(told: Reading) -> None:
        stream = filled(world)
        body = await told.begin(stream, is_slow=False)
        most = 0
        while not body.ended:
            before = len(body.content)
            await asyncio.sleep(0)
            most = max(most, len(body.content) - before)
        assert body.content == content_of(stream)
        assert 0 < most <= 128 + 64

    reading(world, story)


def test_too_many_cold_reads_elsewhere_make_an_answer_wait_not_fail(
    world: ColdWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_answers, "_RETRY_SECONDS", 0.001)
    wanted: list[object] = []
    want = LongAnswers.want

    def count(self: LongAnswers, answer: Any) -> None:
        wanted.append(answer)
        want(self, answer)

    monkeypatch.setattr(LongAnswers, "want", count)

    async def story(told: Reading) -> None:
        stream = filled(world)
        expected = content_of(stream)
        world.freeze(stream, 5)
        body = await told.begin(stream)
        await told.settle(body)
        world.cold_reads.loading += 1000
        while body.is_blocked:  # what was loaded ahead
            body.drain()
            await asyncio.sleep(0.001)
        wanted.clear()
        async with asyncio.timeout(20):
            while len(wanted) < 5:  # it asks again and again
                await asyncio.sleep(0.001)
        assert not body.ended
        world.cold_reads.loading -= 1000
        assert await told.read_all(body) == expected

    reading(world, story)


def test_an_unexpected_error_is_heard_and_ends_its_answer_alone(world: ColdWorld) -> None:
    async def tell() -> None:
        told = Reading(world)
        good, bad = filled(world), filled(world)
        bodies = [await told.begin(bad), await told.begin(good)]
        bad.log = None  # type: ignore[assignment]
        assert await told.read_all(bodies[1]) == content_of(good)
        await told.read_all(bodies[0])
        assert bodies[0].was_aborted
        assert told.faults.counts["read"] == 1

    asyncio.run(tell())


def test_a_small_part_of_a_large_block_is_copied(world: ColdWorld) -> None:
    async def story(told: Reading) -> None:
        stream = world.create()
        world.append(stream, b"x" * 10_000)
        body = await told.begin(stream)
        await told.settle(body)
        assert [type(part) for part in body.pieces[0]] == [bytes]
        body.leave()

    reading(world, story)


@briefer
@given(seed=st.integers(0, 2**32 - 1))
def test_whatever_happens_an_answer_is_right_or_visibly_cut(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Streams freeze, grow, are trimmed and deleted while clients read at their own pace."""
    dice = random.Random(seed)
    world = ColdWorld(tmp_path_factory.mktemp("cold"))

    async def story(told: Reading) -> None:
        streams = [filled(world, dice.randrange(1, 60)) for _ in range(3)]
        expected = {stream.stream_id: content_of(stream) for stream in streams}
        fork = world.fork(streams[0], streams[0].log.tail_ordinal, streams[0].log.tail_byte)
        world.append(fork, b"own")
        streams.append(fork)
        expected[fork.stream_id] = expected[streams[0].stream_id] + b"own"
        harmed: set[int] = set()
        readers = []
        for _ in range(6):
            stream = dice.choice(streams)
            byte = dice.randrange(stream.log.tail_byte)
            body = await told.begin(stream, byte, is_slow=dice.random() < 0.7)
            readers.append((stream, byte, body))
        for _ in range(30):
            happening(dice, world, dice.choice(streams), harmed)
            body = dice.choice(readers)[2]
            body.drain()
            await asyncio.sleep(0)
        for stream, byte, body in readers:
            content = await told.read_all(body)
            whole = expected[stream.stream_id][byte:]
            assert whole.startswith(content)
            assert body.is_whole == (content == whole)
            assert body.is_whole or stream.stream_id in harmed

    reading(world, story)
    world.close()


def happening(dice: random.Random, world: ColdWorld, stream: Stream, harmed: set[int]) -> None:
    chance = dice.random()
    if chance < 0.3 and not stream.deleted:
        world.freeze(stream, dice.randrange(8, 40))
    elif chance < 0.5:
        world.append(stream, b"later" * dice.randrange(1, 5))
    elif chance < 0.55 and stream.log.tail_ordinal > stream.log.held_ordinal:
        log: Log = stream.log
        ordinal = dice.randrange(log.held_ordinal, log.tail_ordinal)
        log.trim(Position(ordinal, log.byte_at(ordinal)))
        harmed.add(stream.stream_id)
    elif chance < 0.57:
        stream.deleted = True
        harmed.add(stream.stream_id)
