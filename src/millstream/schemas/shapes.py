"""Checks of the settings that people install. Errors name the place: `profile.touch.memory`."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from millstream.errors import InvalidSchema
from millstream.limits import PROFILE_TEXT_CHARACTERS_MAX, SEARCH_NAME_CHARACTERS_MAX
from millstream.schemas.documents import parse_pointer

_SHOWN_CHARACTERS = 64
_NAME = re.compile("[a-zA-Z0-9][a-zA-Z0-9._-]*")


def shown(text: str) -> str:
    """A name out of a document as an error may say it: short, and text that UTF-8 can carry."""
    cut = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
    return cut.encode(errors="replace").decode()


def object_at(value: Any, path: str, known: Collection[str]) -> dict[str, Any]:
    """The object there, which has no other keys than those."""
    if not isinstance(value, dict):
        raise InvalidSchema(f"{path} must be an object")
    refused = unknown_key(value, known)
    if refused is not None:
        raise InvalidSchema(f"{path}.{refused} is not supported")
    return value


def unknown_key(value: dict[str, Any], known: Collection[str]) -> str | None:
    """The first key that is none of those, as an error may say it."""
    return next((shown(key) for key in value if key not in known), None)


def list_at(value: Any, path: str, length_max: int) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidSchema(f"{path} must be an array")
    if len(value) > length_max:
        raise InvalidSchema(f"{path} too large (max {length_max})")
    return value


def text_at(value: Any, path: str) -> str:
    """The text there without the white space around it, of which something is left."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidSchema(f"{path} must be a non-empty string")
    if len(value) > PROFILE_TEXT_CHARACTERS_MAX:
        raise InvalidSchema(f"{path} must not exceed {PROFILE_TEXT_CHARACTERS_MAX} characters")
    return value.strip()


def choice_at(value: Any, path: str, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise InvalidSchema(f"{path} must be {'|'.join(choices)}")
    return value


def pointer_at(value: Any, path: str) -> tuple[str, ...]:
    if not isinstance(value, str):
        raise InvalidSchema(f"{path} must be a string")
    try:
        return parse_pointer(value)
    except InvalidSchema as error:
        raise InvalidSchema(f"{path}: {error.message}") from None


def texts_at(value: Any, path: str, length_max: int) -> list[str]:
    """Texts as `text_at` gives them, each once."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidSchema(f"{path} must be an array of strings")
    if len(value) > length_max:
        raise InvalidSchema(f"{path} too large (max {length_max})")
    if not all(item.strip() for item in value):
        raise InvalidSchema(f"{path} must not contain empty strings")
    return list(dict.fromkeys(text_at(item, f"{path}[{i}]") for i, item in enumerate(value)))


def named_parts(value: Any, path: str, length_max: int) -> dict[str, Any]:
    """The parts of an object whose keys are names of the user's own."""
    if not isinstance(value, dict):
        raise InvalidSchema(f"{path} must be an object")
    if len(value) > length_max:
        raise InvalidSchema(f"{path} too large (max {length_max})")
    parts: dict[str, Any] = {}
    for key, part in value.items():
        name = _name_at(key, f"{path}.{shown(key)}")
        if name in parts:
            raise InvalidSchema(f"{path}.{name} is declared twice")
        parts[name] = part
    return parts


def _name_at(value: str, path: str) -> str:
    name = value.strip()
    if not _NAME.fullmatch(name) or len(name) > SEARCH_NAME_CHARACTERS_MAX:
        raise InvalidSchema(
            f"{path} must be a name of 1 to {SEARCH_NAME_CHARACTERS_MAX} letters, digits, "
            "dots, dashes and underscores, a letter or digit first"
        )
    return name
