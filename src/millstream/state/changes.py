"""What changed since the last checkpoint, and the state at one moment, taken piece by piece.

A checkpoint covers the state at one journal position, but taking it must not stop the machine for
long. So `begin_capture` only writes down which streams are to be taken; each is taken later, a few
at a time, or at the latest just before it changes again: `touch` sees to that.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import NamedTuple

from millstream.formats.blocks import Block
from millstream.formats.changes import Changes, Replacement, StreamRow
from millstream.formats.images import HotContent, StreamImage
from millstream.formats.layout import ShardLayout, StreamId
from millstream.formats.runs import Run, Segment, is_run_sound
from millstream.limits import STORED_INTEGER_MAX
from millstream.state.buckets import Namespace
from millstream.state.horizon import Horizon
from millstream.state.images import encode_image, hot_content, image_of
from millstream.state.log import PublishedRun
from millstream.state.residents import Residents
from millstream.state.stream import Stream

Record = tuple[str, bytes | None]


class CapturedStream(NamedTuple):
    stream: Stream
    image: StreamImage
    deadline_ms: int | None
    runs: list[PublishedRun]


class Capture:
    """The state at `lsn`. Whole once `is_complete`; then `encode` may run in any thread."""

    def __init__(
        self, lsn: int, epoch: int, layout: ShardLayout, still_hot: list[dict[StreamId, Stream]]
    ) -> None:
        """What is hot when it is taken is so in the next epoch too: `still_hot` by shard."""
        self._layout = layout
        self.lsn = lsn
        self.epoch = epoch
        self._still_hot = still_hot
        self.pending: dict[StreamId, Stream] = {}
        self.streams: list[CapturedStream] = []
        self.hot: list[tuple[Stream, list[Block]]] = []
        self.removed: list[StreamId] = []
        self.news: dict[bytes, int] = {}
        self.segments: dict[str, Segment] = {}
        self.replacements: list[Replacement] = []
        self.trims: dict[StreamId, int] = {}
        self.died_ms = 0
        self.records: list[Record] = []

    @property
    def is_complete(self) -> bool:
        return not self.pending

    def take_some(self, count: int) -> None:
        for stream in list(islice(self.pending.values(), count)):
            self.take(stream)

    def take(self, stream: Stream) -> None:
        """The stream as it is, which is as it was at `lsn`. Taken whole, or pending still."""
        log, hot, captured = stream.log, None, None
        if log.cold_byte != log.tail_byte:
            hot = (stream, log.unpublished())
        if stream.epoch == self.epoch:
            deadline_ms = None if stream.deleted else stream.deadline_ms(stream.touched_ms)
            if deadline_ms is not None:
                deadline_ms = min(max(deadline_ms, 0), STORED_INTEGER_MAX)
            runs = [] if log.runs is None else log.runs.copy()
            captured = CapturedStream(stream, image_of(stream), deadline_ms, runs)
        if hot is not None:
            self.hot.append(hot)
            shard = self._layout.shard_of_id(stream.stream_id)
            self._still_hot[shard][stream.stream_id] = stream
        if captured is not None:
            self.streams.append(captured)
        del self.pending[stream.stream_id]

    def encode(self) -> tuple[Changes, list[HotContent]]:
        assert self.is_complete
        runs: dict[str, list[Run]] = {name: [] for name in self.segments}
        rows = []
        for captured in self.streams:
            image = captured.image
            rows.append(
                StreamRow(
                    image.stream_id,
                    image.path,
                    captured.deadline_ms,
                    not image.deleted,
                    image.created_ms,
                    encode_image(image),
                )
            )
            for segment, run in captured.runs:
                runs[segment.name].append(run)
        changes = Changes(
            self.lsn,
            rows,
            self.removed,
            list(self.segments.values()),
            list(runs.values()),
            [_sound(replacement) for replacement in self.replacements],
            list(self.trims.items()),
            self.records,
            self.died_ms,
        )
        return changes, [hot_content(stream.stream_id, blocks) for stream, blocks in self.hot]


class OpenChanges:
    """What the next checkpoint has to tell. An epoch is the time between two checkpoints."""

    def __init__(
        self, residents: Residents, names: Namespace, horizon: Horizon, layout: ShardLayout
    ) -> None:
        self._residents = residents
        self._horizon = horizon
        self._names = names
        self._layout = layout
        self.epoch = 1
        self.stored_epoch = 0  # changes up to and including this epoch are on the store
        self.dirty: list[list[Stream]] = [[] for _ in range(layout.shards)]
        self.dirty_count = 0
        self.hot_bytes = [0] * layout.shards  # content that is in no run yet
        self._still_hot: list[dict[StreamId, Stream]] = self._by_shard()  # from before
        self.segments: dict[str, Segment] = {}  # by name
        self.replacements: list[Replacement] = []
        self.trims: dict[StreamId, int] = {}
        self.died_ms = 0  # when the first content died; 0: none did
        self.blobs: set[str] = set()  # whose number of uses changed
        self._removed_before: set[StreamId] = set()  # told by a checkpoint that is on its way
        self._capture: Capture | None = None
        self._unsettled: Capture | None = None  # not on the store yet

    def _by_shard(self) -> list[dict[StreamId, Stream]]:
        return [{} for _ in range(self._layout.shards)]

    def touch(self, stream: Stream) -> None:
        """Called before anything about the stream changes."""
        if stream.epoch != self.epoch:
            if self._capture is not None and stream.stream_id in self._capture.pending:
                self._capture.take(stream)
            stream.epoch = self.epoch
            self.dirty[self._layout.shard_of_id(stream.stream_id)].append(stream)
            self.dirty_count += 1

    def note_death(self, now_ms: int) -> None:
        """Content that may lie in segments is given up."""
        self.died_ms = self.died_ms or now_ms

    def add_segment(self, segment: Segment) -> None:
        """Runs refer to it, or nothing does and it is garbage from the start."""
        self.segments.setdefault(segment.name, segment)

    def hot_streams(self, shard: int) -> list[Stream]:
        """Streams of the shard that have content in no run yet, in the order of their ids."""
        by_id, found = self._residents.by_id, dict(self._still_hot[shard])
        shard_of_id = self._layout.shard_of_id
        for stream in self.dirty[shard]:
            found[stream.stream_id] = stream
        if self._capture is not None:
            for stream in self._capture.pending.values():
                if shard_of_id(stream.stream_id) == shard:
                    found[stream.stream_id] = stream
        return [
            stream
            for stream_id, stream in sorted(found.items())
            if stream.log.cold_byte != stream.log.tail_byte and by_id.get(stream_id) is stream
        ]

    def changed_lately(self, limit: int) -> list[Stream]:
        """Some of those that changed since the last checkpoint, the newest of each shard, and some
        that have content from before it that is in no run; about so many at most."""
        share, by_id = max(1, limit // self._layout.shards), self._residents.by_id
        found: dict[StreamId, Stream] = {}
        for dirty, hot in zip(self.dirty, self._still_hot, strict=True):
            found |= {stream.stream_id: stream for stream in dirty[-share:]}
            found |= islice(hot.items(), max(0, share - len(dirty)))
        return [stream for stream in found.values() if by_id.get(stream.stream_id) is stream]

    def begin_capture(self, lsn: int, records: list[Record]) -> Capture:
        """Everything up to here; `records` is what belongs to no stream. All of it, or nothing."""
        assert self._capture is None
        assert self._unsettled is None
        by_id = self._residents.by_id
        still_hot = self._by_shard()
        capture = Capture(lsn, self.epoch, self._layout, still_hot)
        capture.pending = {
            stream.stream_id: stream
            for streams in (*self.dirty, *(hot.values() for hot in self._still_hot))
            for stream in streams
            if by_id.get(stream.stream_id) is stream
        }
        capture.removed = [i for i in self._residents.removed if i not in self._removed_before]
        capture.news = self._names.news()
        capture.records = records
        self._capture = self._unsettled = capture
        self._removed_before.update(capture.removed)
        capture.segments, self.segments = self.segments, {}
        capture.replacements, self.replacements = self.replacements, []
        capture.trims, self.trims = self.trims, {}
        capture.died_ms, self.died_ms = self.died_ms, 0
        self.epoch += 1
        self.dirty, self.dirty_count = [[] for _ in range(self._layout.shards)], 0
        self._still_hot = still_hot
        return capture

    def end_capture(self, capture: Capture) -> None:
        """It is complete: streams are not held back for it any more."""
        assert self._capture is capture
        assert capture.is_complete
        self._capture = None

    def settle(self, capture: Capture) -> None:
        """The store has it all now. After an error it may be told again."""
        if self._unsettled is not capture:
            return
        self._horizon.later(partial(self._forget_news, capture))
        self.stored_epoch = capture.epoch
        for captured in capture.streams:
            log, stored = captured.stream.log, len(captured.runs)
            if stored and log.runs is not None:
                log.runs = log.runs[stored:] or None
            captured.runs.clear()  # told again, they must not count twice
        self._unsettled = None

    def _forget_news(self, capture: Capture) -> None:
        """The store is asked for these from now on."""
        self._removed_before.difference_update(capture.removed)
        self._residents.settle(capture.removed)
        self._names.settle(capture.news)

    def segment_names(self) -> set[str]:
        """Segments that the store will hear of."""
        parts: list[OpenChanges | Capture] = [self]
        if self._unsettled is not None:
            parts.append(self._unsettled)
        return {
            name
            for part in parts
            for names in (part.segments, *map(_new_names, part.replacements))
            for name in names
        }

    def adopt_hot(self, stream: Stream) -> None:
        """At recovery: its content came out of the checkpoint."""
        shard = self._layout.shard_of_id(stream.stream_id)
        self._still_hot[shard][stream.stream_id] = stream
        self.hot_bytes[shard] += stream.log.tail_byte - stream.log.cold_byte

    def is_stored(self, stream: Stream) -> bool:
        """Whether the store has the stream as it is, content and all."""
        log = stream.log
        return stream.epoch <= self.stored_epoch and log.cold_byte == log.tail_byte


def _sound(replacement: Replacement) -> Replacement:
    """Here and not where it is applied, because there may be many runs: this is a thread."""
    runs = [[run for run in runs if is_run_sound(run)] for runs in replacement.runs]
    return Replacement(replacement.old, replacement.segments, runs)


def _new_names(replacement: Replacement) -> list[str]:
    return [segment.name for segment in replacement.segments]
