"""The record kept outside the server: every request sent, every answer received, every byte shown.

Ticks order events of all threads: when one request was answered before another was sent, the
server must have applied them in that order. A stream name has one owner who alone creates, closes,
forks and deletes it, one request at a time, so its incarnations are known exactly; anybody may
append, and an append whose time touches two incarnations may be in either.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from tests.crash.content import Content, Kind, Layout, Loose, Placed, Position, lay_out


class Fate(Enum):
    UNKNOWN = auto()  # sent whole, never answered: there at most once
    ACKNOWLEDGED = auto()
    REFUSED = auto()  # answered with an error: must not be there
    TORN = auto()  # only a part was sent: must not be there


@dataclass(frozen=True)
class ProducerMark:
    id: str
    epoch: int
    seq: int

    @property
    def headers(self) -> dict[str, str]:
        return {
            "Producer-Id": self.id,
            "Producer-Epoch": str(self.epoch),
            "Producer-Seq": str(self.seq),
        }


@dataclass(eq=False)
class Request:
    label: str
    method: str
    stream: str
    kind: Kind
    payload: Content
    headers: dict[str, str] = field(default_factory=dict)
    producer: ProducerMark | None = None
    stream_seq: str | None = None
    closes: bool = False
    sent: int = 0
    answered: float = math.inf
    status: int = 0
    end: Position | None = None  # acknowledged with this offset
    fate: Fate = Fate.UNKNOWN

    @property
    def sets_content(self) -> bool:
        return len(self.payload) > 0 and self.fate in (Fate.UNKNOWN, Fate.ACKNOWLEDGED)

    @property
    def start(self) -> int:
        assert self.end is not None
        return self.end.units(self.kind) - len(self.payload)

    def __str__(self) -> str:
        return f"{self.label} {self.method} {self.stream} ({self.fate.name} {self.status})"


@dataclass(eq=False)
class Incarnation:
    """One life of a stream name, from its PUT to its DELETE."""

    stream: str
    kind: Kind
    created: Request
    parent: Incarnation | None = None
    inherited: int | None = None  # units; None: not told, found out by reading
    children: list[Incarnation] = field(default_factory=list)
    deleted: Request | None = None
    closed: Request | None = None
    producers: dict[str, ProducerMark] = field(default_factory=dict)  # the newest acknowledged
    stream_seq: str | None = None
    requests: list[Request] = field(default_factory=list)  # acknowledged with an offset
    settled: Content | None = None  # what the last check found; None: not checked yet
    tail: Position | None = None  # of the settled content

    @property
    def is_there(self) -> bool:
        """As far as its owner was told."""
        return self.created.fate is Fate.ACKNOWLEDGED and self.deleted is None

    @property
    def keeps_source(self) -> bool:
        return self.is_there or any(child.keeps_source for child in self.children)

    def may_hold(self, request: Request) -> bool:
        ended = math.inf if self.deleted is None else self.deleted.answered
        return request.answered > self.created.sent and request.sent < ended


@dataclass(frozen=True)
class Observation:
    """What a reader was shown."""

    stream: str
    connected: int
    start: int
    content: Content
    how: str


@dataclass
class Brief:
    """A stream with a short window, never touched again after `touched` (monotonic seconds)."""

    stream: str
    touched: float
    window_seconds: int


class History:
    def __init__(self) -> None:
        self.ticks = itertools.count(1)
        self.streams: dict[str, list[Incarnation]] = {}
        self.pending: list[Request] = []  # appends since the last check
        self.observations: list[Observation] = []
        self.briefs: list[Brief] = []
        self.violations: list[str] = []
        self.acknowledged = 0
        self.waits = 0  # answers that asked to come back later
        self.is_faulty = False  # errors are injected into the server: it may leave anything open

    def tick(self) -> int:
        return next(self.ticks)

    def last(self, stream: str) -> Incarnation | None:
        incarnations = self.streams.get(stream)
        return incarnations[-1] if incarnations else None

    def complain(self, what: str) -> None:
        self.violations.append(what)


@dataclass
class Expectation:
    """What one incarnation must hold: a known beginning, then pieces."""

    settled: Content
    placed: list[tuple[Placed, Position | None]]
    loose: list[Loose]


def expect_content(history: History, inc: Incarnation, content: Content) -> Expectation:
    if inc.settled is not None:
        expectation = Expectation(inc.settled, [], [])
    elif inc.parent is not None:
        expectation = _expect_inherited(history, inc, content)
    else:
        expectation = Expectation(inc.kind.nothing, [], [])
    if inc.settled is None and len(inc.created.payload) > 0:
        start = inc.created.start if inc.created.end else _initial_start(inc, content)
        piece = Placed(start, inc.created.payload, inc.created.label)
        expectation.placed.append((piece, inc.created.end))
    for request in history.pending:
        _add_request(history, inc, request, expectation)
    return expectation


def _initial_start(inc: Incarnation, content: Content) -> int:
    return 0 if inc.parent is None else len(content) - len(inc.created.payload)


def _add_request(
    history: History, inc: Incarnation, request: Request, expectation: Expectation
) -> None:
    if request.stream != inc.stream or not request.sets_content or not inc.may_hold(request):
        return
    others = any(
        other is not inc and other.may_hold(request) for other in history.streams[inc.stream]
    )
    answered = request.fate is Fate.ACKNOWLEDGED
    if answered and request.end is not None and not others:
        piece = Placed(request.start, request.payload, request.label)
        expectation.placed.append((piece, request.end))
    else:
        required = answered and not others
        expectation.loose.append(Loose(request.payload, request.label, required))


def _expect_inherited(history: History, inc: Incarnation, content: Content) -> Expectation:
    """The source's expectation, cut at the fork point."""
    assert inc.parent is not None
    if inc.inherited is None:
        inc.inherited = len(content) - len(inc.created.payload)
    cut = inc.inherited
    source = expect_content(history, inc.parent, content)
    placed = list[tuple[Placed, Position | None]]()
    for piece, end in source.placed:
        if piece.start + len(piece.payload) <= cut:
            placed.append((piece, end))
        elif piece.start < cut:
            placed.append((replace(piece, payload=piece.payload[: cut - piece.start]), None))
    loose = [
        replace(piece, required=False, cut=cut if piece.cut is None else min(cut, piece.cut))
        for piece in source.loose
    ]
    return Expectation(source.settled[:cut], placed, loose)


def check_content(history: History, inc: Incarnation, content: Content, tail: Position) -> Layout:
    """Every acknowledged message once, in order, in place; the rest whole and at most once."""
    expectation = expect_content(history, inc, content)
    known = len(expectation.settled)
    assert content[:known] == expectation.settled, (
        f"{inc.stream}: the first {known} units changed; now {len(content)} units"
    )
    layout = lay_out(content, known, (piece for piece, _ in expectation.placed), expectation.loose)
    ends = [(piece, end) for piece, end in expectation.placed if end is not None]
    _check_offsets(inc, content, tail, layout, ends)
    return layout


def _check_offsets(
    inc: Incarnation,
    content: Content,
    tail: Position,
    layout: Layout,
    ends: Iterable[tuple[Placed, Position]],
) -> None:
    """Both halves of every acknowledged token count what is there."""
    assert tail.units(inc.kind) == len(content), f"{inc.stream}: tail {tail}, {len(content)} units"
    if isinstance(content, tuple):
        sizes = [0, *itertools.accumulate(len(message) + 1 for message in content)]
        for piece, end in ends:
            assert end.byte == sizes[end.ordinal], f"{inc.stream}: {piece.label} at {end}"
        assert tail.byte == sizes[-1], f"{inc.stream}: tail {tail}, bytes {sizes[-1]}"
        return
    index_at = {end: index for index, end in enumerate(layout.ends, 1)}
    bases = {end.ordinal - index_at[end.byte]: piece.label for piece, end in ends}
    bases[tail.ordinal - len(layout.ends)] = "the tail"
    if inc.settled is not None and inc.tail is not None:
        bases[inc.tail.ordinal] = "the tail before"
    assert len(bases) == 1, f"{inc.stream}: message counts disagree: {bases}"
