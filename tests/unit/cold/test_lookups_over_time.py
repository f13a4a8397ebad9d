"""Keys and moments through the lives of streams: a real catalog, flushes, rewrites, restarts."""

from __future__ import annotations

import random
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest

from millstream.cold.cold_reads import ColdReads
from millstream.cold.lookups import Entry, Lookups
from millstream.formats.runs import index_problem
from millstream.jobs.compaction import check_result, task_input
from millstream.limits import MIB
from millstream.pipeline.rewrite import Target, rewrite
from millstream.protocol.offsets import Position
from millstream.state.commands import (
    AppendEntries,
    CreateStream,
    ReplaceSegments,
    TrimStream,
)
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Done
from millstream.state.records import SWAPS, restore_records
from millstream.state.stream import Stream
from millstream.state.swaps import count_swaps
from millstream.tier.catalog_store import CatalogStore
from millstream.tier.segments import SegmentReader
from tests.support.blocks import Message, messages_of
from tests.unit.cold.cold_office import STORE_ID, ColdOffice, run
from tests.unit.state.store import ends_of

KEYS: list[bytes | None] = [None, b"", b"tenant-1", b"tenant-2", b"k" * 40]
STEPS = 70


class Written(NamedTuple):
    """What a client that wrote everything knows of a stream."""

    path: bytes
    messages: list[Message]

    def bounds(self) -> list[int]:
        return [0, *accumulate(len(message.data) for message in self.messages)]


class Story:
    def __init__(self, office: ColdOffice, seed: int) -> None:
        print(f"seed {seed}")
        self.office = office
        self.numbers = random.Random(seed)
        self.written: list[Written] = []
        self.done: list[str] = []
        self._look_into(office.machine)

    def _look_into(self, machine: StateMachine) -> None:
        self.machine = machine
        reader = SegmentReader(self.office.objects, 2 * MIB)
        self.cold_reads = ColdReads(machine, self.office.catalog, reader, 2)
        self.cold_reads.start(self.office.engine._loop)
        self.lookups = Lookups(self.cold_reads)

    def stream(self, written: Written) -> Stream:
        stream = self.machine.find(written.path)
        assert stream is not None
        return stream

    async def create(self) -> None:
        path = b"b/%d" % len(self.written)
        await self.office.create(path)
        self.written.append(Written(path, []))

    async def append(self) -> None:
        written, numbers = numbers_choice(self.numbers, self.written), self.numbers
        stream, count = self.stream(written), numbers.randint(1, 9)
        datas = tuple(numbers.randbytes(numbers.randint(1, 30)) for _ in range(count))
        self.office.clock.advance(numbers.choice([0, 0, 1, 50]))
        now_ms = self.office.clock.now_ms()
        content = (b"".join(datas), ends_of(datas), count)
        command = AppendEntries(now_ms, stream.stream_id, *content)
        each = tuple(numbers.choice(KEYS) for _ in datas)
        command.keys = numbers.choice([None, b"tenant-1", each])
        command.hint_ms = numbers.choice([None, None, now_ms - 20, now_ms + 20, 0])
        assert await self.office.submit(command) is Done.APPENDED
        last = [m for block in stream.log.blocks[-count:] for m in messages_of(block)][-count:]
        assert [message.data for message in last] == list(datas)
        written.messages.extend(last)

    async def fork(self) -> None:
        source = numbers_choice(self.numbers, self.written)
        stream, bounds = self.stream(source), source.bounds()
        ordinal = self.numbers.randint(stream.log.first_ordinal, len(source.messages))
        inside = 0
        if ordinal < len(source.messages) and self.numbers.random() < 0.5:
            inside = self.numbers.randint(0, len(source.messages[ordinal].data))
        cut = Position(ordinal + (inside > 0), bounds[ordinal] + inside)
        path = b"b/%d" % len(self.written)
        command = CreateStream(
            self.office.clock.now_ms(),
            path,
            b"text/plain",
            lifetime_given=False,
            fork_from=source.path,
            fork_ordinal=ordinal,
            fork_sub_offset=inside,
            fork_place=(stream.stream_id, ordinal, bounds[ordinal], *cut),
        )
        assert await self.office.submit(command) is Done.CREATED
        inherited = source.messages[: cut.ordinal]
        if inside:
            inherited[-1] = inherited[-1]._replace(data=inherited[-1].data[:inside])
        self.written.append(Written(path, inherited))

    async def flush(self) -> None:
        await self.office.flush()

    async def flush_some(self) -> None:
        stream = self.stream(numbers_choice(self.numbers, self.written))
        await self.office.flusher.flush_stream(stream, self.numbers.randint(1, 60))

    async def checkpoint(self) -> None:
        await self.office.checkpoint()

    async def drop(self) -> None:
        for stream in self.office.machine.by_id.values():
            if self.numbers.random() < 0.7:
                stream.log.drop(stream.log.cold_byte)

    async def evict(self) -> None:
        machine = self.office.machine
        for stream in list(machine.by_id.values()):
            if machine.changes.is_stored(stream):
                stream.log.drop(stream.log.tail_byte)
                machine.residents.evict(stream)

    async def trim(self) -> None:
        written = numbers_choice(self.numbers, self.written)
        log = self.stream(written).log
        ordinal = self.numbers.randint(log.first_ordinal, max(log.first_ordinal, log.cold_ordinal))
        place = (ordinal, written.bounds()[ordinal])
        now_ms = self.office.clock.now_ms()
        await self.office.submit(TrimStream(now_ms, self.stream(written).stream_id, *place))

    async def compact(self) -> None:
        """As a job does it, one task for everything."""
        catalog, objects = self.office.catalog, self.office.objects
        await self.office.checkpoint()
        seen = count_swaps(catalog.record(SWAPS))
        segments = {use.segment.name: use.segment for use in catalog.segments(0)}
        live = list(catalog.live_runs(list(segments)))
        if not live:
            return
        task = task_input(live, segments, catalog.cuts(0, list(segments)))
        result = rewrite(task, objects, Target(STORE_ID, 0, self.office.clock.now_ms(), 4096))
        check_result(task, result, shard=0, taken_names=())
        swap = ReplaceSegments(
            self.office.clock.now_ms(), 0, list(segments), result.segments, result.runs, seen
        )
        assert await self.office.submit(swap) is Done.ACCEPTED
        await self.office.checkpoint()
        objects.delete(list(segments))

    async def restart(self) -> None:
        """What a start finds in the catalog; the machine that was goes on from there as well."""
        await self.office.flush()
        await self.office.checkpoint()
        again = StateMachine(self.machine.shards, CatalogStore(self.office.catalog))
        restore_records(again, self.office.catalog.records(""))
        for machine in (again, self.office.machine):
            self.cold_reads.close()
            self._look_into(machine)
            for written in self.written:
                bounds = written.bounds()
                assert self.stream(written).log.tail == (len(written.messages), bounds[-1])
                await self.check_key(written, b"tenant-1", 0)
                await self.check_moment(written)
            await self.evict()

    async def live(self) -> None:
        kinds = [self.append] * 7 + [self.create, self.fork, self.fork, self.flush, self.flush_some]
        kinds += [self.checkpoint, self.drop, self.drop, self.evict, self.trim]
        kinds += [self.compact, self.restart]
        await self.create()
        await self.append()
        for _ in range(STEPS):
            step = self.numbers.choice(kinds)
            self.done.append(step.__name__)
            await step()
            await self.look()
        for written in self.written:
            for key in KEYS[1:]:
                await self.check_key(written, key or b"", 0)
        self.check_indexes()

    # What must hold

    async def look(self) -> None:
        written = numbers_choice(self.numbers, self.written)
        key = self.numbers.choice(KEYS) or b""
        await self.check_key(written, key, self.numbers.randint(0, len(written.messages)))
        await self.check_moment(written)

    async def check_key(self, written: Written, key: bytes, ordinal: int) -> None:
        stream, bounds = self.stream(written), written.bounds()
        ordinal = max(ordinal, stream.log.first_ordinal)
        expected = [
            Entry(number, message.time, key, message.data)
            for number, message in enumerate(written.messages)
            if number >= ordinal and message.key == key
        ]
        found, place = list[Entry](), Position(ordinal, bounds[ordinal])
        while place.ordinal < len(written.messages):
            page = await self.lookups.page_of_key(stream, key, place, 100, 3)
            assert page.end.ordinal > place.ordinal, self.done
            assert page.end.byte == bounds[page.end.ordinal], self.done
            found, place = found + page.entries, page.end
        assert found == expected, self.done

    async def check_moment(self, written: Written) -> None:
        stream, times = self.stream(written), [message.time for message in written.messages]
        assert times == sorted(times)
        since_ms = self.numbers.choice([0, *times, *(time + 1 for time in times)])
        ordinal = max(sum(time < since_ms for time in times), stream.log.first_ordinal)
        found = await self.lookups.seek(stream, since_ms)
        assert found == (ordinal, written.bounds()[ordinal]), self.done

    def check_indexes(self) -> None:
        catalog, reader = self.office.catalog, SegmentReader(self.office.objects, 0)
        assert catalog.verify().problem is None
        for use in catalog.segments():
            runs = catalog.runs_in(use.segment)
            for each, block in zip(runs, reader.load_runs(use.segment, runs), strict=True):
                assert index_problem(each, block) is None
                assert each.last_ms


def numbers_choice(numbers: random.Random, written: list[Written]) -> Written:
    """The first ones more often, so that they grow."""
    return written[min(numbers.randrange(len(written)), numbers.randrange(len(written)))]


@pytest.mark.parametrize("seed", [*range(5), None])
def test_keys_and_moments_are_found_whatever_happened_to_the_content(
    tmp_path: Path, seed: int | None
) -> None:
    async def story(office: ColdOffice) -> None:
        await office.start_all()
        told = Story(office, random.randrange(2**32) if seed is None else seed)
        try:
            await told.live()
        finally:
            told.cold_reads.close()

    run(tmp_path, story)
