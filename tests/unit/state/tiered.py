"""A state machine whose streams come and go: checkpoints piece by piece, eviction, restarts.

What the engine and recover.py do with threads and files happens here one small step at a time, so
that anything may come between any two of them.
"""

from __future__ import annotations

from enum import IntEnum, auto
from itertools import pairwise

from millstream.formats.changes import Changes
from millstream.formats.images import HotContent
from millstream.state.changes import Capture
from millstream.state.commands import AnyCommand, NoOp
from millstream.state.images import restore_hot, restore_stream
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Outcome
from millstream.state.records import restore_records, take_records
from tests.support.memory_store import MemoryStore
from tests.unit.state.content import Contents, Objects


class Stage(IntEnum):
    """How far a checkpoint got."""

    IDLE = auto()
    TAKING = auto()  # streams are taken, a few at a time
    TAKEN = auto()
    STORED = auto()  # the checkpoint file is there
    MERGING = auto()  # some parts of the store have it
    MERGED = auto()


class Tiered:
    def __init__(self, shards: int = 1, objects: Objects | None = None) -> None:
        self.store = MemoryStore(shards)
        self.machine = StateMachine(shards, self.store)
        self.objects: Objects = {} if objects is None else objects
        self.lsn = 0
        self.stage = Stage.IDLE
        self._journal: list[AnyCommand] = []
        self._capture: Capture | None = None
        self._file: tuple[Changes, list[HotContent]] | None = None

    @property
    def contents(self) -> Contents:
        return Contents(self.machine, self.store, self.objects)

    def apply(self, command: AnyCommand) -> Outcome:
        self.lsn += 1
        self._journal.append(command)
        return self.machine.apply(command)

    # A checkpoint

    def advance(self) -> None:
        """The next step of a checkpoint, the first one of the next if there is none."""
        changes = self.machine.changes
        if self._capture is None:
            if self.lsn:
                self._capture = changes.begin_capture(self.lsn, take_records(self.machine))
                self.stage = Stage.TAKING
        elif self.stage is Stage.TAKING:
            self.take(len(self._capture.pending))
            changes.end_capture(self._capture)
            self.stage = Stage.TAKEN
        elif self.stage is Stage.TAKEN:
            self._file = self._capture.encode()
            self.stage = Stage.STORED
        elif self.stage < Stage.MERGED:
            assert self._file is not None
            self.stage = Stage(self.stage + 1)
            self.store.merge(self._file[0], 1 if self.stage is Stage.MERGING else None)
        else:
            changes.settle(self._capture)
            self._capture, self.stage = None, Stage.IDLE

    def take(self, count: int) -> None:
        if self._capture is not None and self.stage is Stage.TAKING:
            self._capture.take_some(count)

    def checkpoint(self) -> None:
        """A whole one, after the one that is under way."""
        while self.stage is not Stage.IDLE:
            self.advance()
        self.advance()
        while self.stage is not Stage.IDLE:
            self.advance()

    # Memory

    def evict(self, every: int = 1) -> int:
        """Every so manyth stream that the store has as it is leaves memory; how many did."""
        rested = [s for s in self.machine.by_id.values() if self.machine.changes.is_stored(s)]
        for stream in rested[::every]:
            stream.log.drop(stream.log.tail_byte)
            self.machine.residents.evict(stream)
        return len(rested[::every])

    def drop(self, every: int = 1) -> None:
        """Every so manyth stream lets go of what it has published."""
        for stream in list(self.machine.by_id.values())[::every]:
            stream.log.drop(stream.log.cold_byte)

    def wake_all(self) -> None:
        """Everybody comes back into memory."""
        for row in list(self.store.rows()):
            self.machine.find_by_id(row.stream_id)

    def restart(self) -> None:
        """Memory is lost. The newest checkpoint file, the store and the journal are not."""
        lsn, hot = 0, list[HotContent]()
        if self._file is not None:
            changes, hot = self._file
            self.store.merge(changes)
            lsn = changes.lsn
        self._capture, self.stage = None, Stage.IDLE
        self.machine = StateMachine(self.store.shards, self.store)
        restore_records(self.machine, self.store.records())
        for content in hot:
            image = self.store.find_by_id(content.stream_id)
            assert image is not None
            stream, missing_bytes = restore_stream(image)
            restore_hot(stream.log, content)
            assert stream.log.tail_byte - stream.log.cold_byte == missing_bytes
            self.machine.residents.add(stream)
            self.machine.changes.adopt_hot(stream)
        for command in self._journal[lsn:]:
            self.machine.apply(command)

    def check(self) -> None:
        """What must hold at any moment."""
        changes, shards = self.machine.changes, self.store.shards
        hot_bytes = [0] * shards
        for stream_id, stream in self.machine.by_id.items():
            hot_bytes[stream_id % shards] += stream.log.tail_byte - stream.log.cold_byte
        assert changes.hot_bytes == hot_bytes
        for shard in range(shards):
            hot = [i for i, s in self.machine.by_id.items() if s.log.tail_byte > s.log.cold_byte]
            expected = sorted(i for i in hot if i % shards == shard)
            assert [stream.stream_id for stream in changes.hot_streams(shard)] == expected
        if self.stage is not Stage.MERGING:
            self.check_store()

    def check_store(self) -> None:
        """The runs of a stream follow each other and end where its cold content ends."""
        for row in self.store.rows():
            stream = restore_stream(row.image).stream
            log = stream.log
            runs = [run for _, run in self.store.runs_of(row.stream_id)]
            for run, following in pairwise(runs):
                assert (following.first_ordinal, following.first_byte) == (
                    run.end_ordinal,
                    run.end_byte,
                )
            if runs:
                assert stream.forks or runs[0].end_ordinal > log.first_ordinal, "trimmed in vain"
                assert (runs[-1].end_ordinal, runs[-1].end_byte) == (
                    log.cold_ordinal,
                    log.cold_byte,
                )
            else:
                # In no run, so nobody is shown it: trimmed, perhaps less far than the stream is now
                # because a fork still shows the rest.
                assert log.cold_byte == log.own_byte or log.cold_byte <= log.first_byte


def restarted(machine: StateMachine) -> StateMachine:
    """The same state in another machine, all of it in memory, by way of a first checkpoint."""
    assert machine.changes.epoch == 1
    tiered = Tiered(machine.shards)
    tiered.machine = machine
    tiered.apply(NoOp(0))
    while tiered.stage < Stage.STORED:
        tiered.advance()
    tiered.restart()
    tiered.wake_all()
    return tiered.machine
