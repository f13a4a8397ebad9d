"""The frames of an append-batch: a big-endian u32 length and that many bytes each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millstream.errors import BodyTooLarge, InvalidJson, InvalidRequest
from millstream.limits import BATCH_BYTES_MAX, BATCH_FRAMES_MAX, BLOCK_BYTES
from millstream.protocol.json_mode import too_many
from millstream.protocol.json_pieces import LargeMessages

_LENGTH = Struct(">I")
Ends = npt.NDArray[np.uint32]


class Frames(NamedTuple):
    """The messages of a batch in pieces, and how many each frame brought (0: an empty frame)."""

    pieces: tuple[bytes, ...]
    ends: Ends  # of each message, counted through all pieces
    counts: list[int]


def split_frames(body: bytes) -> list[memoryview]:
    """Raises InvalidRequest for a body that is not whole frames, BodyTooLarge for too many."""
    if len(body) > BATCH_BYTES_MAX:
        raise BodyTooLarge(f"a batch must not exceed {BATCH_BYTES_MAX} bytes")
    payloads: list[memoryview] = []
    view, position, total, length_at = memoryview(body), 0, len(body), _LENGTH.unpack_from
    while position + 4 <= total:
        if len(payloads) == BATCH_FRAMES_MAX:
            raise BodyTooLarge(f"a batch must not have more than {BATCH_FRAMES_MAX} frames")
        start = position + 4
        position = start + length_at(body, position)[0]
        payloads.append(view[start:position])
    if position > total:
        raise InvalidRequest(f"the last frame is cut off: {position - total} bytes are missing")
    if position < total:
        raise InvalidRequest("the last frame's length is cut off; send 4 bytes, big-endian")
    if not payloads:
        raise InvalidRequest("a batch needs at least one frame")
    return payloads


class _Joined:
    """Pieces of about BLOCK_BYTES, none of which ends inside of a message."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._done_bytes = 0
        self._ends: list[Ends] = []

    def add(self, parts: Sequence[bytes], ends: bytes) -> None:
        """`ends` counts through these parts; empty for one message."""
        size = sum(map(len, parts))
        found = np.frombuffer(ends, np.uint32) if ends else np.array([size], np.uint32)
        self._ends.append(found + np.uint32(self._done_bytes))
        self._done_bytes += size
        for part in parts:
            self._open.append(part)
            self._open_bytes += len(part)
            if self._open_bytes >= BLOCK_BYTES:
                self._close()

    def _close(self) -> None:
        self._pieces.append(b"".join(self._open))
        self._open, self._open_bytes = [], 0

    def frames(self, counts: list[int]) -> Frames:
        if self._open:
            self._close()
        ends = np.concatenate(self._ends) if self._ends else np.empty(0, np.uint32)
        return Frames(tuple(self._pieces), ends, counts)


def join(payloads: Sequence[memoryview]) -> Frames:
    """Each frame is one message."""
    joined = _Joined()
    for payload in payloads:
        if len(payload):
            joined.add((_copied(payload),), b"")
    return joined.frames([1 if len(payload) else 0 for payload in payloads])


def join_json(
    payloads: Sequence[memoryview], split: Callable[[bytes], LargeMessages], messages_max: int
) -> Frames:
    """Each frame is like a POST body; one that is not JSON refuses the whole batch."""
    joined, counts = _Joined(), list[int]()
    for number, payload in enumerate(payloads):
        if not len(payload):
            counts.append(0)
            continue
        try:
            pieces, ends, total = split(_copied(payload))
        except InvalidJson as error:
            raise InvalidJson(f"frame {number}: {error.message}") from None
        if not total:
            raise InvalidJson(f"frame {number}: an empty array appends nothing")
        joined.add(pieces, ends)
        counts.append(total)
    if sum(counts) > messages_max:
        raise too_many(sum(counts), messages_max)
    return joined.frames(counts)


def _copied(payload: memoryview) -> bytes:
    """In steps: one that copies megabytes at once holds the interpreter meanwhile."""
    if len(payload) <= BLOCK_BYTES:
        return bytes(payload)
    starts = range(0, len(payload), BLOCK_BYTES)
    return b"".join([bytes(payload[start : start + BLOCK_BYTES]) for start in starts])
