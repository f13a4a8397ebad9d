"""What a durable-streams server does, as plainly as it can be said: dictionaries and lists.

Nothing here is shared with the server. A stream is a list of messages; an offset is a place in that
list, spelled with the number of messages and bytes before it. Each method answers what the server
has to answer, or None where the protocol leaves it open (then nothing is asked).
"""

from __future__ import annotations

from dataclasses import dataclass, field

JSON = "application/json"


@dataclass(frozen=True)
class Producer:
    name: str
    epoch: int
    seq: int


@dataclass(frozen=True)
class ForkFrom:
    """`offset` counts messages of the source; None is its tail at that moment."""

    source: str
    offset: int | None
    sub_offset: int


@dataclass(frozen=True)
class Answer:
    """What has to be in the response: the status and, where given, these headers."""

    status: int
    next_offset: str | None = None
    closed: bool = False
    headers: tuple[tuple[str, str], ...] = ()


@dataclass
class Stream:
    content_type: str
    messages: list[bytes] = field(default_factory=list)
    closed: bool = False
    lifetime: str | None = None  # seconds of a sliding window, or the time of an absolute end
    lifetime_asked: str | None = None
    fork_from: ForkFrom | None = None
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    last_seq: str | None = None
    forks: int = 0
    deleted: bool = False  # softly: kept for its forks

    def offset(self, ordinal: int) -> str:
        return f"{ordinal:016d}_{sum(map(self.wire_bytes, self.messages[:ordinal])):016d}"

    def wire_bytes(self, message: bytes) -> int:
        """In JSON mode every message counts with the comma that follows it."""
        return len(message) + (1 if self.content_type == JSON else 0)

    @property
    def tail(self) -> str:
        return self.offset(len(self.messages))

    def body(self, start: int, end: int) -> bytes:
        if self.content_type == JSON:
            return b"[" + b",".join(self.messages[start:end]) + b"]"
        return b"".join(self.messages[start:end])


class Model:
    def __init__(self) -> None:
        self.streams = dict[str, Stream]()

    def create(
        self,
        path: str,
        content_type: str | None,
        messages: list[bytes],
        closed: bool,
        lifetime: str | None,
        fork_from: ForkFrom | None,
    ) -> Answer | None:
        known = self.streams.get(path)
        if known is not None:
            return self.create_again(known, content_type, closed, lifetime, fork_from)
        if fork_from is not None:
            return self.fork(path, content_type, messages, closed, lifetime, fork_from)
        assert content_type is not None
        stream = Stream(content_type, list(messages), closed, lifetime, lifetime)
        self.streams[path] = stream
        return Answer(201, stream.tail, closed)

    def create_again(
        self,
        known: Stream,
        content_type: str | None,
        closed: bool,
        lifetime: str | None,
        fork_from: ForkFrom | None,
    ) -> Answer | None:
        if known.deleted:
            return Answer(409)
        same = content_type in (None, known.content_type) and closed == known.closed
        if lifetime != known.lifetime_asked:
            if known.lifetime_asked is None and lifetime == known.lifetime:
                return None  # asking by its value for what was inherited
            same = False
        if fork_from is None or known.fork_from is None:
            same &= fork_from is known.fork_from
        else:
            if fork_from.offset is None and known.fork_from.offset is not None:
                return None
            same &= fork_from == known.fork_from
        if same:
            return Answer(200, known.tail, known.closed)
        # A fork that is no repetition and would be refused anyway: which fault comes first is open.
        return Answer(409) if fork_from is None or self.could_fork(fork_from) else None

    def could_fork(self, fork_from: ForkFrom) -> bool:
        source = self.streams.get(fork_from.source)
        return source is not None and not source.deleted and bool(inherit(source, fork_from))

    def fork(
        self,
        path: str,
        content_type: str | None,
        messages: list[bytes],
        closed: bool,
        lifetime: str | None,
        fork_from: ForkFrom,
    ) -> Answer | None:
        source = self.streams.get(fork_from.source)
        if source is None:
            return Answer(404)
        if source.deleted:
            return Answer(409)
        inherited = inherit(source, fork_from)
        wrong_type = content_type is not None and content_type != source.content_type
        if wrong_type or inherited is None:
            # Which of two faults is named first is left open.
            return None if wrong_type and inherited is None else Answer(409 if wrong_type else 400)
        stream = Stream(source.content_type, inherited + messages, closed)
        stream.lifetime, stream.lifetime_asked, stream.fork_from = (
            lifetime or source.lifetime,
            lifetime,
            fork_from,
        )
        source.forks += 1
        self.streams[path] = stream
        return Answer(201, stream.tail, closed)

    def append(
        self,
        path: str,
        content_type: str,
        messages: list[bytes],
        broken: bool,
        close: bool,
        producer: Producer | None,
        seq: str | None,
    ) -> Answer:
        """`broken`: the body is not JSON, which only matters when everything else is right."""
        if not messages and not broken and not close:
            return Answer(400)
        stream = self.streams.get(path)
        if stream is None:
            return Answer(404)
        if stream.deleted:
            return Answer(410)
        if producer is not None:
            verdict = judge(stream, producer)
            if verdict is not None:
                return verdict
        empty = not messages and not broken
        if stream.closed:
            if empty and producer is None:
                return Answer(204, stream.tail, closed=True)
            return Answer(409, stream.tail, closed=True)
        if not empty and content_type != stream.content_type:
            return Answer(409)
        if seq is not None and stream.last_seq is not None and seq <= stream.last_seq:
            return Answer(409)
        if broken:
            return Answer(400)
        stream.messages += messages
        stream.closed = close
        stream.last_seq = seq or stream.last_seq
        if producer is not None:
            stream.producers[producer.name] = (producer.epoch, producer.seq)
        status = 200 if producer is not None and not empty else 204
        return Answer(status, stream.tail, close, echo(stream, producer))

    def delete(self, path: str) -> Answer:
        stream = self.streams.get(path)
        if stream is None:
            return Answer(404)
        if stream.deleted:
            return Answer(410)
        stream.deleted = True
        self.remove_if_unused(path)
        return Answer(204)

    def remove_if_unused(self, path: str) -> None:
        stream = self.streams[path]
        if stream.deleted and stream.forks == 0:
            del self.streams[path]
            if stream.fork_from is not None:
                self.streams[stream.fork_from.source].forks -= 1
                self.remove_if_unused(stream.fork_from.source)

    def look(self, path: str) -> Answer:
        """HEAD, and every read that does not depend on an offset."""
        stream = self.streams.get(path)
        if stream is None:
            return Answer(404)
        if stream.deleted:
            return Answer(410)
        window = stream.lifetime is not None and stream.lifetime.isdigit()
        headers = (("stream-ttl", str(stream.lifetime)),) if window else ()
        return Answer(200, stream.tail, stream.closed, headers)


def inherit(source: Stream, fork_from: ForkFrom) -> list[bytes] | None:
    """The messages a fork begins with; None when there is no such place in the source."""
    anchor = len(source.messages) if fork_from.offset is None else fork_from.offset
    if anchor > len(source.messages):
        return None
    left = fork_from.sub_offset
    inherited, rest = source.messages[:anchor], source.messages[anchor:]
    if source.content_type == JSON:
        return None if left > len(rest) else inherited + rest[:left]
    for message in rest:
        if left == 0:
            break
        inherited.append(message[:left])
        left -= len(inherited[-1])
    return None if left else inherited


def judge(stream: Stream, producer: Producer) -> Answer | None:
    """What the producer headers alone decide; None: nothing, go on."""
    epoch, last = stream.producers.get(producer.name, (producer.epoch, -1))
    if producer.epoch < epoch:
        return Answer(403, headers=(("producer-epoch", str(epoch)),))
    if producer.epoch > epoch:
        return None if producer.seq == 0 else Answer(400)
    if producer.seq <= last:
        return Answer(204, closed=stream.closed, headers=echo(stream, producer))
    if producer.seq > last + 1:
        expected = ("producer-expected-seq", str(last + 1))
        return Answer(409, headers=(expected, ("producer-received-seq", str(producer.seq))))
    return None


def echo(stream: Stream, producer: Producer | None) -> tuple[tuple[str, str], ...]:
    if producer is None:
        return ()
    epoch, seq = stream.producers[producer.name]
    return (("producer-epoch", str(epoch)), ("producer-seq", str(seq)))
