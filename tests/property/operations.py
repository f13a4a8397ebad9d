"""What can be done to a server, as values: Hypothesis makes them up, shrinks them and prints them.

Streams, offsets and sequence numbers are small numbers here. The driver turns them into names and
into places that exist at that moment, so that most operations mean something.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

STREAMS = 4
KINDS = ("text/plain", "application/octet-stream", "application/json")


@dataclass(frozen=True)
class Body:
    """Raw messages per kind of stream; the driver takes those that fit."""

    text: bytes
    binary: bytes
    values: tuple[bytes, ...]
    repeat: int

    def messages(self, content_type: str) -> list[bytes]:
        if content_type == "application/json":
            return list(self.values) * self.repeat
        return [(self.text if content_type == "text/plain" else self.binary) * self.repeat]


@dataclass(frozen=True)
class Create:
    stream: int
    kind: str
    body: Body | None
    closed: bool
    lifetime: str | None


@dataclass(frozen=True)
class Fork:
    stream: int
    source: int
    offset: int | None
    sub_offset: int
    beyond: bool
    kind: str | None
    body: Body | None
    closed: bool
    lifetime: str | None


@dataclass(frozen=True)
class Append:
    """`epoch_step` and `seq_step` are relative to what the stream knows of the producer."""

    stream: int
    body: Body | None
    broken: bool
    wrong_kind: bool
    close: bool
    producer: str | None
    epoch_step: int
    seq_step: int
    seq: str | None


@dataclass(frozen=True)
class Delete:
    stream: int


@dataclass(frozen=True)
class Read:
    """Walks one stream from some place in all three modes."""

    stream: int
    offset: int
    max_bytes: int


@dataclass(frozen=True)
class Misread:
    """Asks for a place that does not exist."""

    stream: int
    ordinal_step: int
    byte_step: int


Operation = Create | Fork | Append | Delete | Read | Misread


@dataclass(frozen=True)
class Chapter:
    """Some operations, and how the server ends after them (where it can come back)."""

    operations: tuple[Operation, ...]
    ending: str


@dataclass(frozen=True)
class Story:
    """Begins with one empty stream of each kind named; the other names are free."""

    kinds: tuple[str, ...]
    chapters: tuple[Chapter, ...]


VALUES = st.sampled_from(
    [
        b"1",
        b"1.0",
        b"null",
        b'"a b"',
        b"[]",
        b'{"a":1,"a":2}',
        b"12345678901234567890",
        b'"\\u0041"',
    ]
)
BODIES = st.builds(
    Body,
    text=st.text("ab :\n", min_size=1, max_size=12).map(str.encode),
    binary=st.binary(min_size=1, max_size=12),
    values=st.lists(VALUES, min_size=1, max_size=4).map(tuple),
    repeat=st.sampled_from([1, 1, 1, 1, 1, 1, 100]),
)
INDEXES = st.integers(0, STREAMS - 1)
LIFETIMES = st.sampled_from([None, None, None, None, "3600", "7200", "2040-01-01T00:00:00Z"])
RARELY = st.sampled_from([False] * 14 + [True])
APPENDS = st.builds(
    Append,
    stream=INDEXES,
    body=RARELY.flatmap(lambda empty: st.none() if empty else BODIES),
    broken=RARELY,
    wrong_kind=RARELY,
    close=RARELY,
    producer=st.sampled_from([None, None, "p", "q"]),
    epoch_step=st.sampled_from([0, 0, 0, 0, 1, -1]),
    seq_step=st.sampled_from([1, 1, 1, 1, 0, 2, -1]),
    seq=st.sampled_from([None, None, None, "0", "5", "a", "aa", "b"]),
)
CREATES = st.builds(
    Create,
    stream=INDEXES,
    kind=st.sampled_from(KINDS),
    body=st.none() | BODIES,
    closed=RARELY,
    lifetime=LIFETIMES,
)
FORKS = st.builds(
    Fork,
    stream=INDEXES,
    source=INDEXES,
    offset=st.none() | st.integers(0, 20),
    sub_offset=st.sampled_from([0, 0, 0, 1, 2, 5, 1000]),
    beyond=RARELY,
    kind=st.sampled_from([None, None, *KINDS]),
    body=st.none() | BODIES,
    closed=RARELY,
    lifetime=LIFETIMES,
)
READS = st.builds(Read, INDEXES, st.integers(0, 20), st.sampled_from([1, 7, 40, 1000, 10**6]))
MISREADS = st.builds(Misread, INDEXES, st.integers(-1, 2), st.integers(-2, 2))
DELETES = st.builds(Delete, INDEXES)
# one_of would forget how often a strategy is named, so the weights are drawn as a value.
WEIGHTS: list[st.SearchStrategy[Operation]] = [
    *[APPENDS] * 9,
    *[READS] * 3,
    *[FORKS] * 3,
    *[CREATES] * 2,
    MISREADS,
    DELETES,
]
OPERATIONS = st.integers(0, len(WEIGHTS) - 1).flatmap(WEIGHTS.__getitem__)


def stories(
    chapters_max: int, operations_max: int, endings: tuple[str, ...]
) -> st.SearchStrategy[Story]:
    written = st.lists(OPERATIONS, min_size=operations_max // 2, max_size=operations_max)
    chapters = st.builds(Chapter, written.map(tuple), st.sampled_from(endings))
    kinds = st.lists(st.sampled_from(KINDS), min_size=2, max_size=3)
    return st.builds(
        Story,
        kinds.map(tuple),
        st.lists(chapters, min_size=1, max_size=chapters_max).map(tuple),
    )
