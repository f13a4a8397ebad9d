"""The parts of a search config: fields and their places, aliases, rollups and measures."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

KEYWORD, TEXT, INTEGER, FLOAT, DATE, BOOL = "keyword", "text", "integer", "float", "date", "bool"
KINDS = (KEYWORD, TEXT, INTEGER, FLOAT, DATE, BOOL)
ORDERED_KINDS = frozenset({INTEGER, FLOAT, DATE})
LOWERCASE = "lowercase_v1"
NORMALIZERS = ("identity_v1", LOWERCASE)
ANALYZERS = ("unicode_word_v1",)

Pointer: TypeAlias = tuple[str, ...]


class Binding(NamedTuple):
    """From this version of the schema on, the field stands there."""

    version: int
    pointer: Pointer


@dataclass(frozen=True, slots=True)
class SearchField:
    name: str
    kind: str
    bindings: tuple[Binding, ...]  # by version
    normalizer: str | None = None
    analyzer: str | None = None
    exact: bool = False
    prefix: bool = False
    column: bool = False
    exists: bool = False
    sortable: bool = False
    aggregatable: bool = False
    contains: bool = False
    positions: bool = False

    def pointer_at(self, version: int) -> Pointer | None:
        """Where the field stands in a record of this version; None: nowhere yet."""
        index = bisect_right(self.bindings, version, key=_version_of) - 1
        return self.bindings[index].pointer if index >= 0 else None


FLAGS = (
    "exact",
    "prefix",
    "column",
    "exists",
    "sortable",
    "aggregatable",
    "contains",
    "positions",
)


class DefaultField(NamedTuple):
    field: SearchField
    boost: float


class CountMeasure(NamedTuple):
    name: str
    include: str | None  # a query; None: all records count


class SummaryMeasure(NamedTuple):
    name: str
    field: SearchField
    has_histogram: bool


@dataclass(frozen=True, slots=True)
class PartsMeasure:
    """Of records that are summaries themselves."""

    name: str
    count: Pointer
    sum: Pointer
    min: Pointer
    max: Pointer
    histogram: Pointer | None


PARTS = ("count", "sum", "min", "max", "histogram")

Measure: TypeAlias = CountMeasure | SummaryMeasure | PartsMeasure


class Rollup(NamedTuple):
    name: str
    timestamp_field: SearchField
    include: str | None  # a query; None: all records
    dimensions: tuple[SearchField, ...]
    intervals_ms: Mapping[str, int]  # by the way they are written: requests name them so
    measures: tuple[Measure, ...]


@dataclass(frozen=True, slots=True)
class SearchConfig:
    primary_timestamp: SearchField
    fields: Mapping[str, SearchField]
    aliases: Mapping[str, str]
    own_defaults: tuple[DefaultField, ...]  # where the config says so itself
    contains_defaults: tuple[DefaultField, ...]  # kept for clients that write it
    rollups: Mapping[str, Rollup]
    profile: str | None = None

    @property
    def default_fields(self) -> tuple[DefaultField, ...]:
        """Where bare terms are looked for: as the config says, else in every text field."""
        if self.own_defaults:
            return self.own_defaults
        texts = (field for field in self.fields.values() if field.kind == TEXT)
        return tuple(DefaultField(field, 1) for field in texts)

    def field(self, name: str) -> SearchField | None:
        """The field of this name or alias."""
        return self.fields.get(self.aliases.get(name, name))


def _version_of(binding: Binding) -> int:
    return binding.version
