"""`millstream restore`, `millstream verify` and `millstream gc`: the cold store as a backup."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable
from typing import Any

from millstream.cli.asking import add_server, ask
from millstream.cli.flags import add_settings, settings_given
from millstream.cli.progress import ProgressBar
from millstream.config import Config, InvalidSetting, access_key, build_config
from millstream.config_values import parse_count
from millstream.offline.restore import restore
from millstream.offline.verify import verify

EXIT_DIFFERENT = 1
GARBAGE_URL = "/__millstream/garbage"

_RESTORE_TEXT = """\
Build a data folder from what a server left in its cold store, and go on from there:

  millstream restore --cold s3://bucket/prefix --data-dir new
  millstream serve   --cold s3://bucket/prefix --data-dir new

The machine that used the cold store before must be off, and stay off. What it had acknowledged and
not yet taken to the cold store is lost.
"""

_VERIFY_TEXT = """\
Check everything a stopped server keeps: the log, the checkpoint, the catalog, every segment, every
snapshot, and the copy of the catalog in the cold store. The log is replayed into a state that is
thrown away, and that is compared with all the rest. Nothing is changed. Exit code 0: all is sound;
1: it is not, and the output says where; 2: it could not be checked.
"""

_GC_TEXT = """\
Delete what the cold store holds and nothing needs any more. The server does this by itself; this
does it now, or with --dry-run shows what would go and what waits for what.
"""

_Commands = argparse._SubParsersAction  # the type of what add_subparsers returns


def add_cold_commands(commands: _Commands[argparse.ArgumentParser]) -> None:
    for name, text, description in (
        ("restore", "build a data folder from the cold store", _RESTORE_TEXT),
        ("verify", "check everything a stopped server keeps", _VERIFY_TEXT),
    ):
        command = _add(commands, name, text, description)
        settings = dataclasses.fields(Config)
        add_settings(
            command,
            [s for s in settings if s.name == "data_dir" or s.name.startswith("cold")],
        )
        if name == "verify":
            command.add_argument(
                "--max-differences",
                metavar="N",
                default="20",
                help="stop after so many (default: 20)",
            )
    collect = _add(commands, "gc", "delete what the cold store holds in vain", _GC_TEXT)
    add_server(collect)
    collect.add_argument("--dry-run", action="store_true", help="only show what would go")


def _add(
    commands: _Commands[argparse.ArgumentParser], name: str, text: str, description: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=text,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


# Restore


def run_restore(arguments: argparse.Namespace) -> int:
    config = build_config(settings_given(arguments))
    if not config.cold:
        raise InvalidSetting("say where the cold store is: --cold s3://bucket/prefix or fs:DIR")
    with ProgressBar() as progress:
        restored = restore(config, progress)
    for problem in restored.passed_over:
        print(f"passed over a newer copy of the catalog: {problem}")
    print(
        f"restored {_count(restored.streams, 'stream')} as of log position {restored.manifest.lsn} "
        f"into {config.data_dir}"
    )
    if restored.shortened:
        print(
            f"{_count(restored.shortened, 'stream')} had content that was not in the cold store "
            "yet; they end before it"
        )
    if restored.keys:
        print(
            f"{_count(restored.keys, 'access key')} as of then; one that was revoked later is good "
            "again: see millstream key list, and revoke it again"
        )
    shards = restored.manifest.shards
    flag = "" if shards == Config.shards else f" --shards {shards}"
    print(
        f"start it with: millstream serve --data-dir {config.data_dir} --cold {config.cold}{flag}"
    )
    return 0


# Verify


def run_verify(arguments: argparse.Namespace) -> int:
    config = build_config(settings_given(arguments))
    try:
        differences_max = parse_count(arguments.max_differences)
    except InvalidSetting as error:
        raise InvalidSetting(f"--max-differences: {error}") from None
    with ProgressBar() as progress:
        found = verify(config, differences_max, progress)
    for difference in found.differences:
        print(difference)
    looked_at = (
        f"{_count(found.streams, 'stream')} with {_count(found.messages, 'message')}, "
        f"{_count(found.records, 'record')} in the log, {_count(found.segments, 'segment')} with "
        f"{_count(found.runs, 'run')} of {_size(found.run_bytes)}, "
        f"{_count(found.snapshots, 'snapshot')}"
    )
    if found.manifest_lsn is None:
        looked_at += "; no copy of the catalog in the cold store yet"
    else:
        looked_at += f"; copy of the catalog at {found.manifest_lsn}"
    if not found.differences:
        print(f"sound: {looked_at}")
        return 0
    count = _count(len(found.differences), "difference")
    if found.is_complete:
        print(f"{count} in {looked_at}")
    else:
        print(f"{count}, then stopped looking: {looked_at}")
    return EXIT_DIFFERENT


# Garbage


def run_gc(arguments: argparse.Namespace) -> int:
    method, key = "GET" if arguments.dry_run else "POST", access_key(arguments.key_file)
    answer = ask(arguments.server, method, GARBAGE_URL, key)
    if not arguments.dry_run:
        _print_table(answer["deleted"]["listed"])
        print(f"deleted {_totals(answer['deleted'])}")
        return 0
    _print_table([*answer["ready"]["listed"], *answer["waiting"]["listed"]])
    print(f"would go now: {_totals(answer['ready'])}")
    print(f"has to wait:  {_totals(answer['waiting'])}")
    return 0


def _print_table(listed: Iterable[dict[str, Any]]) -> None:
    rows = [
        (
            "" if each["bytes"] is None else _size(each["bytes"]),
            each["name"],
            each["reason"],
            f"waits for {each['waits_for']}" if "waits_for" in each else "",
        )
        for each in listed
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for size, name, reason, waits_for in rows:
        print(
            f"{size:>{widths[0]}}  {name:<{widths[1]}}  {reason:<{widths[2]}}  {waits_for}".rstrip()
        )


def _totals(part: dict[str, Any]) -> str:
    return f"{_count(part['objects'], 'object')}, {_size(part['bytes'])}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _size(number: int) -> str:
    size, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{number} B" if unit == "B" else f"{size:.1f} {unit}"
