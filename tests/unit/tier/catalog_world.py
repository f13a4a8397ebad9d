"""Random histories of a catalog, and the plain dictionaries it has to agree with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from millstream.formats.key_filters import UNKNOWN_KEYS
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.formats.wal import crc32c
from millstream.tier.catalog import Catalog, Changes, Replacement, StreamRow

STORE = "5a" * 16


def open_catalog(folder: Path, shards: int = 3) -> Catalog:
    return Catalog.open(folder, shards, STORE)


def garbage_of(catalog: Catalog) -> list[tuple[str, int]]:
    return [(name, size) for name, size, _ in catalog.garbage()]


def id_for(path: bytes, number: int, shards: int) -> int:
    return number * shards + crc32c(path) % shards


@dataclass
class Model:
    """What merging means, told without SQL."""

    shards: int
    lsn: int = 0
    streams: dict[int, StreamRow] = field(default_factory=dict)
    segments: dict[str, Segment] = field(default_factory=dict)
    runs: dict[tuple[int, int], tuple[str, Run]] = field(default_factory=dict)
    garbage: dict[str, int] = field(default_factory=dict)
    records: dict[str, bytes] = field(default_factory=dict)

    def apply(self, changes: Changes) -> None:
        self.lsn = changes.lsn
        for segment, runs in zip(changes.segments, changes.runs, strict=True):
            self._add(segment, runs)
        for replacement in changes.replacements:
            self._replace(replacement)
        for stream_id, ordinal in changes.trims:
            for run in self.runs_of(stream_id):
                if run.end_ordinal <= ordinal:
                    del self.runs[stream_id, run.first_ordinal]
        for stream_id in changes.removed:
            self.streams.pop(stream_id, None)
        self.streams.update({row.stream_id: row for row in changes.streams})
        for key, value in changes.records:
            self.records.pop(key, None)
            if value is not None:
                self.records[key] = value
        self._sweep()

    def runs_of(self, stream_id: int) -> list[Run]:
        return [run for key, (_, run) in sorted(self.runs.items()) if key[0] == stream_id]

    def live(self, name: str) -> list[Run]:
        return [run for _, (its, run) in sorted(self.runs.items()) if its == name]

    def _add(self, segment: Segment, runs: list[Run]) -> None:
        self.segments[segment.name] = segment
        self.runs.update({(run.stream_id, run.first_ordinal): (segment.name, run) for run in runs})

    def _replace(self, replacement: Replacement) -> None:
        kept: set[tuple[int, int]] = set()
        for name in self.segments.keys() & set(replacement.old):
            for run in self.live(name):
                messages = range(run.first_ordinal, run.end_ordinal)
                kept.update((run.stream_id, ordinal) for ordinal in messages)
                del self.runs[run.stream_id, run.first_ordinal]
            self.garbage[name] = self.segments.pop(name).size
        for segment, runs in zip(replacement.segments, replacement.runs, strict=True):
            self._add(
                segment,
                [
                    run
                    for run in runs
                    if any((run.stream_id, o) in kept for o in range(*_extent(run)))
                ],
            )

    def _sweep(self) -> None:
        for key in [key for key in self.runs if key[0] not in self.streams]:
            del self.runs[key]
        used = {name for name, _ in self.runs.values()}
        for name in self.segments.keys() - used:
            self.garbage[name] = self.segments.pop(name).size


def _extent(run: Run) -> tuple[int, int]:
    return run.first_ordinal, run.end_ordinal


class World:
    """Makes changes that could have happened, one checkpoint after the other."""

    def __init__(self, random: Random, shards: int = 3, scale: int = 4) -> None:
        self.model = Model(shards)
        self._random = random
        self._scale = scale
        self._number = 0
        self._tails: dict[int, tuple[int, int]] = {}  # stream id: next message, next byte
        self._plans: list[Replacement] = []  # compactions under way
        self._replaced: set[str] = set()

    def step(self) -> Changes:
        changes = self._changes()
        self.model.apply(changes)
        return changes

    def _changes(self) -> Changes:
        model, random = self.model, self._random
        changes = Changes(model.lsn + random.randint(1, 9))
        taken = {row.path for row in model.streams.values()}
        changes.removed = self._some(sorted(model.streams), 0.1)
        for stream_id in self._some(sorted(model.streams), 0.3):
            if stream_id not in changes.removed:
                changes.streams.append(self._row(stream_id, model.streams[stream_id].path))
        for _ in range(random.randint(0, self._scale)):
            path = random.choice([b"a", b"b/", b"\xff"]) + b"%d" % random.randint(0, 999)
            if path not in taken:
                taken.add(path)
                stream_id = id_for(path, self._next(), model.shards)
                self._tails[stream_id] = (0, 0)
                changes.streams.append(self._row(stream_id, path))
        known = sorted({*model.streams, *(row.stream_id for row in changes.streams)})
        for _ in range(random.randint(0, 3)):
            self._flush(changes, random.randrange(model.shards), known)
        self._compact(changes)
        for stream_id in self._some(known, 0.2):
            changes.trims.append((stream_id, random.randint(0, self._tails[stream_id][0])))
        for _ in range(random.randint(0, 2)):
            key = f"{random.choice('ab')}/{random.randint(0, 9)}"
            changes.records.append((key, random.choice([None, b"", b"value %d" % changes.lsn])))
        return changes

    def _row(self, stream_id: int, path: bytes) -> StreamRow:
        listed = self._random.random() < 0.8
        deadline = self._random.choice([None, self._random.randint(1, 50)]) if listed else None
        image = b"%d " % self._next() * self._random.randint(0, self._scale)
        return StreamRow(
            StreamId(stream_id), path, deadline, listed, self._random.randint(0, 9), image
        )

    def _flush(self, changes: Changes, shard: int, known: list[int]) -> None:
        runs = []
        for stream_id in known:
            if stream_id % self.model.shards == shard and self._random.random() < 0.6:
                runs += self._more_runs(stream_id)
        if runs:
            changes.segments.append(self._segment(shard))
            changes.runs.append(runs)

    def _more_runs(self, stream_id: int) -> list[Run]:
        runs = []
        for row_group in range(self._random.randint(1, 3)):
            ordinal, byte = self._tails[stream_id]
            count, size = self._random.randint(1, 5), self._random.randint(1, 50)
            place = (ordinal, byte, count, size, row_group, 0, size)
            runs.append(Run(StreamId(stream_id), *place, *self._index()))
            self._tails[stream_id] = (ordinal + count, byte + size)
        return runs

    def _index(self) -> tuple[int, int, bytes]:
        """Times and a key filter, which may be long; now and then not known."""
        if self._random.random() < 0.2:
            return 0, 0, UNKNOWN_KEYS
        first_ms = self._random.randint(1, 99)
        length = self._random.choice([0, 9, 900, 9000])
        return first_ms, first_ms + self._random.randint(0, 9), self._random.randbytes(length)

    def _segment(self, shard: int) -> Segment:
        name = f"segments/{shard:04d}/{self._next():013d}.parquet"
        return Segment(name, shard, self._random.randint(1, 999), 7, 8, self.model.lsn)

    def _compact(self, changes: Changes) -> None:
        """Plans are made now and carried out now or later, when what they saw may be gone."""
        shard = self._random.randrange(self.model.shards)
        mine = sorted(s.name for s in self.model.segments.values() if s.shard == shard)
        old = self._some(mine, 0.5)
        if old:
            runs = [run for _, (name, run) in sorted(self.model.runs.items()) if name in old]
            self._plans.append(Replacement(old, [self._segment(shard)], [list(_joined(runs))]))
        for plan in self._some(self._plans, 0.4):
            self._plans.remove(plan)
            if self._replaced.isdisjoint(plan.old):  # else the state machine refuses it
                self._replaced.update(plan.old)
                changes.replacements.append(plan)

    def _some(self, of: list[Any], chance: float) -> list[Any]:
        return [one for one in of if self._random.random() < chance]

    def _next(self) -> int:
        self._number += 1
        return self._number


def _joined(runs: list[Run]) -> Iterator[Run]:
    """Neighbours become one run."""
    last: Run | None = None
    for run in runs:
        if last and last.stream_id == run.stream_id and last.end_ordinal == run.first_ordinal:
            count, size = last.count + run.count, last.size + run.size
            place = (last.first_ordinal, last.first_byte, count, size, 0, 0, 1)
            last = Run(last.stream_id, *place, last.first_ms, run.last_ms, last.keys + run.keys)
            continue
        if last:
            yield last
        last = run
    if last:
        yield last


def without_keys(run: Run) -> Run:
    return replace(run, keys=UNKNOWN_KEYS)


def assert_equal(catalog: Catalog, model: Model) -> None:
    """Every question has the answer of the model."""
    assert catalog.lsn == model.lsn
    assert catalog.count_streams() == len(model.streams)
    _assert_streams_equal(catalog, model)
    for stream_id in model.streams:
        _assert_runs_equal(catalog, model, stream_id)
    uses = {use.segment.name: use for use in catalog.segments()}
    assert {name: use.segment for name, use in uses.items()} == model.segments
    for name, use in uses.items():
        live = model.live(name)
        assert (use.live_runs, use.live_bytes) == (len(live), sum(run.size for run in live))
    names = sorted(model.segments)[::2]
    found = [found for _, found in sorted(model.runs.items()) if found[0] in names]
    assert list(catalog.live_runs(names)) == [(name, without_keys(run)) for name, run in found]
    for name, segment in model.segments.items():
        in_order = sorted(model.live(name), key=lambda run: (run.row_group, run.row))
        assert sorted(catalog.runs_in(segment), key=repr) == sorted(in_order, key=repr)
    assert dict(garbage_of(catalog)) == model.garbage
    assert dict(catalog.records("")) == model.records
    assert list(catalog.records("a/")) == sorted(
        (key, value) for key, value in model.records.items() if key.startswith("a/")
    )
    assert catalog.verify().problem is None


def _assert_streams_equal(catalog: Catalog, model: Model) -> None:
    rows = sorted(model.streams.values(), key=lambda row: row.path)
    for row in rows:
        assert catalog.find(row.path) == catalog.find_by_id(row.stream_id) == row.image
    listed = [(row.path, row.created_ms) for row in rows if row.listed]
    assert list(catalog.names(b"")) == listed
    after, before = b"a5", b"b/5"
    assert list(catalog.names(after, before)) == [n for n in listed if after < n[0] < before]
    deadlines = sorted((row.deadline_ms, row.stream_id) for row in rows if row.deadline_ms)
    assert catalog.due(25, 3) == [stream_id for at, stream_id in deadlines if at <= 25][:3]
    assert catalog.next_deadline() == min((at for at, _ in deadlines), default=None)


def _assert_runs_equal(catalog: Catalog, model: Model, stream_id: int) -> None:
    runs = model.runs_of(stream_id)
    end_ordinal, end_byte = (runs[-1].end_ordinal, runs[-1].end_byte) if runs else (3, 3)
    for ordinal in {0, end_ordinal // 2, end_ordinal - 1, end_ordinal}:
        expected = [r for r in runs if r.end_ordinal > ordinal][:3]
        found = catalog.runs_from(StreamId(stream_id), ordinal=ordinal, limit=3)
        assert [run for _, run in found] == list(map(without_keys, expected))
        found = catalog.runs_from(StreamId(stream_id), ordinal=ordinal, limit=3, with_keys=True)
        assert [run for _, run in found] == expected
        for segment, run in found:
            assert model.runs[stream_id, run.first_ordinal] == (segment.name, run)
            assert model.segments[segment.name] == segment
    for byte in {0, end_byte // 2, end_byte - 1, end_byte}:
        found = catalog.runs_from(StreamId(stream_id), byte=byte, limit=2)
        expected = [r for r in runs if r.end_byte > byte][:2]
        assert [run for _, run in found] == list(map(without_keys, expected))
    for limit in (2, 99):
        _assert_shares_equal(catalog, model, runs, StreamId(stream_id), limit)


def _assert_shares_equal(
    catalog: Catalog, model: Model, runs: list[Run], stream_id: StreamId, limit: int
) -> None:
    """Walked as those do who count: each call goes on behind the last run of the one before."""
    counted, segments, after = [0, 0, 0], set[int](), -1
    while shares := catalog.shares_from(stream_id, after, limit):
        assert sum(share.runs for share in shares) <= limit
        for share in shares:
            segments.add(share.segment)
            counted = [a + b for a, b in zip(counted, share[2:5], strict=True)]
        after = max(share.last_ordinal for share in shares)
        end = max(share.end_ordinal for share in shares)
    names = {model.runs[stream_id, run.first_ordinal][0] for run in runs}
    assert len(segments) == len(names)
    assert counted == [len(runs), sum(r.count for r in runs), sum(r.size for r in runs)]
    assert not runs or (after, end) == (runs[-1].first_ordinal, runs[-1].end_ordinal)
