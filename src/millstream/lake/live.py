"""What is live: for every stream, which rows of which segments are its messages."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from millstream.config import Config
from millstream.errors import StartupError
from millstream.formats.images import HotContent, StreamImage
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.formats.segment import Content
from millstream.journal.folder import Places, ReadFolder
from millstream.journal.read_only import ReadOnlyDisk
from millstream.offline.replica import copied_catalog, open_catalog, replay_folder, settle
from millstream.protocol import content_types
from millstream.state.buckets import split_key
from millstream.state.images import decode_image, restore_hot
from millstream.state.log import Log
from millstream.state.system_streams import SYSTEM_KEYS
from millstream.tier.catalog import Catalog
from millstream.tier.catalog_files import FORMAT, ROOT_NAME, as_ours, shard_name, unseal

HOT = -1  # in the place of a segment: rows that are in no segment yet
DEFAULT_BUCKET = b"_default"
TRIES, TRY_SECONDS = 100, 0.05  # to meet all files of the catalog between two checkpoints


class LiveStream(NamedTuple):
    stream_id: StreamId
    stream: str  # as behind /v1/stream/
    bucket: str
    image: StreamImage
    is_json: bool


class LiveRange(NamedTuple):
    """Rows of one segment that are messages of one stream. A fork shows those of its source too."""

    stream: int  # index into `streams`
    segment: int  # index into `segments`, or HOT
    stream_id: StreamId  # who wrote them, as the rows say
    first_ordinal: int
    end_ordinal: int
    end_byte: int  # the last message ends here at the latest: a fork may begin inside of one


class Live(NamedTuple):
    store_id: str
    lsn: int
    streams: list[LiveStream]
    segments: list[Segment]
    ranges: list[LiveRange]
    hot: list[Content]  # what is in no segment yet, in the order of stream ids


class _Found(NamedTuple):
    """What a catalog says, as of one position."""

    lsn: int
    images: dict[StreamId, StreamImage]
    segments: list[Segment]
    runs: list[tuple[int, Run]]  # index of the segment; by stream and ordinal within a shard


def load_stopped(config: Config, folder: ReadFolder, now_ms: int) -> Live:
    """Everything, also what is in the log only: no server runs. Raises what a start would."""
    with copied_catalog(folder) as copy:
        catalog = open_catalog(folder, copy, config.shards)
        try:
            machine, lsn = replay_folder(ReadOnlyDisk(), folder, catalog)
            hot = settle(machine, catalog, lsn)
            found = _from_catalog(catalog)
        finally:
            catalog.close()
    return _live(folder.store_id, found, hot, now_ms)


def _from_catalog(catalog: Catalog) -> _Found:
    segments = [use.segment for use in catalog.segments()]
    runs = [(n, run) for n, segment in enumerate(segments) for run in catalog.runs_in(segment)]
    images = {row.stream_id: decode_image(row.image) for row in catalog.stream_rows()}
    return _Found(catalog.lsn, images, segments, runs)


def load_running(folder: Places) -> Live:
    """What the last checkpoint of a running server knew. Its files are only read."""
    for _ in range(TRIES):
        found = _between_checkpoints(folder.catalog)
        if found is not None:
            return _live(folder.store_id, found, [], None)
        time.sleep(TRY_SECONDS)
    raise StartupError(f"{folder.catalog} is being written to all the time; try again")


def _between_checkpoints(catalog: Path) -> _Found | None:
    """None: some files have a checkpoint that others do not have yet."""
    with ExitStack() as stack:
        root = stack.enter_context(_reading(catalog / ROOT_NAME))
        [(shards,)] = root.execute("SELECT shards FROM meta").fetchall()
        files = [stack.enter_context(_reading(catalog / shard_name(n))) for n in range(shards)]
        lsns = {file.execute("SELECT lsn FROM meta").fetchall()[0][0] for file in files}
        if len(lsns) != 1:
            return None
        images: dict[StreamId, StreamImage] = {}
        segments: list[Segment] = []
        runs: list[tuple[int, Run]] = []
        for shard, file in enumerate(files):
            path = catalog / shard_name(shard)
            for stream_id, image in file.execute("SELECT stream_id, image FROM streams"):
                what = f"image of stream {stream_id}"
                images[stream_id] = decode_image(unseal(path, what, image))
            numbers: dict[int, int] = {}
            sql = "SELECT segment, name, size, footer_bytes, rows, created_ms FROM segments"
            for number, name, *rest in file.execute(sql):
                numbers[number] = len(segments)
                segments.append(Segment(name, shard, *rest))
            sql = (
                "SELECT segment, stream_id, first_ordinal, first_byte, count, size, row_group, row,"
                " crc FROM runs ORDER BY stream_id, first_ordinal"
            )
            runs += [(numbers[number], Run(*run)) for number, *run in file.execute(sql)]
        return _Found(lsns.pop(), images, segments, runs)


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """The file as it is at the first read, for the length of the block."""
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        try:
            [(written_format,)] = db.execute("PRAGMA user_version").fetchall()
            if written_format != FORMAT:
                raise StartupError(f"{path} has format {written_format}, not {FORMAT}")
            db.execute("BEGIN")
            yield db
        finally:
            db.close()
    except sqlite3.Error as error:
        raise StartupError(str(as_ours(path, error))) from error


def _live(store_id: str, found: _Found, hot: list[HotContent], now_ms: int | None) -> Live:
    """`now_ms`: streams whose lifetime is over by then are gone, as a start would have it."""
    pieces: dict[StreamId, list[LiveRange]] = {}
    for segment, run in sorted(found.runs, key=lambda each: each[1].first_ordinal):
        _add_piece(pieces, segment, run)
    contents = []
    for each in sorted(hot, key=lambda content: content.stream_id):
        image = found.images[each.stream_id]
        if image.path in SYSTEM_KEYS:
            continue
        contents.append(_content(image, each))
        piece = LiveRange(-1, HOT, each.stream_id, image.cold[0], *image.tail)
        pieces.setdefault(each.stream_id, []).append(piece)
    streams: list[LiveStream] = []
    ranges: list[LiveRange] = []
    for stream_id, image in sorted(found.images.items()):
        if image.deleted or _is_expired(image, now_ms) or image.path in SYSTEM_KEYS:
            continue  # the server's own streams are hidden here as in listings
        bucket, name = split_key(image.path)
        shown = name if bucket == DEFAULT_BUCKET else image.path
        ranges += _ranges(len(streams), image, found.images, pieces)
        streams.append(LiveStream(stream_id, _text(shown), _text(bucket), image, _is_json(image)))
    return Live(store_id, found.lsn, streams, found.segments, ranges, contents)


def _content(image: StreamImage, hot: HotContent) -> Content:
    log = Log()
    log.start_at(image.cold)
    restore_hot(log, hot)
    blocks = log.unpublished()
    return Content(image.stream_id, image.path, _is_json(image), *image.cold, blocks)


def _is_json(image: StreamImage) -> bool:
    return content_types.is_json(content_types.essence(image.content_type))


def _add_piece(pieces: dict[StreamId, list[LiveRange]], segment: int, run: Run) -> None:
    """Runs that follow each other in one segment are one piece."""
    known = pieces.setdefault(run.stream_id, [])
    if known and known[-1].segment == segment and known[-1].end_ordinal == run.first_ordinal:
        known[-1] = known[-1]._replace(end_ordinal=run.end_ordinal, end_byte=run.end_byte)
    else:
        known.append(
            LiveRange(-1, segment, run.stream_id, run.first_ordinal, run.end_ordinal, run.end_byte)
        )


def _ranges(
    stream: int,
    image: StreamImage,
    images: dict[StreamId, StreamImage],
    pieces: dict[StreamId, list[LiveRange]],
) -> Iterator[LiveRange]:
    """From the stream up through its sources, each up to where the next was forked off."""
    first, (end, end_byte) = image.first[0], image.tail
    while True:
        start = max(first, image.own[0])
        for piece in pieces.get(image.stream_id, ()):
            if piece.first_ordinal < end and piece.end_ordinal > start:
                yield piece._replace(
                    stream=stream,
                    first_ordinal=max(start, piece.first_ordinal),
                    end_ordinal=min(end, piece.end_ordinal),
                    end_byte=min(end_byte, piece.end_byte),
                )
        if image.origin is None or first >= image.own[0]:
            return
        if image.own[1] < end_byte:
            end, end_byte = image.own
        image = images[image.origin[0]]


def _is_expired(image: StreamImage, now_ms: int | None) -> bool:
    deadline_ms = image.expires_at_ms
    if image.ttl_ms is not None:
        deadline_ms = image.touched_ms + image.ttl_ms
    return now_ms is not None and deadline_ms is not None and now_ms >= deadline_ms


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
