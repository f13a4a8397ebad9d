"""Streams with snapshots as plainly as they can be said, and what can be done to them as values.

A stream is the list of all messages it ever had and the place before which a snapshot stands for
them. The snapshots that are published hold the wire bytes of those messages, so that a client's
state is always comparable: snapshot and messages together are the stream's whole history.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

JSON, TEXT, BINARY = "application/json", "text/plain", "application/octet-stream"
KINDS = (TEXT, BINARY, JSON)
STREAMS = 4
SNAPSHOT_TYPE = "application/x-folded; v=1"


@dataclass
class Stream:
    kind: str
    messages: list[bytes] = field(default_factory=list)
    first: int = 0
    snapshot: int | None = None  # its place
    source: str | None = None
    forks: int = 0
    deleted: bool = False  # softly: kept for its forks
    producer_seq: int = -1

    def wire(self, messages: list[bytes]) -> bytes:
        comma = b"," if self.kind == JSON else b""
        return b"".join(message + comma for message in messages)

    def state(self, place: int | None = None) -> bytes:
        """Everything a client knows that has read up to there."""
        return self.wire(self.messages[:place])

    def offset(self, place: int) -> str:
        return f"{place:016d}_{len(self.state(place)):016d}"

    @property
    def tail(self) -> str:
        return self.offset(len(self.messages))

    @property
    def earliest(self) -> str:
        return self.offset(self.first)

    def body(self, start: int, end: int) -> bytes:
        if self.kind == JSON:
            return b"[" + b",".join(self.messages[start:end]) + b"]"
        return b"".join(self.messages[start:end])

    def fork(self, source: str, place: int) -> Stream:
        return replace(
            self,
            messages=self.messages[:place],
            source=source,
            forks=0,
            producer_seq=-1,
        )


class Model:
    """Names of streams, and which of them are only kept for their forks."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}

    def live(self, path: str) -> Stream | None:
        stream = self.streams.get(path)
        return None if stream is None or stream.deleted else stream

    def missing_status(self, path: str) -> int:
        return 410 if path in self.streams else 404

    def delete(self, path: str) -> None:
        self.streams[path].deleted = True
        self._remove_if_unused(path)

    def _remove_if_unused(self, path: str) -> None:
        stream = self.streams[path]
        if stream.deleted and stream.forks == 0:
            del self.streams[path]
            if stream.source is not None:
                self.streams[stream.source].forks -= 1
                self._remove_if_unused(stream.source)


# Operations


@dataclass(frozen=True)
class Append:
    stream: int
    body: bytes


@dataclass(frozen=True)
class Batch:
    """`retries`: sent so many times more under the same producer sequence; 0: no producer."""

    stream: int
    frames: tuple[bytes, ...]
    retries: int


@dataclass(frozen=True)
class Publish:
    """`place` counts from the earliest that is there; `flaw` is what is wrong with it."""

    stream: int
    place: int
    flaw: str


@dataclass(frozen=True)
class Fork:
    stream: int
    source: int
    place: int | None
    below: bool


@dataclass(frozen=True)
class Delete:
    stream: int


@dataclass(frozen=True)
class Bootstrap:
    stream: int


@dataclass(frozen=True)
class Read:
    stream: int
    place: int
    max_bytes: int


@dataclass(frozen=True)
class Follow:
    """A client bootstraps now; it tails from now on, or comes back only when it catches up."""

    stream: int
    tails: bool


@dataclass(frozen=True)
class CatchUp:
    pass


Operation = Append | Batch | Publish | Fork | Delete | Bootstrap | Read | Follow | CatchUp


@dataclass(frozen=True)
class Chapter:
    operations: tuple[Operation, ...]
    ending: str


@dataclass(frozen=True)
class Story:
    kinds: tuple[str, ...]
    chapters: tuple[Chapter, ...]


INDEXES = st.integers(0, STREAMS - 1)
PLACES = st.integers(0, 12)
# The driver makes them fit the stream; what they look like matters most for bootstrap's multipart.
BODIES = st.one_of(
    st.text("ab-\n", min_size=1, max_size=9).map(str.encode),
    st.sampled_from([b"\r\n--", b"--", b"x" * 3000, b"\r\n\r\n"]),
)
FRAMES = st.lists(st.one_of(BODIES, BODIES, BODIES, st.just(b"")), min_size=1, max_size=5)
WEIGHTS: list[st.SearchStrategy[Operation]] = [
    *[st.builds(Append, INDEXES, BODIES)] * 6,
    *[st.builds(Batch, INDEXES, FRAMES.map(tuple), st.sampled_from([0, 0, 1, 2]))] * 4,
    *[st.builds(Publish, INDEXES, PLACES, st.just(""))] * 4,
    st.builds(
        Publish,
        INDEXES,
        PLACES,
        st.sampled_from(["gone", "beyond", "misaligned", "again", "rival"]),
    ),
    *[st.builds(Fork, INDEXES, INDEXES, st.none() | PLACES, st.booleans())] * 2,
    *[st.builds(Bootstrap, INDEXES)] * 2,
    *[st.builds(Read, INDEXES, PLACES, st.sampled_from([1, 8, 10**6]))] * 2,
    *[st.builds(Follow, INDEXES, st.booleans())] * 2,
    st.just(CatchUp()),
    st.builds(Delete, INDEXES),
]
OPERATIONS = st.integers(0, len(WEIGHTS) - 1).flatmap(WEIGHTS.__getitem__)


def stories(
    chapters_max: int, operations_max: int, endings: tuple[str, ...]
) -> st.SearchStrategy[Story]:
    written = st.lists(OPERATIONS, min_size=operations_max // 2, max_size=operations_max)
    chapters = st.builds(Chapter, written.map(tuple), st.sampled_from(endings))
    return st.builds(
        Story,
        st.lists(st.sampled_from(KINDS), min_size=2, max_size=3).map(tuple),
        st.lists(chapters, min_size=1, max_size=chapters_max).map(tuple),
    )
