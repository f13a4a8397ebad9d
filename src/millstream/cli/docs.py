"""docs/configuration.md, written from the settings themselves: `make docs`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from millstream.config import Config, environment_name, flag_name
from millstream.limits import KIB, MIB

_INTRODUCTION = """\
# Configuration

Every setting of `millstream serve`. A flag wins over its variable, the variable over the default.
A variable `MILLSTREAM_…` that is none of these is refused, with the nearest right name.
Sizes take `KiB`, `MiB`, `GiB`; times take `ms`, `s`, `m`, `h` and are seconds without a unit.
This page is written by `make docs` from `src/millstream/config.py`.

| flag | variable | default | meaning |
|---|---|---|---|
"""


def configuration_markdown() -> str:
    rows = [_row(setting) for setting in dataclasses.fields(Config)]
    return _INTRODUCTION + "".join(rows)


def _row(setting: dataclasses.Field[Any]) -> str:
    shape = setting.metadata["shape"].replace("|", "\\|")
    flag = f"`{flag_name(setting)}{' ' + shape if shape else ''}`"
    default = describe_default(setting)
    return f"| {flag} | `{environment_name(setting)}` | {default} | {setting.metadata['help']} |\n"


def describe_default(setting: dataclasses.Field[Any]) -> str:
    """The default as a person would write it."""
    if setting.metadata["default_text"]:
        return str(setting.metadata["default_text"])
    value: Any = setting.default
    if value is None or value is False:
        return "off" if value is False else "none"
    if setting.metadata["shape"] == "SIZE":
        return f"{value // MIB}MiB" if value % MIB == 0 else f"{value // KIB}KiB"
    if setting.metadata["shape"] == "TIME":
        return f"{value:g}s"
    return f"`{value}`" if isinstance(value, str) else str(value)


if __name__ == "__main__":
    Path("docs/configuration.md").write_text(configuration_markdown())
