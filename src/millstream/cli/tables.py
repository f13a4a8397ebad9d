"""Rows of an answer for people and programs: a table, JSON lines, CSV."""

from __future__ import annotations

import base64
import csv
import datetime
import decimal
import json
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

Rows = Iterable[list[tuple[Any, ...]]]

WIDTH_MAX = 80  # of a column in a table: what is longer ends with an ellipsis


def write_table(out: TextIO, names: list[str], batches: Rows) -> None:
    """Columns are as wide as the first batch needs."""
    widths: list[int] | None = None
    for batch in _at_least_one(batches):
        cells = [[_cell(value) for value in row] for row in batch]
        if widths is None:
            columns = zip(names, *cells, strict=True)
            widths = [max(map(len, column)) for column in columns]
            out.write(_line(names, widths))
            out.write(_line(["─" * width for width in widths], widths))
        for row in cells:
            out.write(_line(row, widths))


def _at_least_one(batches: Rows) -> Iterator[list[tuple[Any, ...]]]:
    is_empty = True
    for batch in batches:
        is_empty = False
        yield batch
    if is_empty:
        yield []


def _line(cells: list[str], widths: list[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join(padded).rstrip() + "\n"


def _cell(value: Any) -> str:
    text = "" if value is None else str(_plain(value)).replace("\n", "↵").replace("\r", "")
    return text if len(text) <= WIDTH_MAX else text[: WIDTH_MAX - 1] + "…"


def write_json(out: TextIO, names: list[str], kinds: list[str], batches: Rows) -> None:
    """One object per line. JSON stays JSON; bytes that are no text are base64."""
    for batch in batches:
        for row in batch:
            values = zip(names, kinds, row, strict=True)
            out.write(json.dumps({name: _value(kind, value) for name, kind, value in values}))
            out.write("\n")


def _value(kind: str, value: Any) -> Any:
    return json.loads(value) if kind == "JSON" and value is not None else _plain(value)


def write_csv(out: TextIO, names: list[str], batches: Rows) -> None:
    writer = csv.writer(out)
    writer.writerow(names)
    for batch in batches:
        writer.writerows([_plain(value) for value in row] for row in batch)


def _plain(value: Any) -> Any:
    """What JSON can hold."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value) if not isinstance(value, decimal.Decimal) else format(value, "f")
