"""The normal form of a search config: two that mean the same have the same.

Names without white space around them, aliases resolved, no setting that is off, keys in one order.
Parsing it again gives the same config.
"""

from __future__ import annotations

from typing import Any

from millstream.schemas.search_fields import (
    FLAGS,
    PARTS,
    CountMeasure,
    DefaultField,
    Measure,
    Pointer,
    Rollup,
    SearchConfig,
    SearchField,
    SummaryMeasure,
)


def search_document(search: SearchConfig) -> dict[str, Any]:
    document: dict[str, Any] = {
        "profile": search.profile,
        "primaryTimestampField": search.primary_timestamp.name,
        "aliases": dict(search.aliases),
        "defaultFields": _defaults_document(search.own_defaults),
        "containsDefaultFields": _defaults_document(search.contains_defaults),
        "fields": {name: _field_document(field) for name, field in search.fields.items()},
        "rollups": {name: _rollup_document(rollup) for name, rollup in search.rollups.items()},
    }
    return {key: value for key, value in document.items() if value}


def _field_document(field: SearchField) -> dict[str, Any]:
    document: dict[str, Any] = {
        "kind": field.kind,
        "bindings": [
            {"version": binding.version, "jsonPointer": _pointer_text(binding.pointer)}
            for binding in field.bindings
        ],
        "normalizer": field.normalizer,
        "analyzer": field.analyzer,
    }
    document |= {flag: getattr(field, flag) for flag in FLAGS}
    return {key: value for key, value in document.items() if value}


def _defaults_document(defaults: tuple[DefaultField, ...]) -> list[dict[str, Any]]:
    return [{"field": default.field.name, "boost": default.boost} for default in defaults]


def _rollup_document(rollup: Rollup) -> dict[str, Any]:
    document: dict[str, Any] = {
        "timestampField": rollup.timestamp_field.name,
        "include": rollup.include,
        "dimensions": [field.name for field in rollup.dimensions],
        "intervals": list(rollup.intervals_ms),
        "measures": {measure.name: _measure_document(measure) for measure in rollup.measures},
    }
    return {key: value for key, value in document.items() if value}


def _measure_document(measure: Measure) -> dict[str, Any]:
    if isinstance(measure, CountMeasure):
        document: dict[str, Any] = {"kind": "count"}
        return document if measure.include is None else document | {"include": measure.include}
    if isinstance(measure, SummaryMeasure):
        document = {"kind": "summary", "field": measure.field.name}
        return document | {"histogram": "log2_v1"} if measure.has_histogram else document
    pointers = {part: getattr(measure, part) for part in PARTS}
    return {"kind": "summary_parts"} | {
        f"{part}JsonPointer": _pointer_text(pointer)
        for part, pointer in pointers.items()
        if pointer is not None
    }


def _pointer_text(pointer: Pointer) -> str:
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in pointer)
