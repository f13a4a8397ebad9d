"""Settings as flags of a command."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable
from typing import Any

from millstream.cli.docs import describe_default
from millstream.config import Config, flag_name


def add_settings(
    command: argparse.ArgumentParser, settings: Iterable[dataclasses.Field[Any]]
) -> None:
    for setting in settings:
        text, shape = setting.metadata["help"], setting.metadata["shape"]
        has_default = setting.default is not None or setting.metadata["default_text"]
        if shape and has_default:
            text += f" (default: {describe_default(setting).strip('`')})"
        if shape:
            action = "append" if setting.metadata["many"] else "store"
            help_text = text.replace("%", "%%")
            command.add_argument(flag_name(setting), metavar=shape, help=help_text, action=action)
        else:
            command.add_argument(flag_name(setting), action="store_const", const="true", help=text)


def settings_given(arguments: argparse.Namespace) -> dict[str, str | None]:
    """The text of each setting that the command takes; None where the flag was not given."""
    given = vars(arguments)
    return {
        setting.name: _as_text(given[setting.name])
        for setting in dataclasses.fields(Config)
        if setting.name in given
    }


def _as_text(value: str | list[str] | None) -> str | None:
    return ",".join(value) if isinstance(value, list) else value
