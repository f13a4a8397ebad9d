"""`millstream pipeline run`: the data pipeline beside a server. Spark is loaded only here."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses

from millstream.cli.asking import add_server
from millstream.cli.flags import add_settings, settings_given
from millstream.config import Config, InvalidSetting, access_key, java_home, log_settings
from millstream.config_values import parse_seconds
from millstream.errors import StartupError
from millstream.jobs.pipeline_requirements import find_missing
from millstream.telemetry import all_output_as_json, configure_logs, is_json

_RUN_TEXT = """\
Run the jobs that a server has for the data pipeline, on Spark. Without --once it waits for more.

  millstream pipeline run --server http://127.0.0.1:4437
  millstream pipeline run --server http://10.0.0.5:4437 --master spark://10.0.0.9:7077 --once
"""
_ERASE_TEXT = """\
Rewrite segments that have held content of deleted, expired or trimmed streams for half of the time
that the server's --erase-within allows, until there are none. The server starts this by itself.
"""
_LOG_SETTINGS = ("log_format", "log_level")


def add_pipeline(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    pipeline = commands.add_parser("pipeline", help="run jobs of the data pipeline on Spark")
    actions = pipeline.add_subparsers(dest="action", required=True, metavar="ACTION")
    run = actions.add_parser(
        "run",
        help="ask a server for jobs and run them",
        description=_RUN_TEXT,
        epilog="The --cold flags are those of serve, and so are their variables. The server says "
        "where its segments are; the keys of the store it keeps to itself.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_server(run, "the server to work for")
    run.add_argument(
        "--master",
        default="local[2]",
        help="local[N], spark://…, k8s://… or yarn (default: %(default)s)",
    )
    run.add_argument(
        "--once", action="store_true", help="end when the server has no more jobs for now"
    )
    run.add_argument(
        "--until-input-ends",
        action="store_true",
        help="end when standard input does: with the process that holds its other end",
    )
    run.add_argument(
        "--interval",
        metavar="TIME",
        default="60s",
        help="how long to wait before asking again (default: %(default)s)",
    )
    run.add_argument(
        "--spark-conf",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a setting of Spark's own; may be given several times",
    )
    erase = actions.add_parser(
        "erase",
        help="rewrite segments that hold dead content for too long, without Spark",
        description=_ERASE_TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_server(erase, "the server to work for")
    erase.add_argument(
        "--until-input-ends",
        action="store_true",
        help="end when standard input does: with the process that holds its other end",
    )
    settings = dataclasses.fields(Config)
    for parser in (run, erase):
        add_settings(parser, [each for each in settings if each.name.startswith("cold")])
        add_settings(parser, [each for each in settings if each.name in _LOG_SETTINGS])


def run_pipeline(arguments: argparse.Namespace) -> int:
    flags = settings_given(arguments)
    configure_logs(*log_settings(flags))
    if arguments.action == "erase":
        from millstream.pipeline.eraser import run_eraser

        return run_eraser(
            arguments.server,
            flags,
            until_input_ends=arguments.until_input_ends,
            key=access_key(arguments.key_file),
        )
    interval_seconds = parse_seconds(arguments.interval)
    spark = dict(_name_and_value(text) for text in arguments.spark_conf)
    missing = find_missing(java_home())
    if missing is not None:
        raise StartupError(missing)
    with all_output_as_json("spark") if is_json() else contextlib.nullcontext():
        from millstream.pipeline import runner

        return runner.run_pipeline(
            runner.RunSettings(
                server=arguments.server,
                master=arguments.master,
                once=arguments.once,
                until_input_ends=arguments.until_input_ends,
                interval_seconds=interval_seconds,
                cold_flags=flags,
                spark=spark,
                key=access_key(arguments.key_file),
            )
        )


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidSetting(f"--spark-conf: {text!r} is not a setting such as spark.app.name=x")
    return name, value
