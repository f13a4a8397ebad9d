"""Random histories of flushes, trims, deletions, forks and swaps, as plain lists of commands.

Everything that is prepared while others go on (a flush, a compaction) is submitted now, later, or
twice, when what it saw may be trimmed, gone, or replaced by somebody else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from millstream.formats.images import HotContent
from millstream.formats.runs import Run, Segment
from millstream.recover import _add_hot
from millstream.state.commands import (
    AnyCommand,
    Append,
    CreateStream,
    DeleteStream,
    ExpireStream,
    NoOp,
    PublishRuns,
    PublishSnapshot,
    ReplaceSegments,
    TrimStream,
)
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Outcome
from millstream.state.records import SWAPS, restore_records, take_records
from millstream.state.stream import Stream
from millstream.state.swaps import count_swaps
from millstream.tier.catalog import Catalog
from millstream.tier.catalog_store import CatalogStore

SHARDS = 2
_KINDS = ["create"] * 2 + ["append"] * 6 + ["flush"] * 6 + ["end", "trim"] + ["swap"] * 3
STORE = "5a" * 16


class Store:
    """A state machine over a real catalog: checkpoints, evictions and restarts come when told."""

    def __init__(self, folder: Path) -> None:
        self.catalog = Catalog.open(folder, SHARDS, STORE)
        self.machine = StateMachine(SHARDS, CatalogStore(self.catalog))
        self.answers: list[str] = []
        self._journal: list[AnyCommand] = []
        self._hot: list[HotContent] = []

    def apply(self, command: AnyCommand) -> str:
        """The answer, in words."""
        self._journal.append(command)
        self.answers.append(_words(self.machine.apply(command)))
        return self.answers[-1]

    def checkpoint(self) -> None:
        if self.catalog.lsn == len(self._journal):
            self.apply(NoOp(0))
        changes = self.machine.changes
        capture = changes.begin_capture(len(self._journal), take_records(self.machine))
        capture.take_some(10**6)
        changes.end_capture(capture)
        merged, self._hot = capture.encode()
        self.catalog.merge(merged)
        changes.settle(capture)

    def evict(self) -> None:
        for stream in list(self.machine.by_id.values()):
            if self.machine.changes.is_stored(stream):
                self.machine.residents.evict(stream)

    def restart(self) -> None:
        """Replay must give the answers that were given."""
        self.machine = StateMachine(SHARDS, CatalogStore(self.catalog))
        restore_records(self.machine, self.catalog.records(""))
        for content in self._hot:
            _add_hot(self.machine, self.catalog, content)
        for number in range(self.catalog.lsn, len(self._journal)):
            assert _words(self.machine.apply(self._journal[number])) == self.answers[number]

    def all(self) -> object:
        """All that anybody can see or that somebody will delete, once the catalog has it."""
        self.checkpoint()
        problem = self.catalog.verify().problem
        assert problem is None, problem
        uses = {use.segment.name: use for use in self.catalog.segments()}
        return (
            sorted(self.catalog.live_runs(sorted(uses)), key=str),
            sorted(uses.values(), key=str),
            sorted(garbage.name for garbage in self.catalog.garbage()),
            sorted((d.use.segment.name, d.dead_rows) for d in self.catalog.decayed()),
            list(self.catalog.stream_rows()),
            dict(self.catalog.records("")),
        )


def _words(outcome: Outcome) -> str:
    return f"{type(outcome).__name__} {outcome}"


class Director:
    """Writes a history while it plays it once, with a checkpoint whenever it needs to look."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.store = Store(folder)
        self.commands: list[AnyCommand] = []
        self.answers: list[str] = []
        self._random = random
        self._prepared: list[AnyCommand] = []
        self._names = 0
        self._now_ms = 1_000_000

    def play(self, steps: int) -> list[AnyCommand]:
        for _ in range(steps):
            self._now_ms += self._random.choice([1] * 9 + [3_000])
            for command in self._next():
                self.commands.append(command)
                self.answers.append(self.store.apply(command))
        return self.commands

    def _next(self) -> Iterator[AnyCommand]:
        random, streams = self._random, list(self.store.machine.by_id.values())
        what = random.choice(_KINDS)
        if self._prepared and random.random() < 0.2:
            prepared = random.choice(self._prepared)
            if random.random() < 0.8:  # else it comes again
                self._prepared.remove(prepared)
            yield prepared
        elif what == "create" or not streams:
            yield self._create(streams)
        elif what == "append":
            stream = random.choice(streams)
            yield Append(self._now_ms, stream.stream_id, b"x" * random.randint(1, 9), b"", 1)
        elif what == "flush":
            yield from self._flush(streams)
        elif what == "end":
            stream = random.choice(streams)
            if random.random() < 0.5:
                yield DeleteStream(self._now_ms, stream.stream_id)
            else:
                yield ExpireStream(self._now_ms, stream.stream_id)
        elif what == "trim":
            yield self._trim(random.choice(streams))
        else:
            yield from self._swap()

    def _create(self, streams: list[Stream]) -> CreateStream:
        path = b"b/%d" % self._random.randint(0, 5)
        source = self._random.choice([*streams, *[None] * 9])
        return CreateStream(
            self._now_ms,
            path,
            b"text/plain",
            ttl_ms=self._random.choice([None] * 5 + [9_000]),
            fork_from=None if source is None else source.path,
        )

    def _flush(self, streams: list[Stream]) -> Iterator[AnyCommand]:
        shard, runs = self._random.randrange(SHARDS), list[Run]()
        for stream in sorted(streams, key=lambda stream: stream.stream_id):
            log = stream.log
            is_hot = stream.stream_id % SHARDS == shard and log.cold_ordinal < log.tail_ordinal
            if is_hot and self._random.random() < 0.6:
                end = self._random.randint(log.cold_ordinal + 1, log.tail_ordinal)
                count, size = end - log.cold_ordinal, log.byte_at(end) - log.cold_byte
                place = (log.cold_ordinal, log.cold_byte, count, size)
                runs.append(Run(stream.stream_id, *place, 0, len(runs), 7))
        if runs:
            publish = PublishRuns(self._now_ms, self._segment(shard, runs), runs)
            if self._random.random() < 0.8:
                yield publish
            else:
                self._prepared.append(publish)

    def _segment(self, shard: int, runs: list[Run]) -> Segment:
        self._names += 1
        name = f"segments/{shard:04d}/{self._names:013d}-00.parquet"
        return Segment(name, shard, 100, 10, sum(run.count for run in runs), self._now_ms)

    def _trim(self, stream: Stream) -> AnyCommand:
        log = stream.log
        places = [log.tail_ordinal, self._random.randint(log.held_ordinal, log.tail_ordinal)]
        ordinal = self._random.choice(places)
        byte = log.byte_at(ordinal)
        if self._random.random() < 0.8:
            return TrimStream(self._now_ms, stream.stream_id, ordinal, byte)
        blob = f"{stream.stream_id}-{ordinal}-aa"
        return PublishSnapshot(
            self._now_ms, stream.stream_id, ordinal, byte, blob, b"text/plain", 1, "00"
        )

    def _swap(self) -> Iterator[AnyCommand]:
        """What a job sees is the catalog, which may be behind; while it works, something dies."""
        if self._random.random() < 0.7:
            self.store.checkpoint()
        catalog, shard = self.store.catalog, self._random.randrange(SHARDS)
        seen = count_swaps(catalog.record(SWAPS))
        names = [use.segment.name for use in catalog.segments(shard)]
        old = [name for name in names if self._random.random() < 0.7]
        if old:
            runs = list(_joined([run for _, run in catalog.live_runs(old)]))
            cut = self._random.randint(0, len(runs))
            parts = [part for part in (runs[:cut], runs[cut:]) if part]
            segments = [self._segment(shard, part) for part in parts]
            swap = ReplaceSegments(self._now_ms, shard, old, segments, parts, seen)
            for run in self._random.sample(runs, self._random.randint(0, min(2, len(runs)))):
                if self._random.random() < 0.5:
                    yield DeleteStream(self._now_ms, run.stream_id)
                else:
                    place = (run.end_ordinal, run.end_byte)
                    yield TrimStream(self._now_ms, run.stream_id, *place)
            if self._random.random() < 0.5:
                yield swap
            else:
                self._prepared.append(swap)


def _joined(runs: list[Run]) -> Iterator[Run]:
    """Neighbours become one run, as in a rewritten segment."""
    last: Run | None = None
    for run in runs:
        if last and (last.stream_id, last.end_ordinal) == (run.stream_id, run.first_ordinal):
            count, size = last.count + run.count, last.size + run.size
            last = Run(last.stream_id, last.first_ordinal, last.first_byte, count, size, 0, 0, 1)
            continue
        if last:
            yield last
        last = run
    if last:
        yield last
