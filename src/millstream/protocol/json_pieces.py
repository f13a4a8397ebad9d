"""JSON mode for large bodies: the same messages as json_mode.py, found in steps of bounded time.

A decoder holds the interpreter until it is done, in whatever thread it runs; with 64 MiB that is a
quarter of a second in which none is served. So the body is walked in steps. Each finds strings,
brackets and commas with a few operations on arrays, which gives the ends of the messages, and cuts
the text behind a comma, or inside a string when there is none. Every part between two cuts is then
completed to a text of its own, with the brackets that are open around it, and handed to the same
decoder: the body is JSON exactly when all these texts are.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millstream.errors import InvalidJson
from millstream.limits import BLOCK_BYTES, JSON_DEPTH_MAX, JSON_STEP_BYTES, JSON_TOKEN_BYTES_MAX
from millstream.protocol.json_mode import check_text, too_many

Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int32]

_WHITESPACE = b" \t\n\r"
_QUOTE, _COMMA, _BACKSLASH, _OBJECT = ord('"'), ord(","), ord("\\"), ord("{")
_OPEN, _CLOSE, _FOLD = ord("["), ord("]"), 0xDF  # folded, `{` is `[` and `}` is `]`
_PLACE = re.compile(r" \(byte \d+\)$")
_ESCAPE_BYTES = 6  # of the longest escape, \u0041
_CUT_LOOK_BYTES = 4096  # how far back from its end a step looks for a place to cut a string


class LargeMessages(NamedTuple):
    """Messages on the wire in pieces of about BLOCK_BYTES, each of whole messages."""

    pieces: tuple[bytes, ...]
    ends: bytes  # native-endian u32 per message, counted through all pieces; empty for exactly one
    total: int


def split_large_body(body: bytes, messages_max: int, step: int = JSON_STEP_BYTES) -> LargeMessages:
    """Raises InvalidJson, or TooManyMessages when there are more than `messages_max`.

    Takes long as a whole, but never holds the interpreter for more than a few milliseconds.
    """
    walk = _Walk(body, _is_array(body), messages_max)
    for start in range(0, len(body), step):
        walk.take(start, min(start + step, len(body)))
    return walk.finish()


def _is_array(body: bytes) -> bool:
    for start in range(0, min(len(body), JSON_TOKEN_BYTES_MAX), _CUT_LOOK_BYTES):
        first = body[start : start + _CUT_LOOK_BYTES].lstrip(_WHITESPACE)[:1]
        if first:
            return first == b"["
    raise InvalidJson("body begins with too much white space")


class _Context(NamedTuple):
    """Where a part begins: behind a comma, or inside a string; `stack` are the open brackets."""

    stack: bytes
    in_string: bool = False
    is_key: bool = False

    def before(self) -> bytes:
        """What completes a part to the left."""
        if not self.stack:
            return b'"' if self.in_string else b""
        outer = b"".join([b'{"":' if bracket == _OBJECT else b"[" for bracket in self.stack[:-1]])
        if self.stack[-1] != _OBJECT:
            return outer + (b'["' if self.in_string else b"[0,")
        if not self.in_string:
            return outer + b'{"":0,'
        return outer + (b'{"' if self.is_key else b'{"":"')

    def behind(self) -> bytes:
        """What completes the part that ends here."""
        closing = b"".join([b"}" if bracket == _OBJECT else b"]" for bracket in self.stack[::-1]])
        if self.in_string:
            return (b'":0' if self.is_key else b'"') + closing
        is_object = bool(self.stack) and self.stack[-1] == _OBJECT
        return (b',"":0' if is_object else b",0") + closing


class _Walk:
    def __init__(self, body: bytes, is_array: bool, messages_max: int) -> None:
        self._body = body
        self._is_array = is_array
        self._messages_max = messages_max
        # Where the walk is.
        self._in_string = 0
        self._backslashes = 0  # right before the next byte
        self._depth = 0
        self._stack = np.zeros(JSON_DEPTH_MAX + 1, np.uint8)
        # The part that is not checked yet.
        self._part_start = 0
        self._part_context: _Context | None = None  # None: the very beginning
        # The messages so far.
        self._pieces: list[bytes] = []
        self._open: list[bytes] = []  # what follows the last piece
        self._open_bytes = 0
        self._done_bytes = 0  # in all steps so far
        self._ends: list[npt.NDArray[np.uint32]] = []
        self._total = 0

    def take(self, start: int, end: int) -> None:
        """The next step."""
        text = np.frombuffer(self._body, np.uint8, end - start, start)
        escaped = self._find_escaped(text)
        quotes = text == _QUOTE
        if escaped is not None:
            quotes &= ~escaped
        inside: Bytes = np.cumsum(quotes, dtype=np.uint8)
        inside += np.uint8(self._in_string)
        inside &= np.uint8(1)  # a string's first quote counts as inside, its last does not
        outside = inside == 0
        folded = text & _FOLD
        opens, closes = (folded == _OPEN) & outside, (folded == _CLOSE) & outside
        depths = self._find_depths(opens, closes)
        commas = (text == _COMMA) & outside
        self._collect(start, end, text, outside, opens, closes, depths, commas)
        self._cut(start, end, text, inside, opens, depths, commas, escaped)
        self._push(text, opens, depths)
        self._in_string = int(inside[-1])
        self._depth = int(depths[-1])

    def _find_escaped(self, text: Bytes) -> Bools | None:
        """The bytes behind an odd number of backslashes; None: there are none."""
        backslashes, carried = text == _BACKSLASH, self._backslashes
        if not carried and not backslashes.any():
            return None
        places = np.arange(len(text), dtype=np.int32)
        last_other = np.maximum.accumulate(np.where(backslashes, np.int32(-1), places))
        runs = np.empty(len(text) + 1, np.int32)  # of backslashes in front of each byte
        runs[0] = carried
        runs[1:] = places - last_other
        runs[1:][last_other < 0] += carried
        self._backslashes = int(runs[-1])
        odd: Bools = (runs[:-1] & 1).astype(bool)
        return odd

    def _find_depths(self, opens: Bools, closes: Bools) -> Counts:
        """Brackets that are open behind each byte."""
        changes = opens.astype(np.int8)
        changes -= closes
        depths: Counts = np.cumsum(changes, dtype=np.int32)
        depths += self._depth
        if depths.min() < 0:
            raise InvalidJson("body is not valid JSON: it closes a bracket that is not open")
        if depths.max() > JSON_DEPTH_MAX:
            raise InvalidJson("body is nested too deeply")
        return depths

    def _push(self, text: Bytes, opens: Bools, depths: Counts) -> None:
        """The last bracket of each depth is the one that is open, if any is."""
        self._stack[depths[opens]] = text[opens]

    # The messages

    def _collect(
        self,
        start: int,
        end: int,
        text: Bytes,
        outside: Bools,
        opens: Bools,
        closes: Bools,
        depths: Counts,
        commas: Bools,
    ) -> None:
        """Keeps what belongs to messages: no brackets around all, no white space between."""
        top = 1 if self._is_array else 0
        dropped = (text <= ord(" ")) & outside & (depths <= top)
        if self._is_array:
            dropped |= (opens & (depths == 1)) | (closes & (depths == 0))
            places = np.flatnonzero(commas & (depths == 1))
        else:
            places = np.empty(0, np.int64)
        if dropped.any():
            kept = ~dropped
            data = text[kept].tobytes()
            if len(places):
                places = np.cumsum(kept, dtype=np.int64)[places] - 1
        else:
            data = self._body[start:end]
        self._total += len(places)
        if self._total < self._messages_max:
            self._add(data, places)
        self._done_bytes += len(data)

    def _add(self, data: bytes, places: npt.NDArray[np.int64]) -> None:
        """`places` of the commas behind messages, in `data`."""
        if len(places):
            self._ends.append((places + (self._done_bytes + 1)).astype(np.uint32))
            border = int(places[-1]) + 1
            if self._open_bytes + border >= BLOCK_BYTES:
                self._open.append(data[:border])
                self._pieces.append(b"".join(self._open))
                self._open, self._open_bytes, data = [], 0, data[border:]
        if data:
            self._open.append(data)
            self._open_bytes += len(data)

    # The checks

    def _cut(
        self,
        start: int,
        end: int,
        text: Bytes,
        inside: Bytes,
        opens: Bools,
        depths: Counts,
        commas: Bools,
        escaped: Bools | None,
    ) -> None:
        """Checks up to the last place in this step where a part may end."""
        places = np.flatnonzero(commas & (depths > 0))
        place = int(places[-1]) if len(places) else -1
        if place < 0 and inside[-1]:
            place = _string_cut(text, inside, escaped)
            in_string = True
        else:
            in_string = False
        if place >= 0:
            stack = self._stack_at(place, text, opens, depths)
            self._end_part(start + place, _Context(stack, in_string))
        elif end - self._part_start > JSON_TOKEN_BYTES_MAX:
            raise InvalidJson("body has a number or white space that is far too long")

    def _stack_at(self, place: int, text: Bytes, opens: Bools, depths: Counts) -> bytes:
        stack = self._stack.copy()
        before = opens[:place]
        stack[depths[:place][before]] = text[:place][before]
        return stack[1 : int(depths[place]) + 1].tobytes()

    def _end_part(self, end: int, context: _Context) -> None:
        part = self._body[self._part_start : end]
        self._check_utf8(part)
        problem = check_text(self._completed(part, context))
        if problem is not None and context.in_string and context.stack[-1:] == b"{":
            context = context._replace(is_key=True)
            problem = check_text(self._completed(part, context))
        self._refuse(part, problem)
        self._part_start = end if context.in_string else end + 1
        self._part_context = context

    def _completed(self, part: bytes, end: _Context | None) -> bytes:
        left = b"" if self._part_context is None else self._part_context.before()
        return left + part + (b"" if end is None else end.behind())

    def _check_utf8(self, part: bytes) -> None:
        try:
            if not part.isascii():
                part.decode()
        except UnicodeDecodeError as error:
            place = self._part_start + error.start
            raise InvalidJson(f"body is not UTF-8 at byte {place}") from None

    def _refuse(self, part: bytes, problem: str | None) -> None:
        if problem is not None:
            first, last = self._part_start, self._part_start + len(part)
            problem = _PLACE.sub("", problem)
            raise InvalidJson(f"{problem}, between the bytes {first} and {last}")

    def finish(self) -> LargeMessages:
        part = self._body[self._part_start :]
        self._check_utf8(part)
        self._refuse(part, check_text(self._completed(part, None)))
        if self._total or self._open:
            self._total += 1
        if self._total > self._messages_max:
            raise too_many(self._total, self._messages_max)
        if self._total == 0:
            return LargeMessages((), b"", 0)
        self._open.append(b",")
        self._pieces.append(b"".join(self._open))
        if self._total == 1:
            return LargeMessages(tuple(self._pieces), b"", 1)
        self._ends.append(np.array([self._done_bytes + 1], np.uint32))
        return LargeMessages(tuple(self._pieces), np.concatenate(self._ends).tobytes(), self._total)


def _string_cut(text: Bytes, inside: Bytes, escaped: Bools | None) -> int:
    """The last place inside of a string where neither an escape nor a character is cut; -1: none.

    Both bytes around it belong to the string. Two escapes that make one character stay together.
    """
    first = max(len(text) - _CUT_LOOK_BYTES, _ESCAPE_BYTES)
    if first >= len(text):
        return -1
    look = text[first:]
    fits = (look & 0xC0) != 0x80
    fits &= (inside[first:] & inside[first - 1 : -1]).astype(bool)
    if escaped is not None:
        backslashes = (text == _BACKSLASH).astype(np.int32)
        counts = np.concatenate(([0], np.cumsum(backslashes)))
        recent = (
            counts[first : len(text)] - counts[first - _ESCAPE_BYTES : len(text) - _ESCAPE_BYTES]
        )
        plain = fits & (recent == 0) & (look != _BACKSLASH)
        if not plain.any():
            return _escape_cut(text, fits, first, escaped)
        fits = plain
    places = np.flatnonzero(fits)
    return first + int(places[-1]) if len(places) else -1


def _escape_cut(text: Bytes, fits: Bools, first: int, escaped: Bools) -> int:
    """In front of an escape that is not the second half of a character."""
    begins = fits & (text[first:] == _BACKSLASH) & ~escaped[first:]
    for place in reversed(np.flatnonzero(begins).tolist()):
        escape = text[first + place : first + place + 4].tobytes().lower()
        if len(escape) == 4 and not (escape[:3] == b"\\ud" and escape[3:] in b"cdef"):
            return int(first + place)
    return -1
