"""Canonical values: what a field of a record is compared by, whatever way it was written.

keyword and text: the string; integer and date: an int, of milliseconds since 1970; float: a float;
bool: a bool. What cannot be read as the field's kind is treated as missing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, TypeAlias

from millstream.limits import SEARCH_VALUES_MAX
from millstream.schemas.dates import parse_date_ms
from millstream.schemas.documents import MISSING, find
from millstream.schemas.search_fields import (
    BOOL,
    DATE,
    FLOAT,
    INTEGER,
    KEYWORD,
    LOWERCASE,
    TEXT,
    SearchField,
)

Value: TypeAlias = str | int | float | bool

_INTEGER = re.compile("-?(?:0|[1-9][0-9]{0,399})")
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,4})?"
)
_WORD = re.compile(r"[^\W_]+")
_POSITIONAL_DIGITS_MAX = 21  # of a JavaScript number; larger ones are written with an exponent
_LEADING_ZEROS_MAX = 6


def values_of(field: SearchField, version: int, document: Any) -> list[Value]:
    """The canonical values of a record of this schema version; arrays have several."""
    canonical = _CANONICAL[field.kind]
    found = (canonical(field, raw) for raw in raw_values_of(field, version, document))
    return [value for value in found if value is not None]


def raw_values_of(field: SearchField, version: int, document: Any) -> Iterator[Any]:
    """What stands at the field's place, nulls too, arrays flattened; the first values only, when
    there are more than `SEARCH_VALUES_MAX`."""
    pointer = field.pointer_at(version)
    if pointer is None:
        return iter(())
    found = find(document, pointer)
    if found is MISSING:
        return iter(())
    return _flattened(found) if isinstance(found, list) else iter((found,))


def _flattened(values: list[Any]) -> Iterator[Any]:
    """Without recursion: arrays may be nested as deeply as JSON may."""
    left = SEARCH_VALUES_MAX
    open_lists = [iter(values)]
    while open_lists:
        for value in open_lists[-1]:
            if isinstance(value, list):
                open_lists.append(iter(value))
                break
            if not left:
                return
            left -= 1
            yield value
        else:
            open_lists.pop()


def canonical_value(field: SearchField, raw: Any) -> Value | None:
    """Of one value in a record, or of the text in a query; None: it is not of the field's kind."""
    return _CANONICAL[field.kind](field, raw)


def canonical_text(value: Value) -> str:
    """How a canonical value is written where only text can stand."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return number_text(value)


def number_text(value: int | float) -> str:
    """As JavaScript writes a finite number, and integers of any size in full."""
    if isinstance(value, int) or not value:
        return str(int(value))
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)  # finite
    text = "".join(map(str, digits))
    point = len(text) + exponent
    prefix = "-" if sign else ""
    if len(text) <= point <= _POSITIONAL_DIGITS_MAX:
        return f"{prefix}{text:0<{point}}"
    if 0 < point < len(text):
        return f"{prefix}{text[:point]}.{text[point:]}"
    if -_LEADING_ZEROS_MAX < point <= 0:
        return f"{prefix}0.{'0' * -point}{text}"
    fraction = f".{text[1:]}" if len(text) > 1 else ""
    return f"{prefix}{text[0]}{fraction}e{point - 1:+d}"


def parse_number(raw: Any) -> int | float | None:
    """A finite number, or one that is written as a string; None for anything else."""
    if isinstance(raw, str):
        text = raw.strip()
        if _INTEGER.fullmatch(text):
            raw = int(text)
        elif _NUMBER.fullmatch(text):
            raw = float(text)
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        return None
    try:
        return raw if math.isfinite(raw) else None
    except OverflowError:  # an integer that no float comes near
        return None


def words_of(text: str) -> list[str]:
    """The words that text fields are searched by: letters and digits in lower case."""
    return _WORD.findall(text.lower())


def _keyword(field: SearchField, raw: Any) -> Value | None:
    if not isinstance(raw, str):
        return None
    return raw.lower() if field.normalizer == LOWERCASE else raw


def _text(_field: SearchField, raw: Any) -> Value | None:
    return raw if isinstance(raw, str) else None


def _integer(_field: SearchField, raw: Any) -> Value | None:
    if isinstance(raw, str):
        text = raw.strip()
        return int(text) if _INTEGER.fullmatch(text) else None
    if isinstance(raw, bool):
        return None
    if isinstance(raw, float):
        return int(raw) if raw.is_integer() else None
    return raw if isinstance(raw, int) else None


def _float(_field: SearchField, raw: Any) -> Value | None:
    number = parse_number(raw)
    return None if number is None else float(number)


def _date(_field: SearchField, raw: Any) -> Value | None:
    if isinstance(raw, str):
        text = raw.strip()
        moment_ms = parse_date_ms(text)
        if moment_ms is not None:
            return moment_ms
        return int(text) if _INTEGER.fullmatch(text) else None
    number = parse_number(raw)
    return None if number is None else int(number)


def _bool(_field: SearchField, raw: Any) -> Value | None:
    if isinstance(raw, str):
        return {"true": True, "false": False}.get(raw.strip().lower())
    return raw if isinstance(raw, bool) else None


_CANONICAL: dict[str, Callable[[SearchField, Any], Value | None]] = {
    KEYWORD: _keyword,
    TEXT: _text,
    INTEGER: _integer,
    FLOAT: _float,
    DATE: _date,
    BOOL: _bool,
}
