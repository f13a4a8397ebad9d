"""Which segments gave their place to others: all that decides whether the next swap happens.

A swap says how many swaps the catalog knew when its author read there. It happens unless one that
came after that, or any that is remembered, has taken a segment it names. Whether something still
lives in these segments does not matter: of the new runs the catalog keeps what is alive, and dead
content stays dead. So the answer depends on the journal alone, not on when the catalog was written.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millstream.errors import JobConflict
from millstream.limits import REPLACED_SEGMENTS_KEPT
from millstream.state.commands import ReplaceSegments


class SwapsImage(msgspec.Struct, array_like=True):
    count: int
    forgotten: int
    replaced: dict[str, int]


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(SwapsImage)


class Swaps:
    def __init__(self) -> None:
        self.count = 0  # swaps that ever happened; each has the number it made this
        self.is_changed = False  # since the records were last taken
        self._replaced: dict[str, int] = {}  # segment -> the swap that took it, the oldest first
        self._forgotten = 0  # what this swap and those before it took is not remembered

    def decide(self, command: ReplaceSegments) -> JobConflict | None:
        """None: nothing stands against it."""
        seen = command.swaps_seen
        if seen is not None and seen < self._forgotten:
            others = self.count - seen
            return JobConflict(f"{others} other swaps happened since its segments were chosen")
        taken = next((name for name in command.old if name in self._replaced), None)
        if taken is not None:
            return JobConflict(f"{taken} was replaced by another swap meanwhile")
        new = [segment.name for segment in command.segments]
        if len({*new, *command.old}) < len(new) + len(set(command.old)):
            return JobConflict("a new segment has the name of another")
        used = next((name for name in new if name in self._replaced), None)
        if used is not None:
            return JobConflict(f"the name {used} was used before")
        return None

    def record(self, old: Iterable[str]) -> None:
        """It happens. Those who took the oldest names are forgotten when there are too many."""
        self.count += 1
        self.is_changed = True
        self._replaced.update(dict.fromkeys(old, self.count))
        while len(self._replaced) > REPLACED_SEGMENTS_KEPT:
            oldest = next(iter(self._replaced))
            self._forgotten = max(self._forgotten, self._replaced.pop(oldest))

    def encode(self) -> bytes:
        return _encode(SwapsImage(self.count, self._forgotten, self._replaced))

    def restore(self, encoded: bytes) -> None:
        """Raises msgspec.DecodeError or ValidationError."""
        image = _decoder.decode(encoded)
        self.count, self._forgotten, self._replaced = image.count, image.forgotten, image.replaced


def count_swaps(encoded: bytes | None) -> int:
    """How many swaps a catalog with this record knows."""
    return 0 if encoded is None else _decoder.decode(encoded).count
