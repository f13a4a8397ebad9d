"""What clients send to the routes below `touch/`, checked. The texts of refusals are those that
clients of state-protocol streams know."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple, cast

import msgspec

from millstream.api.arguments import Query
from millstream.errors import BodyTooLarge, InvalidRequest
from millstream.limits import (
    CONTROL_BODY_BYTES_MAX,
    TOUCH_EXACT_KEYS_MAX,
    TOUCH_KEYS_MAX,
    TOUCH_TEMPLATE_FIELDS_MAX,
    TOUCH_TEMPLATES_MAX,
    TOUCH_WAIT_MS_MAX,
)
from millstream.touch.changes import ENCODINGS, Encoding
from millstream.touch.journal import Cursor
from millstream.touch.keys import key_id_of, parse_key
from millstream.touch.stream import Asked
from millstream.touch.templates import Declared

WAIT_MS = 30_000
NOW = "now"

_CURSOR = re.compile(r"([0-9a-f]{16}):(0|[1-9][0-9]{0,15})")
_KEY_ID_MAX = 2**32 - 1


class Declaration(NamedTuple):
    """Templates to activate; None stands for one that cannot be."""

    templates: list[Declared | None]
    ttl_ms: int | None  # None: as the settings say


class WaitBody(NamedTuple):
    cursor: Cursor | None  # None: now
    asked: Asked
    seconds: float
    is_exact: bool
    declaration: Declaration | None


def parse_activation(body: bytes) -> Declaration:
    document = _decoded(body, "activate")
    templates = _templates(document.get("templates"), "activate.templates")
    return Declaration(templates, _ttl_ms(document, "activate"))


def parse_wait(body: bytes) -> WaitBody:
    document = _decoded(body, "wait")
    keys = _keys(document)
    key_ids = _key_ids(document)
    if not keys and not key_ids:
        raise InvalidRequest("wait requires keys or keyIds")
    is_exact = document.get("exact", False)
    if not isinstance(is_exact, bool):
        raise InvalidRequest("wait.exact must be a boolean when provided")
    cursor = _cursor(document.get("cursor"))
    seconds = _wait_ms(document.get("timeoutMs", WAIT_MS)) / 1000
    template_ids = _template_ids(document.get("templateIdsUsed"))
    interest = document.get("interestMode", "fine")
    if interest not in ("fine", "coarse"):
        raise InvalidRequest("wait.interestMode must be 'fine' or 'coarse'")
    exact_keys = _exact_keys(keys) if is_exact and interest == "fine" else frozenset[int]()
    asked = Asked(
        frozenset(map(key_id_of, keys)) | key_ids, template_ids, interest == "coarse", exact_keys
    )
    return WaitBody(cursor, asked, seconds, is_exact, _inline_declaration(document))


def settle_seconds(query: Query) -> float | None:
    """How long a client waits until nothing is pending; None: it does not."""
    settle, text = query.one(b"settle"), query.one(b"timeoutMs")
    if settle not in (None, b"flush"):
        raise InvalidRequest("meta.settle must be 'flush' when provided")
    try:
        milliseconds = float(text) if text is not None and text.strip() else float(WAIT_MS)
    except ValueError:
        milliseconds = math.nan
    if not math.isfinite(milliseconds):
        raise InvalidRequest("meta.timeoutMs must be a number (ms)")
    return None if settle is None else _bounded_ms(milliseconds) / 1000


def _decoded(body: bytes, what: str) -> dict[str, Any]:
    """An empty one for JSON that is no object: what it lacks is told then."""
    if len(body) > CONTROL_BODY_BYTES_MAX:
        raise BodyTooLarge(f"the body must not exceed {CONTROL_BODY_BYTES_MAX} bytes")
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest(f"{what} body must be valid JSON") from None
    return document if isinstance(document, dict) else {}


def _keys(document: dict[str, Any]) -> list[str]:
    given = document.get("keys", [])
    if not isinstance(given, list) or not all(_is_text(key) for key in given):
        raise InvalidRequest("wait.keys must be a non-empty string array when provided")
    keys = list(dict.fromkeys(key.strip() for key in given))
    if len(keys) > TOUCH_KEYS_MAX:
        raise InvalidRequest(f"wait.keys too large (max {TOUCH_KEYS_MAX})")
    return keys


def _key_ids(document: dict[str, Any]) -> frozenset[int]:
    given = document.get("keyIds", [])
    if not isinstance(given, list) or not all(_is_key_id(each) for each in given):
        raise InvalidRequest("wait.keyIds must be a non-empty uint32 array when provided")
    key_ids = frozenset(map(int, given))
    if len(key_ids) > TOUCH_KEYS_MAX:
        raise InvalidRequest(f"wait.keyIds too large (max {TOUCH_KEYS_MAX})")
    return key_ids


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_key_id(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value == int(value) and 0 <= value <= _KEY_ID_MAX


def _exact_keys(keys: list[str]) -> frozenset[int]:
    """Empty where they are not 1 to 16 whole keys."""
    parsed = [parse_key(key.lower()) for key in keys]
    if not 0 < len(parsed) <= TOUCH_EXACT_KEYS_MAX or None in parsed:
        return frozenset()
    return frozenset(cast("list[int]", parsed))


def _cursor(text: Any) -> Cursor | None:
    if not _is_text(text):
        raise InvalidRequest("wait.cursor must be a non-empty string")
    text = text.strip()
    if text == NOW:
        return None
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise InvalidRequest("wait.cursor must be in the form <epochHex>:<generation> or 'now'")
    return Cursor(int(match[1], 16), int(match[2]))


def _wait_ms(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise InvalidRequest("wait.timeoutMs must be a number (ms)")
    return _bounded_ms(value)


def _bounded_ms(milliseconds: float) -> float:
    return max(0.0, min(milliseconds, float(TOUCH_WAIT_MS_MAX)))


def _template_ids(given: Any) -> frozenset[int]:
    """What is no list is ignored, and so is what is no id of a template."""
    if not isinstance(given, list):
        return frozenset()
    if not all(_is_text(each) for each in given):
        raise InvalidRequest("wait.templateIdsUsed must be a string array")
    if len(given) > TOUCH_KEYS_MAX:
        raise InvalidRequest(f"wait.templateIdsUsed too large (max {TOUCH_KEYS_MAX})")
    parsed = [parse_key(each.strip().lower()) for each in given]
    return frozenset(each for each in parsed if each is not None)


def _inline_declaration(document: dict[str, Any]) -> Declaration | None:
    given = document.get("declareTemplates")
    if not isinstance(given, list) or not given:
        return None
    return Declaration(_templates(given, "wait.declareTemplates"), _ttl_ms(document, "wait"))


def _ttl_ms(document: dict[str, Any], what: str) -> int | None:
    if "inactivityTtlMs" not in document:
        return None
    value = document["inactivityTtlMs"]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:
        raise InvalidRequest(f"{what}.inactivityTtlMs must be a non-negative number (ms)")
    return int(value)


def _templates(given: Any, where: str) -> list[Declared | None]:
    if not isinstance(given, list) or not given:
        raise InvalidRequest(f"{where} must be a non-empty array")
    if len(given) > TOUCH_TEMPLATES_MAX:
        raise InvalidRequest(f"{where} too large (max {TOUCH_TEMPLATES_MAX})")
    return [_template(each, where) for each in given]


def _template(given: Any, where: str) -> Declared | None:
    """None: with an encoding that there is not, or a field twice."""
    entity = given.get("entity") if isinstance(given, dict) else None
    fields = given.get("fields") if isinstance(given, dict) else None
    is_sound = (
        _is_text(entity)
        and isinstance(fields, list)
        and 1 <= len(fields) <= TOUCH_TEMPLATE_FIELDS_MAX
        and all(isinstance(field, dict) and _is_text(field.get("name")) for field in fields)
    )
    if not is_sound:
        raise InvalidRequest(f"{where} contains invalid template definitions")
    assert isinstance(fields, list)
    assert isinstance(entity, str)
    encodings = [field.get("encoding") for field in fields]
    names = [field["name"].strip() for field in fields]
    is_known = all(isinstance(each, str) and each in ENCODINGS for each in encodings)
    if not is_known or len(set(names)) < len(names):
        return None
    pairs = zip(names, cast("list[Encoding]", encodings), strict=True)
    return Declared(entity.strip(), tuple(sorted(pairs)))
