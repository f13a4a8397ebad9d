"""`millstream salvage`: what is readable of a damaged folder, in a new one."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from millstream.cli.flags import add_settings, settings_given
from millstream.cli.progress import ProgressBar
from millstream.config import Config, build_config
from millstream.errors import StartupError
from millstream.offline.salvage import salvage
from millstream.offline.salvage_report import Report, describe

EXIT_LOST = 3
LINES_MAX = 200  # the JSON has all of them

_TEXT = """\
Bring what is readable of a damaged data folder into a new one, and list exactly what is not:

  millstream salvage data rescued --json report.json
  millstream serve --data-dir rescued

The damaged folder is only read. The new one must not exist, or be empty. Exit code 0: everything
was saved; 3: something was lost, and the output says what; 2: nothing could be done.
"""


def add_salvage(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "salvage",
        help="what is readable of a damaged folder, in a new one",
        description=_TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("data_dir", metavar="DIR", help="the damaged data folder")
    command.add_argument("out", metavar="OUT", help="the new folder")
    command.add_argument("--json", metavar="FILE", help="write the whole report there")
    settings = dataclasses.fields(Config)
    add_settings(command, [each for each in settings if each.name.startswith("cold")])


def run_salvage(arguments: argparse.Namespace) -> int:
    config = build_config(settings_given(arguments))
    out = Path(arguments.out)
    with ProgressBar() as progress:
        report = salvage(config, out, progress)
    if arguments.json is not None:
        try:
            Path(arguments.json).write_bytes(report.as_json())
        except OSError as error:
            raise StartupError(f"cannot write {arguments.json}: {error.strerror}") from error
    _print(report)
    cold = f" --cold {config.cold}" if config.cold else ""
    print(f"go on with: millstream serve --data-dir {out}{cold}")
    return 0 if report.is_complete else EXIT_LOST


def _print(report: Report) -> None:
    lines = list(describe(report))
    for line in lines[:LINES_MAX]:
        print(line)
    if len(lines) > LINES_MAX:
        print(f"and {len(lines) - LINES_MAX:,} lines more; --json FILE has everything")
    print(
        f"saved {report.streams:,} streams with {report.messages:,} messages into {report.out}, "
        f"from {report.base}, up to log position {report.lsn}"
    )
    if report.leftovers is not None:
        print(f"readable, but of no certain place: {report.leftovers}")
    if report.is_complete:
        print("nothing was lost")
