"""The `millstream` command."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import sys
from collections.abc import Sequence

import uvloop

from millstream.cli.memory import return_freed_memory  # first: see there

# isort: split
from millstream import __version__
from millstream.assemble import serve
from millstream.cli.cold import add_cold_commands, run_gc, run_restore, run_verify
from millstream.cli.flags import add_settings, settings_given
from millstream.cli.key import add_key, run_key
from millstream.cli.lake import add_lake, run_lake
from millstream.cli.pipeline import add_pipeline, run_pipeline
from millstream.cli.salvage import add_salvage, run_salvage
from millstream.cli.without_pandas import refuse_pandas
from millstream.config import Config, InvalidSetting, build_config, log_settings
from millstream.engine.timings import Timings
from millstream.errors import StartupError
from millstream.telemetry import configure_logs, last_words

EXIT_USAGE = 2

_SERVE_TEXT = """\
Start the server. Without any flag it listens on 127.0.0.1:4437 and keeps its data in ./data:

  millstream serve
  curl -X PUT  localhost:4437/v1/stream/hello -H 'Content-Type: text/plain'
  curl -X POST localhost:4437/v1/stream/hello -H 'Content-Type: text/plain' -d 'first line'
  curl        'localhost:4437/v1/stream/hello?offset=-1'
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="millstream", description="Durable, append-only streams over plain HTTP."
    )
    parser.add_argument("--version", action="version", version=f"millstream {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_serve(commands)
    add_pipeline(commands)
    add_cold_commands(commands)
    add_salvage(commands)
    add_lake(commands)
    add_key(commands)
    return parser


def add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "serve",
        help="start the server",
        description=_SERVE_TEXT,
        epilog="Every flag can also be set as an environment variable: --data-dir is "
        "MILLSTREAM_DATA_DIR, and so on. A flag wins over its variable.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_settings(command, dataclasses.fields(Config))


def run_serve(arguments: argparse.Namespace, timings: Timings) -> int:
    flags = settings_given(arguments)
    configure_logs(*log_settings(flags), sparing=True)
    config = build_config(flags)
    # Requests make no cycles; a full collection over millions of messages would pause everybody.
    # Small ones often: each takes a few milliseconds at most, even while a checkpoint is taken.
    gc.set_threshold(10_000, 2, 100_000)
    refuse_pandas()
    return_freed_memory()
    # The log's thread must not wait long for the interpreter once its bytes are on disk.
    sys.setswitchinterval(0.0001)
    return uvloop.run(serve(config, timings))


def run(arguments: argparse.Namespace, timings: Timings) -> int:
    if arguments.command == "serve":
        return run_serve(arguments, timings)
    commands = {
        "pipeline": run_pipeline,
        "restore": run_restore,
        "verify": run_verify,
        "gc": run_gc,
        "lake": run_lake,
        "key": run_key,
        "salvage": run_salvage,
    }
    return commands[arguments.command](arguments)


def main(argv: Sequence[str] | None = None, timings: Timings = Timings()) -> int:  # noqa: B008 - frozen
    """Servers that tests run are in more of a hurry: `timings`."""
    arguments = build_parser().parse_args(argv)
    try:
        return run(arguments, timings)
    except (InvalidSetting, StartupError) as error:
        last_words(str(error))
        return EXIT_USAGE
