"""Rollups of a search config: what is counted and summed up over time, by which dimensions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from millstream.errors import InvalidRequest, InvalidSchema
from millstream.limits import (
    INTEGER_MAX,
    QUERY_CHARACTERS_MAX,
    ROLLUP_DIMENSIONS_MAX,
    ROLLUP_INTERVALS_MAX,
    ROLLUP_MEASURES_MAX,
)
from millstream.protocol.durations import decode_duration_ms
from millstream.schemas.query_checks import check_query
from millstream.schemas.search_fields import (
    DATE,
    FLOAT,
    INTEGER,
    PARTS,
    CountMeasure,
    Measure,
    PartsMeasure,
    Pointer,
    Rollup,
    SearchConfig,
    SearchField,
    SummaryMeasure,
)
from millstream.schemas.shapes import (
    choice_at,
    list_at,
    named_parts,
    object_at,
    pointer_at,
    text_at,
)

_KEYS = ("timestampField", "include", "dimensions", "intervals", "measures")
_MEASURE_KEYS = {
    "count": ("kind", "include"),
    "summary": ("kind", "field", "histogram"),
    "summary_parts": ("kind", *(f"{part}JsonPointer" for part in PARTS)),
}
_HISTOGRAMS = ("log2_v1",)
_HAS_UNIT = re.compile("[0-9]+(?:ms|s|m|h|d)")


def parse_rollup(
    name: str, value: Any, fields: Mapping[str, SearchField], primary: SearchField
) -> Rollup:
    """Raises InvalidSchema. Its queries are checked later, by `check_includes`."""
    path = f"search.rollups.{name}"
    settings = object_at(value, path, _KEYS)
    timestamp = settings.get("timestampField")
    return Rollup(
        name=name,
        timestamp_field=primary
        if timestamp is None
        else _date_field(timestamp, f"{path}.timestampField", fields),
        include=_parse_include(settings, path),
        dimensions=_parse_dimensions(settings.get("dimensions"), f"{path}.dimensions", fields),
        intervals_ms=_parse_intervals(settings.get("intervals"), f"{path}.intervals"),
        measures=_parse_measures(settings.get("measures"), f"{path}.measures", fields),
    )


def check_includes(search: SearchConfig) -> None:
    """Raises InvalidSchema for a query that would fail for every record later."""
    for rollup in search.rollups.values():
        path = f"search.rollups.{rollup.name}"
        _check_include(rollup.include, f"{path}.include", search)
        for measure in rollup.measures:
            if isinstance(measure, CountMeasure):
                _check_include(measure.include, f"{path}.measures.{measure.name}.include", search)


def _check_include(query: str | None, path: str, search: SearchConfig) -> None:
    try:
        if query is not None:
            check_query(query, search)
    except InvalidRequest as error:
        raise InvalidSchema(f"{path}: {error.message}") from None


def _parse_include(settings: dict[str, Any], path: str) -> str | None:
    include = settings.get("include")
    if include is None:
        return None
    if not isinstance(include, str) or not include.strip() or len(include) > QUERY_CHARACTERS_MAX:
        raise InvalidSchema(
            f"{path}.include must be a query of 1 to {QUERY_CHARACTERS_MAX} characters"
        )
    return include.strip()


def _date_field(value: Any, path: str, fields: Mapping[str, SearchField]) -> SearchField:
    field = fields.get(text_at(value, path))
    if field is None or field.kind != DATE:
        raise InvalidSchema(f"{path} must name a declared date field")
    return field


def _parse_dimensions(
    value: Any, path: str, fields: Mapping[str, SearchField]
) -> tuple[SearchField, ...]:
    if value is None:
        return ()
    dimensions: dict[str, SearchField] = {}
    for index, item in enumerate(list_at(value, path, ROLLUP_DIMENSIONS_MAX)):
        name = text_at(item, f"{path}[{index}]")
        field = fields.get(name)
        if field is None or not field.exact:
            raise InvalidSchema(f"{path}[{index}] must name a declared field with exact")
        if name in dimensions:
            raise InvalidSchema(f"{path}[{index}] is listed twice")
        dimensions[name] = field
    return tuple(dimensions.values())


def _parse_intervals(value: Any, path: str) -> dict[str, int]:
    intervals: dict[str, int] = {}
    for index, item in enumerate(list_at(value, path, ROLLUP_INTERVALS_MAX)):
        text = text_at(item, f"{path}[{index}]")
        duration_ms = decode_duration_ms(text.encode()) if _HAS_UNIT.fullmatch(text) else None
        if duration_ms is None or not 0 < duration_ms <= INTEGER_MAX:
            raise InvalidSchema(f"{path}[{index}] must be a duration such as 10s, 1m or 1h")
        if duration_ms in intervals.values():
            raise InvalidSchema(f"{path}[{index}] is listed twice")
        intervals[text] = duration_ms
    if not intervals:
        raise InvalidSchema(f"{path} must not be empty")
    return intervals


def _parse_measures(
    value: Any, path: str, fields: Mapping[str, SearchField]
) -> tuple[Measure, ...]:
    parts = named_parts(value, path, ROLLUP_MEASURES_MAX)
    if not parts:
        raise InvalidSchema(f"{path} must not be empty")
    return tuple(_parse_measure(name, part, path, fields) for name, part in parts.items())


def _parse_measure(name: str, value: Any, path: str, fields: Mapping[str, SearchField]) -> Measure:
    path = f"{path}.{name}"
    if not isinstance(value, dict):
        raise InvalidSchema(f"{path} must be an object")
    kind = choice_at(value.get("kind"), f"{path}.kind", tuple(_MEASURE_KEYS))
    settings = object_at(value, path, _MEASURE_KEYS[kind])
    if kind == "count":
        return CountMeasure(name, _parse_include(settings, path))
    if kind == "summary":
        return _parse_summary(name, settings, path, fields)
    count, sum_, min_, max_, histogram = (_parse_part(part, settings, path) for part in PARTS)
    if count is None or sum_ is None or min_ is None or max_ is None:
        raise InvalidSchema(f"{path} must have pointers to count, sum, min and max")
    return PartsMeasure(name, count, sum_, min_, max_, histogram)


def _parse_summary(
    name: str, settings: dict[str, Any], path: str, fields: Mapping[str, SearchField]
) -> SummaryMeasure:
    field = fields.get(text_at(settings.get("field"), f"{path}.field"))
    if field is None or not field.aggregatable or field.kind not in (INTEGER, FLOAT):
        raise InvalidSchema(
            f"{path}.field must name a declared integer or float field with aggregatable"
        )
    histogram = settings.get("histogram")
    if histogram is not None:
        choice_at(histogram, f"{path}.histogram", _HISTOGRAMS)
    return SummaryMeasure(name, field, histogram is not None)


def _parse_part(part: str, settings: dict[str, Any], path: str) -> Pointer | None:
    key = f"{part}JsonPointer"
    return None if settings.get(key) is None else pointer_at(settings[key], f"{path}.{key}")
