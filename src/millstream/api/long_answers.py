"""Answers that are too long for one write: piece by piece, as the client takes them.

Such an answer ends where it was said to end when it began. It holds a place in a stream, not the
content: what comes next is looked up for every piece, in memory or, a window or two ahead of the
socket, in the cold store. So a slow reader costs a piece in its socket's buffer, whatever happens
to the stream meanwhile: content that goes cold is loaded, content that was moved is found anew.
When something is no more, or cannot be read, the connection is dropped in the middle of the body,
so that no client takes a part for the whole.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import cast

import structlog

from millstream.cold.cold_reads import ColdReads
from millstream.cold.read_plans import Streams
from millstream.errors import ColdUnavailable, OffsetGone, Overloaded, StreamError, StreamNotFound
from millstream.faults import Faults
from millstream.http.streaming import Sink
from millstream.limits import (
    ANSWER_FIRST_BYTES,
    ANSWER_LOADS_MAX,
    ANSWER_MESSAGE_OVERHEAD,
    ANSWER_PIECE_BYTES_MAX,
    ANSWER_PIECE_BYTES_MIN,
    ANSWER_TURN_BYTES,
    ANSWER_UNSENT_BYTES,
    ANSWER_WINDOW_BYTES,
    ANSWER_WINDOWS_BYTES,
)
from millstream.protocol.offsets import Offset
from millstream.state.log import Log
from millstream.state.stream import Stream

logger = structlog.get_logger("millstream.reads")

_LOOK_BYTES = 4096  # what a look at an answer that could not go on counts of a turn
_RETRY_SECONDS = 0.1  # until an answer asks again when too many others read old content


class LongAnswers:
    """All long answers under way: their turns on the loop, and what they may hold together."""

    def __init__(
        self,
        streams: Streams,
        cold_reads: ColdReads,
        faults: Faults,
        renew: Callable[[Stream], None],
    ) -> None:
        """`renew` is told that a stream is being read: it lives as long as that goes on."""
        self.streams = streams
        self.cold_reads = cold_reads
        self.faults = faults
        self.renew = renew
        self.held_bytes = 0  # of windows, by all answers
        self.unsent_bytes = 0  # of pieces that their clients have not taken yet
        self._holders: OrderedDict[LongAnswer, int] = OrderedDict()  # who moved last comes last
        self._ready: deque[LongAnswer] = deque()
        self._is_turn_due = False
        self._wanting: deque[LongAnswer] = deque()
        self._loads = 0

    def begin(self, body: Sink, stream: Stream, start: int, end: int, window: Log) -> None:
        """Writes the stream's bytes from `start` to `end`, an array of them when it is JSON.

        `window` holds `start`.
        """
        body.keep_unsent_below(ANSWER_PIECE_BYTES_MIN)
        answer = LongAnswer(self, body, stream, start, end)
        if window is not stream.log:
            answer.add_window(window)
        self.ready(answer)

    # Turns

    def ready(self, answer: LongAnswer) -> None:
        """The client reads again, or what it waits for is there."""
        if not answer.is_queued:
            answer.is_queued = True
            self._ready.append(answer)
            self._have_turn()

    def piece_bytes(self) -> int:
        """Large while memory allows; ever smaller as more clients do not read."""
        left = ANSWER_UNSENT_BYTES - self.unsent_bytes
        return min(max(left // 16, ANSWER_PIECE_BYTES_MIN), ANSWER_PIECE_BYTES_MAX)

    def _have_turn(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            self.cold_reads.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        """A piece for each in turn; then all others on the loop go first."""
        self._is_turn_due = False
        ready, left = self._ready, ANSWER_TURN_BYTES
        while ready and left > 0:
            answer = ready.popleft()
            written = answer.write_or_abort()
            if written:
                ready.append(answer)
            else:
                answer.is_queued = False
            left -= written or _LOOK_BYTES
        if ready:
            self._have_turn()

    # Windows

    def want(self, answer: LongAnswer) -> None:
        self._wanting.append(answer)
        self._load_next()

    def load_ended(self) -> None:
        self._loads -= 1
        self._load_next()

    def _load_next(self) -> None:
        while self._wanting and self._loads < ANSWER_LOADS_MAX:
            if self._wanting.popleft().load():
                self._loads += 1

    def holds(self, answer: LongAnswer, size: int) -> None:
        """The answer holds windows of this size now. Who moved least lately gives up its own."""
        self.held_bytes += size - self._holders.pop(answer, 0)
        if size:
            self._holders[answer] = size
        while self.held_bytes > ANSWER_WINDOWS_BYTES and len(self._holders) > 1:
            oldest = next(iter(self._holders))
            oldest.drop_windows()

    def moved(self, answer: LongAnswer) -> None:
        if answer in self._holders:
            self._holders.move_to_end(answer)


class LongAnswer:
    """One of them. Positions are bytes: they need not lie between two messages."""

    __slots__ = (
        "_answers",
        "_asked",
        "_body",
        "_byte",
        "_call_off",
        "_end",
        "_failed_ahead",
        "_lead",
        "_rest",
        "_stream_id",
        "_unsent",
        "_windows",
        "is_queued",
    )

    def __init__(
        self, answers: LongAnswers, body: Sink, stream: Stream, start: int, end: int
    ) -> None:
        self.is_queued = False
        self._answers = answers
        self._body = body
        self._stream_id = stream.stream_id  # the stream itself may leave memory meanwhile
        self._byte = start
        self._end = end - 1 if stream.is_json else end  # without the comma behind the last message
        self._lead, self._rest = (b"[", b"]") if stream.is_json else (b"", b"")
        self._unsent = 0  # bytes of the last piece, while the client does not take them
        self._windows: list[Log] = []  # those that hold what comes next, in order
        self._asked: int | None = None  # the place of the window that is asked for
        self._failed_ahead = -1  # the place of a window that could not be loaded ahead
        self._call_off: Callable[[], None] | None = None
        body.on_drain = self._drained
        body.on_end = self._release

    # Writing

    def write_or_abort(self) -> int:
        """Bytes written: none when it has to wait, or is over."""
        try:
            return self._write_piece()
        except StreamError as error:
            self._give_up(error)
        except Exception as error:
            self._answers.faults.report("read", error)
            self._abort()
        return 0

    def _write_piece(self) -> int:
        body = self._body
        if body.ended or body.is_blocked:
            return 0
        self._count_unsent(0)
        source = self._find_source()
        if source is None:
            return 0
        start = self._byte
        size = self._answers.piece_bytes()
        end = self._byte = min(start + size, self._end, source.tail_byte)
        if end <= start:
            raise ColdUnavailable("the stream is shorter than it was")
        parts = [_unbound(part) for part in source.slices(start, end)]
        if self._lead:
            parts.insert(0, self._lead)
            self._lead = b""
        if end < self._end:
            body.write_parts(parts)
            if body.is_blocked:
                self._count_unsent(end - start)
        else:
            if self._rest:
                parts.append(self._rest)
            body.write_parts(parts)
            self._release()
            body.end()
        return end - start

    def _count_unsent(self, size: int) -> None:
        self._answers.unsent_bytes += size - self._unsent
        self._unsent = size

    def _find_source(self) -> Log | None:
        """What holds the next byte; None: it is asked for. Raises when it is no more."""
        stream = self._answers.streams.find_by_id(self._stream_id)
        if stream is None or stream.deleted:
            raise StreamNotFound("stream does not exist any more")
        if self._byte < stream.log.first_byte:
            raise OffsetGone(stream.earliest)
        if stream.ttl_ms is not None:
            self._answers.renew(stream)
        if self._byte >= stream.log.held_byte:
            if self._windows:
                self.drop_windows()
            return stream.log
        window = self._held_window()
        if window is None:
            place = Offset(None, self._byte)
            window = self._answers.cold_reads.in_memory(stream, place, ANSWER_FIRST_BYTES)
            if window is None:
                self._ask(self._byte)
                return None
            self.add_window(window)
        self._answers.moved(self)
        self._ask_ahead(stream)
        return window

    def _drained(self) -> None:
        self._answers.ready(self)

    # Windows

    def add_window(self, window: Log) -> None:
        """Two are enough: that of the next byte and the one behind it."""
        self._windows.append(window)
        self._windows.sort(key=_first_byte)
        del self._windows[2:]
        self._tell_size()

    def drop_windows(self) -> None:
        self._windows.clear()
        self._tell_size()

    def _tell_size(self) -> None:
        self._answers.holds(self, sum(map(_memory_bytes, self._windows)))

    def _held_window(self) -> Log | None:
        windows = self._windows
        if windows and windows[0].tail_byte <= self._byte:
            self._windows = windows = [w for w in windows if w.tail_byte > self._byte]
            self._tell_size()
        return windows[0] if windows and windows[0].held_byte <= self._byte else None

    def _ask_ahead(self, stream: Stream) -> None:
        if self._asked is not None or len(self._windows) != 1:
            return
        place = self._windows[0].tail_byte
        if place < min(self._end, stream.log.held_byte) and place != self._failed_ahead:
            self._ask(place)

    def _ask(self, place: int) -> None:
        if self._asked is None:
            self._asked = place
            self._answers.want(self)

    def load(self) -> bool:
        """It may load its window now; False when it does not want it any more."""
        if self._body.ended or self._asked is None:
            return False
        try:
            stream = self._answers.streams.find_by_id(self._stream_id)
        except StreamError as error:
            self._give_up(error)
            return False
        if stream is None:
            self._give_up(StreamNotFound("stream does not exist any more"))
            return False
        place = Offset(None, self._asked)
        load = self._answers.cold_reads.load
        self._call_off = load(stream, place, ANSWER_WINDOW_BYTES, self._loaded)
        return True

    def _loaded(self, window: Log | StreamError) -> None:
        place, self._asked, self._call_off = self._asked, None, None
        assert place is not None
        if isinstance(window, Log):
            if window.tail_byte > self._byte:
                self.add_window(window)
        elif isinstance(window, Overloaded):
            self._asked = place
            self._answers.cold_reads.loop.call_later(_RETRY_SECONDS, self._answers.want, self)
        elif place > self._byte:
            self._failed_ahead = place  # it may be there when the client gets there
        else:
            self._give_up(window)
        self._answers.load_ended()
        self._answers.ready(self)

    # Ends

    def _give_up(self, error: StreamError) -> None:
        logger.warning("a read cannot go on", stream=self._stream_id, error=error.message)
        self._abort()

    def _abort(self) -> None:
        self._release()
        self._body.abort()

    def _release(self) -> None:
        """The client left, or everything is written, or never will be."""
        self._asked = None
        self._count_unsent(0)
        if self._call_off is not None:
            self._call_off()
            self._call_off = None
            self._answers.load_ended()
        self.drop_windows()


def _unbound(part: bytes | memoryview) -> bytes | memoryview:
    """A view keeps all it is a part of: a small part of a large block is copied instead."""
    if isinstance(part, memoryview):
        whole = len(cast(bytes, part.obj))
        if whole > 2 * max(len(part), ANSWER_PIECE_BYTES_MIN):
            return bytes(part)
    return part


def _first_byte(window: Log) -> int:
    return window.held_byte


def _memory_bytes(window: Log) -> int:
    messages = window.tail_ordinal - window.held_ordinal
    return window.tail_byte - window.held_byte + ANSWER_MESSAGE_OVERHEAD * messages
