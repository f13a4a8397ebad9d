"""What a lens' `convert` does to a single value: a table, or one of a few built-in changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from millstream.errors import InvalidSchema
from millstream.schemas.dialect import Schema, is_date_time
from millstream.schemas.documents import MISSING

SCALARS: Final = ("string", "integer", "number", "boolean", "null")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MILLIS_MIN = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MILLISECOND
_MILLIS_MAX = (datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC) - _EPOCH) // _MILLISECOND
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")


def is_of_type(value: Any, name: str) -> bool:
    """In the sense of JSON Schema: 1.0 is an integer, and `true` is no number."""
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return isinstance(value, _CLASSES[name])


_CLASSES: dict[str, Any] = {
    "string": str,
    "number": int | float,
    "boolean": bool,
    "null": type(None),
    "object": dict,
    "array": list,
}


def text_of(value: Any) -> str:
    """A scalar as JavaScript writes it, which is how tables name their keys."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _number_text(value) if isinstance(value, float) else str(value)


def _number_text(value: float) -> str:
    if value == 0:
        return "0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text, point = "".join(map(str, digits)), len(digits) + exponent
    if 0 < point <= 21:
        whole = text[:point].ljust(point, "0")
        body = whole + ("." + text[point:] if len(text) > point else "")
    elif -6 < point <= 0:
        body = "0." + "0" * -point + text
    else:
        mantissa = text[0] + ("." + text[1:] if len(text) > 1 else "")
        body = f"{mantissa}e{point - 1:+d}"
    return "-" * sign + body


@dataclass(frozen=True, slots=True)
class Table:
    """Gives each value that it names another one, and the default to the rest, if there is one."""

    outputs: dict[str, Any]
    default: Any  # MISSING: none

    def apply(self, value: Any) -> Any:
        output = self.outputs.get(text_of(value), self.default)
        if output is MISSING:
            raise InvalidSchema("the table of the lens has no such value and no default")
        return output

    @property
    def input_types(self) -> frozenset[str]:
        return frozenset(SCALARS)

    @property
    def takes_any(self) -> bool:
        """Whether there is an output for every value of the type it is for."""
        return self.default is not MISSING

    @property
    def result(self) -> Schema:
        """What an output is, whatever comes in."""
        return {"enum": [*self.outputs.values(), self.default]}


@dataclass(frozen=True, slots=True)
class Builtin:
    name: str
    input_type: str
    result: Schema
    takes_any: bool
    change: Callable[[Any], Any]

    def apply(self, value: Any) -> Any:
        if not is_of_type(value, self.input_type):
            raise InvalidSchema(f"{self.name} takes {self.input_type}")
        return self.change(value)

    @property
    def input_types(self) -> frozenset[str]:
        return frozenset({self.input_type})


Transform = Table | Builtin


def _string_to_int(text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise InvalidSchema("a lens meets a text that is no whole number")
    return int(text)


def _rfc3339_to_unix_millis(text: str) -> int:
    if not is_date_time(text) or text.startswith("0000") or text[17:19] == "60":
        raise InvalidSchema("a lens meets a text that is no RFC 3339 time")
    # Six digits of the fraction are all that Python reads, and three all that counts.
    fraction = re.search(r"\.(\d+)", text)
    plain = text if fraction is None else text.replace(fraction.group(), "")
    moment = datetime.fromisoformat(plain.replace("Z", "+00:00"))
    millis = 0 if fraction is None else int(fraction.group(1)[:3].ljust(3, "0"))
    return (moment - _EPOCH) // _MILLISECOND + millis


def _unix_millis_to_rfc3339(value: int | float) -> str:
    """Times that have no year of four digits become the first or the last that has one: a read
    must not fail because of one absurd entry."""
    millis = min(max(int(value), _MILLIS_MIN), _MILLIS_MAX)
    moment = _EPOCH + millis * _MILLISECOND
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


_TEXT: Schema = {"type": "string"}
BUILTINS: dict[str, Builtin] = {
    each.name: each
    for each in (
        Builtin("lowercase", "string", _TEXT, True, str.lower),
        Builtin("uppercase", "string", _TEXT, True, str.upper),
        Builtin("string_to_int", "string", {"type": "integer"}, False, _string_to_int),
        Builtin("int_to_string", "integer", _TEXT, True, text_of),
        Builtin(
            "rfc3339_to_unix_millis", "string", {"type": "integer"}, False, _rfc3339_to_unix_millis
        ),
        Builtin(
            "unix_millis_to_rfc3339",
            "integer",
            {"type": "string", "format": "date-time"},
            True,
            _unix_millis_to_rfc3339,
        ),
    )
}


def parse_transform(document: Any, where: str) -> Transform:
    if not isinstance(document, dict):
        raise InvalidSchema(f"{where} must be an object")
    if set(document) == {"builtin"}:
        name = document["builtin"]
        if not isinstance(name, str) or name not in BUILTINS:
            raise InvalidSchema(f"{where}.builtin must be one of {', '.join(BUILTINS)}")
        return BUILTINS[name]
    if "map" not in document or not set(document) <= {"map", "default"}:
        raise InvalidSchema(f"{where} must have map and perhaps default, or builtin, and no more")
    return _parse_table(document, where)


def _parse_table(document: dict[str, Any], where: str) -> Table:
    outputs, default = document["map"], document.get("default", MISSING)
    if not isinstance(outputs, dict):
        raise InvalidSchema(f"{where}.map must be an object")
    if any(isinstance(output, dict | list) for output in (*outputs.values(), default)):
        raise InvalidSchema(f"{where}.map must have texts, numbers, booleans or null as values")
    return Table(dict(outputs), default)
