"""Which keys one change record touches.

A record is looked into as little as possible: its fields stay raw JSON, and only those that a
template names are decoded. Fields that are spelled differently count as changed, even if they mean
the same: one touch too many does no harm, one too few would.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, Literal

import msgspec

from millstream.limits import TOUCH_CHANGED_FIELDS_MAX
from millstream.touch.keys import KeyMaker, join_arguments

Encoding = Literal["string", "int64", "bool", "datetime", "bytes"]

ENCODINGS: frozenset[str] = frozenset(("string", "int64", "bool", "datetime", "bytes"))
MISSING: Final = object()
NO_TUPLE = b""  # of arguments: the row is none that a client could wait for

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_SAFE_INTEGER_MAX = 2**53


class NotTold(ValueError):
    """The record does not tell which keys it touches: it may be any."""


class _Headers(msgspec.Struct):
    operation: str = ""


class _Record(msgspec.Struct):
    headers: _Headers
    type: str = ""
    value: msgspec.Raw = msgspec.Raw()
    old_value: msgspec.Raw = msgspec.Raw()


_records = msgspec.json.Decoder(_Record)
_fields: msgspec.json.Decoder[Any] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_anything: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class Row:
    """The fields of a row. A value is decoded when it is first asked for."""

    __slots__ = ("_values", "fields")

    def __init__(self, raw: msgspec.Raw) -> None:
        """What is no object has no fields."""
        self.fields: Mapping[str, msgspec.Raw] = {}
        self._values: dict[str, Any] = {}
        if bytes(memoryview(raw)[:1]) == b"{":
            self.fields = _decoded(raw, _fields)

    def value(self, name: str) -> Any:
        """MISSING where there is no such field."""
        try:
            return self._values[name]
        except KeyError:
            raw = self.fields.get(name)
            value = MISSING if raw is None else _decoded(raw, _anything)
            self._values[name] = value
            return value


class Change:
    """One insert, update or delete of a row. Each part is looked into once, for all templates."""

    def __init__(self, record: _Record) -> None:
        self._record = record
        self.entity = record.type
        self.operation = record.headers.operation

    @cached_property
    def after(self) -> Row:
        return Row(self._record.value)

    @cached_property
    def before(self) -> Row:
        return Row(self._record.old_value)

    @cached_property
    def changed_fields(self) -> Sequence[str]:
        after, before = self.after.fields, self.before.fields
        changed = [
            name
            for name, raw in after.items()
            if name not in before or bytes(before[name]) != bytes(raw)
        ]
        return changed + [name for name in before if name not in after]


def read_change(message: bytes | memoryview) -> Change | None:
    """None: a control record, which touches nothing. Raises NotTold for what is no change."""
    try:
        record = _records.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotTold(str(error)) from None
    return Change(record) if record.headers.operation else None


def _decoded(raw: msgspec.Raw, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotTold(str(error)) from None


class Shape:
    """The fields by which a template tells rows apart, sorted by name."""

    __slots__ = ("_encoders", "encodings", "names")

    def __init__(self, fields: Sequence[tuple[str, Encoding]]) -> None:
        self.names = tuple(name for name, _ in fields)
        self.encodings = tuple(encoding for _, encoding in fields)
        self._encoders = tuple(_ENCODERS[encoding] for encoding in self.encodings)

    def arguments(self, row: Row) -> bytes | None:
        """NO_TUPLE for a row with a null or another value that has no key; None for one that
        lacks a field."""
        found: list[str] = []
        for name, encode in zip(self.names, self._encoders, strict=True):
            value = row.value(name)
            if value is MISSING:
                return None
            argument = encode(value)
            if argument is None:
                return NO_TUPLE
            found.append(argument)
        return join_arguments(found)


def fine_keys(
    change: Change, shape: Shape, maker: KeyMaker, on_missing_before: str
) -> set[int] | None:
    """None: the record does not tell what the row was before, so it may be any row of the template.

    Raises NotTold where that is an error, and where more has changed than is worth telling.
    """
    after = NO_TUPLE if change.operation == "delete" else shape.arguments(change.after)
    if change.operation == "insert":
        return _row_keys(maker, after)
    before = shape.arguments(change.before)
    if before is None and on_missing_before == "skipBefore":
        names = _other_fields(change.after.fields, shape)
        return _row_keys(maker, after) | _field_keys(maker, names, after)
    if before is None:
        if on_missing_before == "error":
            raise NotTold(f"a change of {change.entity} does not say what the row was before")
        return None
    if change.operation == "delete" or (after is not None and before != after):
        return _row_keys(maker, before) | _row_keys(maker, after)
    names = _other_fields(change.changed_fields, shape)
    if after is None:  # it says only in part what the row is now
        return _row_keys(maker, before) | _field_keys(maker, names, before)
    return _watch_keys(maker, before) | _field_keys(maker, names, before)


def _watch_keys(maker: KeyMaker, arguments: bytes | None) -> set[int]:
    return {maker.watch(arguments)} if arguments else set()


def _row_keys(maker: KeyMaker, arguments: bytes | None) -> set[int]:
    return {maker.watch(arguments), maker.membership(arguments)} if arguments else set()


def _field_keys(maker: KeyMaker, names: Sequence[str], arguments: bytes | None) -> set[int]:
    return {maker.field(name, arguments) for name in names} if arguments else set()


def _other_fields(names: Collection[str], shape: Shape) -> Sequence[str]:
    if len(names) > TOUCH_CHANGED_FIELDS_MAX:
        raise NotTold(f"more than {TOUCH_CHANGED_FIELDS_MAX} fields changed")
    return [name for name in names if name not in shape.names]


# Arguments: the text that stands for a value in a key


def _string_argument(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return number_text(value) if isinstance(value, int | float) else None


def _int64_argument(value: Any) -> str | None:
    if isinstance(value, str):
        text = value.strip()
        return text if _INTEGER.fullmatch(text) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float):
        return number_text(value) if value.is_integer() else None
    return str(value)


def _bool_argument(value: Any) -> str | None:
    if not isinstance(value, bool):
        return None
    return "1" if value else "0"


def _datetime_argument(value: Any) -> str | None:
    """Without a zone it is in UTC, whatever zone the server is in."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value.strip())
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    text = moment.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return text + "Z"


def _bytes_argument(value: Any) -> str | None:
    return value if isinstance(value, str) else None


_ENCODERS: dict[str, Callable[[Any], str | None]] = {
    "string": _string_argument,
    "int64": _int64_argument,
    "bool": _bool_argument,
    "datetime": _datetime_argument,
    "bytes": _bytes_argument,
}


def number_text(value: int | float) -> str:
    """As JavaScript prints it, where every number is a double: clients make their keys there."""
    if isinstance(value, int) and abs(value) <= _SAFE_INTEGER_MAX:
        return str(value)
    try:
        number = float(value)
    except OverflowError:
        return "Infinity" if value > 0 else "-Infinity"
    if number == 0:
        return "0"
    digits, _, exponent_text = repr(number).replace("-", "", number < 0).partition("e")
    whole, _, fraction = digits.partition(".")
    fraction = "" if fraction == "0" else fraction
    point = len(whole) + int(exponent_text or 0)  # of the digits, before the decimal point
    digits = whole + fraction
    stripped = digits.lstrip("0")
    point -= len(digits) - len(stripped)
    digits = stripped.rstrip("0")
    sign = "-" if number < 0 else ""
    if 0 < point <= 21:
        whole, fraction = digits[:point].ljust(point, "0"), digits[point:]
        return f"{sign}{whole}.{fraction}" if fraction else sign + whole
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    mantissa = f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits
    return f"{sign}{mantissa}e{point - 1:+d}"
