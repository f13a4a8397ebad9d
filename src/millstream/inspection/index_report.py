"""What there is of indexes over one stream. Nothing builds any yet: every report is empty.

Who builds them answers `IndexReports.of`; stream_report.py makes the documents of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from millstream.state.stream import Stream


@dataclass(frozen=True)
class IndexRuns:
    """An index that is kept as runs over segments, such as that of routing keys."""

    covered_segments: int = 0
    lag_ms: int | None = None  # from the last covered append to the last one; None: none is covered
    size: int = 0  # bytes of its objects
    objects: int = 0
    active_runs: int = 0
    retired_runs: int = 0
    updated_ms: int | None = None


@dataclass(frozen=True)
class ExactIndex:
    """Over the values of one field."""

    name: str
    kind: str  # of the field's values
    is_stale: bool  # it was built for another configuration
    runs: IndexRuns = IndexRuns()


@dataclass(frozen=True)
class SearchFamily:
    """One kind of section in the companions of segments."""

    family: str  # exact, col, fts, agg or mblk
    fields: tuple[str, ...]
    plan_generation: int
    covered_segments: int = 0
    contiguous_segments: int = 0  # covered without a gap, from the first one on
    stale_segments: int = 0
    lag_ms: int | None = None
    size: int = 0
    objects: int = 0
    updated_ms: int | None = None


@dataclass(frozen=True)
class IndexReport:
    """All of it for one stream."""

    plan_generation: int = 0
    routing_key: IndexRuns = IndexRuns()
    lexicon: IndexRuns = IndexRuns()
    exact: tuple[ExactIndex, ...] = ()
    families: tuple[SearchFamily, ...] = ()
    companion_objects: int = 0
    companion_size: int = 0


class IndexReports(Protocol):
    def of(self, stream: Stream) -> IndexReport:
        """At once: it is asked in the middle of a request. A report that differs from the last one
        is a change of the stream; `Engine.observers` of it want to be woken."""
        ...


NOTHING = IndexReport()


class NoIndexes:
    """For as long as nothing builds any."""

    def of(self, stream: Stream) -> IndexReport:
        return NOTHING
