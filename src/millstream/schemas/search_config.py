"""The `search` part of a schema registry: which fields can be filtered, searched and rolled up.

The parts are in search_fields.py, rollups are read by rollups.py, and search_documents.py writes
their normal form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from millstream.errors import InvalidSchema
from millstream.limits import (
    INTEGER_MAX,
    ROLLUPS_MAX,
    SEARCH_ALIASES_MAX,
    SEARCH_BINDINGS_MAX,
    SEARCH_FIELDS_MAX,
    SEARCHES_CACHED,
)
from millstream.schemas.documents import decode_document
from millstream.schemas.rollups import check_includes, parse_rollup
from millstream.schemas.search_documents import search_document
from millstream.schemas.search_fields import (
    ANALYZERS,
    DATE,
    FLAGS,
    KEYWORD,
    KINDS,
    NORMALIZERS,
    TEXT,
    Binding,
    DefaultField,
    Rollup,
    SearchConfig,
    SearchField,
)
from millstream.schemas.shapes import (
    choice_at,
    list_at,
    named_parts,
    object_at,
    pointer_at,
    text_at,
)
from millstream.state.rules import Rules

__all__ = ["SearchConfig", "SearchField", "parse_search", "search_document", "search_of"]

_KEYS = (
    "profile",
    "primaryTimestampField",
    "fields",
    "defaultFields",
    "containsDefaultFields",
    "aliases",
    "rollups",
)
_FIELD_KEYS = ("kind", "bindings", "normalizer", "analyzer", *FLAGS)


def search_of(rules: Rules) -> SearchConfig | None:
    """The search config of a stream; None: it has none."""
    return _stored_search(rules.search) if rules.search else None


@lru_cache(maxsize=SEARCHES_CACHED)
def _stored_search(document: bytes) -> SearchConfig:
    return parse_search(decode_document(document, "search"))


def parse_search(document: Any) -> SearchConfig:
    """Raises InvalidSchema for a config that could not serve every query it promises to."""
    search = object_at(document, "search", _KEYS)
    fields = _parse_fields(search.get("fields"))
    primary = _parse_primary(search.get("primaryTimestampField"), fields)
    config = SearchConfig(
        primary_timestamp=primary,
        fields=fields,
        aliases=_parse_aliases(search.get("aliases"), fields),
        own_defaults=(),
        contains_defaults=(),
        rollups=_parse_rollups(search.get("rollups"), fields, primary),
        profile=_parse_profile(search.get("profile")),
    )
    config = replace(
        config,
        own_defaults=_parse_defaults(search, "defaultFields", config),
        contains_defaults=_parse_defaults(search, "containsDefaultFields", config),
    )
    check_includes(config)
    return config


def _parse_profile(value: Any) -> str | None:
    return None if value is None else text_at(value, "search.profile")


def _parse_primary(value: Any, fields: Mapping[str, SearchField]) -> SearchField:
    field = fields.get(text_at(value, "search.primaryTimestampField"))
    if field is None or field.kind != DATE:
        raise InvalidSchema("search.primaryTimestampField must name a declared date field")
    return field


# Fields


def _parse_fields(value: Any) -> dict[str, SearchField]:
    parts = named_parts(value, "search.fields", SEARCH_FIELDS_MAX)
    if not parts:
        raise InvalidSchema("search.fields must not be empty")
    return {name: _parse_field(name, part) for name, part in parts.items()}


def _parse_field(name: str, value: Any) -> SearchField:
    path = f"search.fields.{name}"
    settings = object_at(value, path, _FIELD_KEYS)
    normalizer, analyzer = settings.get("normalizer"), settings.get("analyzer")
    field = SearchField(
        name=name,
        kind=choice_at(settings.get("kind"), f"{path}.kind", KINDS),
        bindings=_parse_bindings(settings.get("bindings"), f"{path}.bindings"),
        normalizer=None
        if normalizer is None
        else choice_at(normalizer, f"{path}.normalizer", NORMALIZERS),
        analyzer=None if analyzer is None else choice_at(analyzer, f"{path}.analyzer", ANALYZERS),
        **{flag: settings.get(flag) is True for flag in FLAGS},
    )
    _check_capabilities(field, path)
    return field


def _parse_bindings(value: Any, path: str) -> tuple[Binding, ...]:
    bindings: dict[int, Binding] = {}
    for index, item in enumerate(list_at(value, path, SEARCH_BINDINGS_MAX)):
        place = f"{path}[{index}]"
        binding = object_at(item, place, ("version", "jsonPointer"))
        version = binding.get("version")
        if type(version) is not int or not 0 < version <= INTEGER_MAX:
            raise InvalidSchema(f"{place}.version must be a positive integer")
        if version in bindings:
            raise InvalidSchema(f"{place}.version is bound twice")
        pointer = pointer_at(binding.get("jsonPointer"), f"{place}.jsonPointer")
        bindings[version] = Binding(version, pointer)
    if not bindings:
        raise InvalidSchema(f"{path} must not be empty")
    return tuple(bindings[version] for version in sorted(bindings))


def _check_capabilities(field: SearchField, path: str) -> None:
    forbidden: tuple[str, ...]
    if field.kind == TEXT:
        forbidden = ("column", "sortable", "aggregatable")
        if field.analyzer is None:
            raise InvalidSchema(f"{path}.analyzer is required for text fields")
    elif field.kind == KEYWORD:
        forbidden = ("analyzer", "positions")
    else:
        forbidden = ("prefix", "contains", "normalizer", "analyzer", "positions")
    for setting in forbidden:
        if getattr(field, setting):
            raise InvalidSchema(f"{path}.{setting} is not supported for {field.kind} fields")


# What refers to fields


def _parse_aliases(value: Any, fields: Mapping[str, SearchField]) -> dict[str, str]:
    if value is None:
        return {}
    aliases: dict[str, str] = {}
    for name, part in named_parts(value, "search.aliases", SEARCH_ALIASES_MAX).items():
        target = text_at(part, f"search.aliases.{name}")
        if target not in fields:
            raise InvalidSchema(f"search.aliases.{name} must name a declared field")
        aliases[name] = target
    return aliases


def _parse_defaults(
    search: dict[str, Any], key: str, config: SearchConfig
) -> tuple[DefaultField, ...]:
    if search.get(key) is None:
        return ()
    defaults: list[DefaultField] = []
    for index, item in enumerate(list_at(search[key], f"search.{key}", SEARCH_FIELDS_MAX)):
        path = f"search.{key}[{index}]"
        settings = object_at(item, path, ("field", "boost"))
        field = config.field(text_at(settings.get("field"), f"{path}.field"))
        if field is None or field.kind not in (TEXT, KEYWORD):
            raise InvalidSchema(f"{path}.field must name a declared text or keyword field")
        boost = settings.get("boost")
        defaults.append(
            DefaultField(field, 1 if boost is None else _parse_boost(boost, f"{path}.boost"))
        )
    return tuple(defaults)


def _parse_boost(value: Any, path: str) -> int | float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= INTEGER_MAX:
        raise InvalidSchema(f"{path} must be a number greater than 0")
    number: int | float = value
    return number


def _parse_rollups(
    value: Any, fields: Mapping[str, SearchField], primary: SearchField
) -> dict[str, Rollup]:
    if value is None:
        return {}
    parts = named_parts(value, "search.rollups", ROLLUPS_MAX)
    return {name: parse_rollup(name, part, fields, primary) for name, part in parts.items()}
