"""Views over the live rows in DuckDB. The only file with duckdb, which is loaded when needed.

messages   one row per message that a reader of its stream would get
streams    one row per stream
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.errors import StartupError
from millstream.lake.live import Live
from millstream.lake.rows import SegmentFiles, hot_rows, segment_rows
from millstream.protocol.offsets import encode_offset
from millstream.tier.objects import ObjectStore

if TYPE_CHECKING:
    import duckdb

TRIES = 3  # a compaction may take segments away under a query; the next one sees the new ones

# A fork may begin inside of a message of its source: of that one it has the first bytes only.
_MESSAGES = """
CREATE VIEW messages AS
SELECT
    stream,
    bucket,
    ordinal,
    append_time,
    key,
    CASE WHEN is_json THEN TRY(decode(data)::JSON) END AS json,
    TRY(decode(data)) AS text,
    data,
    printf('%016d_%016d', ordinal + 1, byte_end) AS next_offset
FROM (
    SELECT
        live.stream,
        live.bucket,
        live.is_json,
        r.ordinal,
        make_timestamp(epoch_us(r.append_ms)) AS append_time,
        TRY(decode(r.key)) AS key,
        least(r.byte_end, live.end_byte) AS byte_end,
        CASE
            WHEN r.byte_end <= live.end_byte THEN r.data
            ELSE r.data[1 : octet_length(r.data) - (r.byte_end - live.end_byte)]
        END AS data
    FROM (SELECT * FROM segment_rows UNION ALL SELECT * FROM hot_rows) r
    JOIN live
    ON r.segment = live.segment AND r.stream_id = live.stream_id
    AND r.ordinal >= live.first_ordinal AND r.ordinal < live.end_ordinal
)
"""


class Answer:
    """What a query gives. It runs when it is asked for rows, some at a time or as Arrow."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, sql: str) -> None:
        self._connection = connection
        self._sql = sql

    def columns(self) -> list[tuple[str, str]]:
        """Runs the query; the names of its columns and their kinds."""
        description = self._connection.execute(self._sql).description or []
        return [(str(column[0]), str(column[1])) for column in description]

    def batches(self, rows: int) -> Iterator[list[tuple[Any, ...]]]:
        """After `columns`."""
        while batch := self._connection.fetchmany(rows):
            yield batch

    def arrow(self) -> pa.RecordBatchReader:
        relation = self._connection.sql(self._sql)
        if relation is None:
            raise StartupError("this query has no rows to write; use select")
        return relation.to_arrow_reader()


def run_query(
    load: Callable[[], Live],
    objects: ObjectStore,
    sql: str,
    show: Callable[[Answer], None],
) -> None:
    """`show` gets the answer. Raises StartupError for a query that DuckDB does not take.

    Segments that vanish before anything was shown are looked up again.
    """
    duck = _duckdb()
    for left in reversed(range(TRIES)):
        live = load()
        files = SegmentFiles(objects, {segment.name: segment.size for segment in live.segments})
        try:
            with _connected(duck) as connection:
                _create_views(connection, live, files)
                show(Answer(connection, sql))
            return
        except duck.Error as error:
            if not files.is_missing:
                raise StartupError(f"DuckDB: {error}") from error
            if not left:
                raise StartupError(
                    f"segments vanish faster than they can be read: {error}"
                ) from error


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise StartupError(
            "this needs DuckDB: pip install 'millstream[lake]' (here: .venv/bin/pip install duckdb)"
        ) from None
    return duckdb


@contextmanager
def _connected(duck: Any) -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duck.connect()
    try:
        yield connection
    finally:
        connection.close()


def _create_views(connection: duckdb.DuckDBPyConnection, live: Live, files: SegmentFiles) -> None:
    connection.register("segment_rows", segment_rows(files, live.segments))
    connection.register("hot_rows", hot_rows(live))
    connection.register("live", live_table(live))
    connection.register("streams", streams_table(live))
    connection.execute(_MESSAGES)


def live_table(live: Live) -> pa.Table:
    """For every stream, which rows of which segment are its messages."""
    names = [segment.name for segment in live.segments]
    ranges = live.ranges
    return pa.table(
        {
            "stream": _texts(live.streams[each.stream].stream for each in ranges),
            "bucket": _texts(live.streams[each.stream].bucket for each in ranges),
            "is_json": pa.array([live.streams[r.stream].is_json for r in ranges], pa.bool_()),
            "segment": pa.array([each.segment for each in ranges], pa.int64()),
            "segment_name": _texts("" if r.segment < 0 else names[r.segment] for r in ranges),
            "stream_id": pa.array([each.stream_id for each in ranges], pa.int64()),
            "first_ordinal": pa.array([each.first_ordinal for each in ranges], pa.int64()),
            "end_ordinal": pa.array([each.end_ordinal for each in ranges], pa.int64()),
            "end_byte": pa.array([each.end_byte for each in ranges], pa.int64()),
        }
    )


def streams_table(live: Live) -> pa.Table:
    streams = live.streams
    images = [each.image for each in streams]
    return pa.table(
        {
            "stream": _texts(each.stream for each in streams),
            "bucket": _texts(each.bucket for each in streams),
            "content_type": _texts(i.content_type.decode("latin-1") for i in images),
            "created": pa.array([i.created_ms for i in images], pa.timestamp("ms")),
            "last_write": pa.array([i.last_write_ms for i in images], pa.timestamp("ms")),
            "closed": pa.array([i.closed for i in images], pa.bool_()),
            "messages": pa.array([i.tail[0] - i.first[0] for i in images], pa.int64()),
            "bytes": pa.array([i.tail[1] - i.first[1] for i in images], pa.int64()),
            "first_offset": _texts(encode_offset(*i.first) for i in images),
            "next_offset": _texts(encode_offset(*i.tail) for i in images),
            "stream_id": pa.array([each.stream_id for each in streams], pa.int64()),
        }
    )


def _texts(values: Iterator[str]) -> pa.Array:
    return pa.array(list(values), pa.utf8())
