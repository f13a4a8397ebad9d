"""`millstream lake`: SQL over what streams hold, with a server or without."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from millstream.cli.asking import add_server, ask
from millstream.cli.flags import add_settings, settings_given
from millstream.cli.tables import write_csv, write_json, write_table
from millstream.cli.without_pandas import refuse_pandas
from millstream.clock import SystemClock
from millstream.config import Config, InvalidSetting, access_key, build_config
from millstream.errors import FolderInUse, StartupError
from millstream.journal.folder import IDENTITY_FILE, Places, ReadFolder, load_identity
from millstream.tier.objects import ObjectStore, cold_settings

if TYPE_CHECKING:  # loaded when the command runs: Arrow's datasets take a second
    from millstream.lake.live import Live
    from millstream.lake.query import Answer

FLUSH_URL = "/__millstream/flush"
FORMATS = ("table", "json", "csv", "parquet")
ROWS_AT_ONCE = 1000

_TEXT = """\
Ask with SQL what streams hold, on the machine of the data folder. The views are `messages` and
`streams`; every message is there once, and what was deleted, trimmed or expired is not.

  millstream lake --sql "select stream, count(*), max(append_time) from messages group by stream"
  millstream lake --sql "select json->>'event' from messages where stream = 'tour'" --format json
  millstream lake --sql "select * from messages" --format parquet --output all.parquet
  millstream lake --manifest

While a server runs it is asked to flush first, so that all that was acknowledged is included; see
--server and --no-flush. Without one the log is read as well. Nothing in the folder is changed.
"""


def add_lake(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "lake",
        help="SQL over what streams hold",
        description=_TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = command.add_mutually_exclusive_group(required=True)
    what.add_argument("--sql", metavar="QUERY", help="a query in DuckDB's dialect")
    what.add_argument(
        "--manifest",
        action="store_true",
        help="which rows of which segments are live, as JSON, for Spark, Trino and others",
    )
    command.add_argument(
        "--format", choices=FORMATS, default="table", help="of the answer (default: table)"
    )
    command.add_argument("--output", metavar="FILE", help="where to write it instead of stdout")
    add_server(command, "the server that uses the folder, if one does")
    command.add_argument(
        "--no-flush",
        action="store_true",
        help="do not ask the server: what it had flushed by its last checkpoint is enough",
    )
    settings = dataclasses.fields(Config)
    add_settings(
        command, [s for s in settings if s.name == "data_dir" or s.name.startswith("cold")]
    )


def run_lake(arguments: argparse.Namespace) -> int:
    config = build_config(settings_given(arguments))
    if arguments.format == "parquet" and not arguments.output:
        raise InvalidSetting("--format parquet needs --output FILE")
    refuse_pandas()
    from millstream.lake.query import run_query

    objects = ObjectStore(cold_settings(config))
    with _loader(arguments, config) as load:
        if arguments.manifest:
            with _out(arguments.output) as out:
                json.dump(_manifest(load(), objects), out, indent=1)
                out.write("\n")
        else:
            run_query(load, objects, arguments.sql, lambda answer: _show(arguments, answer))
    return 0


@contextmanager
def _loader(arguments: argparse.Namespace, config: Config) -> Iterator[Callable[[], Live]]:
    """What tells what is live, again and again if need be."""
    from millstream.lake.live import load_stopped

    try:
        folder = ReadFolder(config.data_dir)
    except FolderInUse:
        yield lambda: _load_running(arguments, config)
        return
    try:
        folder.store_id = _store_id(config.data_dir)
        live = load_stopped(config, folder, SystemClock().now_ms())
        yield lambda: live
    finally:
        folder.close()


def _load_running(arguments: argparse.Namespace, config: Config) -> Live:
    from millstream.lake.live import load_running

    places = Places()
    places.path, places.store_id = config.data_dir, _store_id(config.data_dir)
    if arguments.no_flush:
        print(
            "not included: what the server has flushed or got since its last checkpoint",
            file=sys.stderr,
        )
        return load_running(places)
    try:
        answer = ask(arguments.server, "POST", FLUSH_URL, access_key(arguments.key_file))
    except StartupError as error:
        raise StartupError(
            f"a server uses {config.data_dir} and has to flush first, but {error} Say where it "
            "is with --server URL, or take what it had flushed by its last checkpoint: --no-flush"
        ) from error
    if answer.get("store_id") != places.store_id:
        raise StartupError(
            f"the server at {arguments.server} is not the one that uses {config.data_dir}; "
            "say where that one is with --server URL"
        )
    return load_running(places)


def _store_id(data_dir: Path) -> str:
    store_id = load_identity(data_dir)
    if store_id is None:
        raise StartupError(f"{data_dir} has no {IDENTITY_FILE}; check --data-dir")
    return store_id


# What comes out


def _show(arguments: argparse.Namespace, answer: Answer) -> None:
    if arguments.format == "parquet":
        _write_parquet(arguments.output, answer)
        return
    columns = answer.columns()
    names, kinds = [name for name, _ in columns], [kind for _, kind in columns]
    with _out(arguments.output) as out:
        batches = answer.batches(ROWS_AT_ONCE)
        if arguments.format == "json":
            write_json(out, names, kinds, batches)
        elif arguments.format == "csv":
            write_csv(out, names, batches)
        else:
            write_table(out, names, batches)


@contextmanager
def _out(path: str | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    try:
        with open(path, "w", encoding="utf-8", newline="") as file:
            yield file
    except OSError as error:
        raise StartupError(f"cannot write {path}: {error.strerror}") from error


def _write_parquet(path: str, answer: Answer) -> None:
    import pyarrow.parquet as pq

    reader = answer.arrow()
    try:
        with pq.ParquetWriter(path, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)
    except OSError as error:
        raise StartupError(f"cannot write {path}: {error}") from error


def _manifest(live: Live, objects: ObjectStore) -> dict[str, Any]:
    """For readers that know nothing of catalogs; docs/lake.md has the fields."""
    from millstream.lake.live import HOT

    hot = sum(1 for each in live.ranges if each.segment == HOT)
    if hot:
        print(
            f"not included: the newest messages of {hot} streams, which are in no segment yet; "
            "start the server, it flushes before it answers",
            file=sys.stderr,
        )
    url = objects.settings.url
    root = str(Path(url.removeprefix("fs:")).absolute()) if url.startswith("fs:") else url
    root = root.rstrip("/")
    return {
        "format": 1,
        "store_id": live.store_id,
        "lsn": live.lsn,
        "segments": [
            {"path": f"{root}/{segment.name}", "size": segment.size, "rows": segment.rows}
            for segment in live.segments
        ],
        "live": [
            {
                "stream": live.streams[each.stream].stream,
                "bucket": live.streams[each.stream].bucket,
                "path": f"{root}/{live.segments[each.segment].name}",
                "stream_id": each.stream_id,
                "first_ordinal": each.first_ordinal,
                "end_ordinal": each.end_ordinal,
                "end_byte": each.end_byte,
            }
            for each in live.ranges
            if each.segment != HOT
        ],
    }
