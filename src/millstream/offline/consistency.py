"""Does everything that is kept of the streams fit together? Content is not read here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from millstream.errors import DamagedData
from millstream.formats.changes import StreamRow
from millstream.formats.images import BucketImage, HotContent, StreamImage
from millstream.formats.layout import StreamId
from millstream.recover import RESTORED
from millstream.state.buckets import split_key
from millstream.state.images import decode_image
from millstream.state.records import BLOB, BUCKET, SYSTEM, system_ids_of
from millstream.tier.catalog import Catalog
from millstream.tier.object_kinds import snapshot_name

Progress = Callable[[str, int, int], None]


class BlobUse(NamedTuple):
    stream_id: StreamId  # one whose snapshot it is
    streams: int


class _Fork(NamedTuple):
    stream_id: StreamId
    source_id: StreamId
    first: int  # messages from here on are shown
    own: int  # messages before this are the source's
    own_byte: int


class Consistency:
    """Sees every stream of a catalog twice: first what ties them together, then each by itself."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.streams = 0  # of clients, and
        self.messages = 0  # theirs
        self._rows = 0
        self.blobs: dict[str, BlobUse] = {}
        self._forks: list[_Fork] = []
        self._buckets: Counter[bytes] = Counter()
        self._last_id = 0
        self._system_ids: set[StreamId] = set()

    def check(
        self, catalog: Catalog, hot: Iterable[HotContent], *, is_whole: bool
    ) -> Iterator[str]:
        """`is_whole`: the catalog stands for the whole state, and `hot` is all that is in no run.
        Otherwise only what one row says of itself can be checked."""
        self._system_ids = system_ids_of(catalog.records(SYSTEM))
        for row in catalog.stream_rows():
            image = _decode(row)
            yield from _check_row(row, image)
            self._see(row, image)
        needed = _needed_by_forks(self._forks)
        hot_by_id = {content.stream_id: content for content in hot}
        forks = Counter(fork.source_id for fork in self._forks)
        is_tail_lost = catalog.record(RESTORED) is not None
        for seen, row in enumerate(catalog.stream_rows(), 1):
            image = _decode(row)
            if is_whole:
                yield from _check_forks(image, forks[row.stream_id])
                content = hot_by_id.pop(row.stream_id, None)
                if content is not None or not is_tail_lost:  # after a restore a start does without
                    yield from _check_hot(image, content)
            lowest = min(image.first[0], needed.get(row.stream_id, image.first[0]))
            # A snapshot may outlive what came before it and was in no run yet.
            is_lost = is_tail_lost and image.first[0] >= image.cold[0]
            if not is_lost:
                yield from _check_extent(image, lowest, catalog.extent(row.stream_id))
            if seen % 1000 == 0 or seen == self._rows:
                self._progress("checking streams", seen, self._rows)
        yield from self._check_sources(catalog)
        if is_whole:
            for stream_id in hot_by_id:
                yield f"stream {stream_id} does not exist but has content in no segment"
            yield from self._check_records(catalog)

    def _see(self, row: StreamRow, image: StreamImage) -> None:
        self._rows += 1
        self._last_id = row.stream_id
        if row.stream_id not in self._system_ids:
            self.streams += 1
            self.messages += image.tail[0] - max(image.first[0], image.own[0])
            if row.listed:
                self._buckets[split_key(image.path)[0]] += 1
        if image.origin is not None:
            self._forks.append(_Fork(image.stream_id, image.origin[0], image.first[0], *image.own))
        if image.snapshot is not None:
            blob = image.snapshot[2]
            use = self.blobs.get(blob, BlobUse(image.stream_id, 0))
            self.blobs[blob] = use._replace(streams=use.streams + 1)

    def _check_sources(self, catalog: Catalog) -> Iterator[str]:
        for fork in self._forks:
            found = catalog.image_of(fork.source_id)
            if found is None:
                yield f"stream {fork.stream_id} is a fork of stream {fork.source_id}: found none"
                continue
            source = decode_image(found)
            if fork.first < fork.own and source.tail < (fork.own, fork.own_byte):
                yield (
                    f"stream {fork.stream_id} shows {fork.own} messages of {title(source)}, "
                    f"which ends behind {source.tail[0]}"
                )

    def _check_records(self, catalog: Catalog) -> Iterator[str]:
        births = int(catalog.record("births") or b"0")
        if self._last_id // catalog.shards > births:
            yield f"{births} streams were ever created, found one of number {self._last_id}"
        for key, value in catalog.records(BUCKET):
            bucket = msgspec.msgpack.decode(value, type=BucketImage)
            found = self._buckets.pop(bucket.name, 0)
            if bucket.streams != found:
                yield f"{key} should have {bucket.streams} streams, found {found}"
        for name, count in self._buckets.items():
            yield f"bucket {name.decode(errors='replace')} is not there, but has {count} streams"
        for blob, use in self.blobs.items():  # a count too low deletes what a snapshot needs
            record = catalog.record(BLOB + blob)
            counted = 1 if record is None else int(record)
            if counted != use.streams:
                yield (
                    f"{snapshot_name(blob)} is the snapshot of {use.streams} streams, "
                    f"the catalog's record counts {counted}"
                )


def _decode(row: StreamRow) -> StreamImage:
    try:
        return decode_image(row.image)
    except (msgspec.MsgspecError, ValueError) as error:
        place = f"the image of stream {row.stream_id}"
        raise DamagedData("the catalog", 0, place, str(error)) from error


def _check_row(row: StreamRow, image: StreamImage) -> Iterator[str]:
    """What the catalog finds a stream by is in its image as well."""
    deadline_ms = image.expires_at_ms
    if image.ttl_ms is not None:
        deadline_ms = image.touched_ms + image.ttl_ms
    expected = (
        image.stream_id,
        image.path,
        None if image.deleted else deadline_ms,
        not image.deleted,
        image.created_ms,
    )
    found = (row.stream_id, row.path, row.deadline_ms, row.listed, row.created_ms)
    if found != expected:
        yield f"stream {row.stream_id}: the catalog finds it as {found}, it is {expected}"
    places = (image.first, image.cold, image.tail)
    if not image.first <= image.tail or not image.own <= image.cold <= image.tail:
        yield f"{title(image)}: expected its first message before its end, found {places}"


def _needed_by_forks(forks: Iterable[_Fork]) -> dict[int, int]:
    """By source, the first message that some fork of it shows, or a fork of that."""
    needed: dict[int, int] = {}
    for fork in sorted(forks, reverse=True):  # a fork has a greater number than its source
        lowest = min(fork.first, needed.get(fork.stream_id, fork.first))
        if lowest < fork.own:
            needed[fork.source_id] = min(lowest, needed.get(fork.source_id, lowest))
    return needed


def _check_forks(image: StreamImage, found: int) -> Iterator[str]:
    if image.forks != found:
        yield f"{title(image)} counts {image.forks} forks, found {found}"
    if image.deleted and not found:
        yield f"{title(image)} is deleted, and nothing needs it"


def _check_hot(image: StreamImage, content: HotContent | None) -> Iterator[str]:
    """What is in no run has to be in the checkpoint or the log."""
    expected = (image.tail[0] - image.cold[0], image.tail[1] - image.cold[1])
    blocks = [] if content is None else content.blocks
    found = (
        sum(len(ends) // 4 or 1 for _, ends, _ in blocks),
        sum(len(data) for data, _, _ in blocks),
    )
    if found != expected:
        yield (
            f"{title(image)}: expected {expected[0]} messages of {expected[1]} bytes in the "
            f"checkpoint and the log, found {found[0]} of {found[1]}"
        )


def _check_extent(
    image: StreamImage, lowest: int, extent: tuple[int, int, int] | None
) -> Iterator[str]:
    """All cold content that it or a fork of it shows has to lie in its runs."""
    start = max(lowest, image.own[0])
    if start >= image.cold[0]:
        return
    if extent is None:
        found = "no runs"
    else:
        first, end_ordinal, end_byte = extent
        if first <= start and (end_ordinal, end_byte) == image.cold:
            return
        found = f"runs of the messages {first} to {end_ordinal - 1} up to byte {end_byte}"
    expected = f"of the messages {start} to {image.cold[0] - 1} up to byte {image.cold[1]}"
    yield f"{title(image)}: expected runs {expected}, found {found}"


def title(image: StreamImage) -> str:
    return f"stream {image.stream_id}, {image.path.decode(errors='replace')}"
