"""What a stream asks of its entries: profile, schemas, lenses, routing key, search config.

The documents are kept as the JSON they are; `schemas/` knows what they mean. To the state machine
they are values that a command replaces whole, together with the boundary that goes with them.
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec

GENERIC = "generic"


class Rules(msgspec.Struct, array_like=True, frozen=True):
    """Never changed, so that a stream, its forks and a reader may hold the same one.

    New fields go at the end and have a default: checkpoints and the journal keep this shape.
    """

    revision: int  # counts changes; an append says under which it was admitted
    kind: str = GENERIC  # of the profile
    profile: bytes = b""  # JSON of the profile; empty: {"kind": "generic"}
    schemas: tuple[bytes, ...] = ()  # JSON of versions 1, 2, …
    lenses: tuple[bytes, ...] = ()  # JSON; lenses[v] leads from version v to v + 1, empty: none
    routing_key: bytes = b""  # JSON; empty: none
    search: bytes = b""  # JSON; empty: none
    boundaries: tuple[tuple[int, int], ...] = ()  # from this message on, this version
    touch: bool = False  # changes are told to who waits below /touch

    @property
    def version(self) -> int:
        """The current one; 0: no schema is installed."""
        return len(self.schemas)

    def version_at(self, ordinal: int) -> int:
        """Under which version this message was admitted."""
        index = bisect_right(self.boundaries, ordinal, key=_first_of) - 1
        return self.boundaries[index][1] if index >= 0 else 0

    def promotes(self, ordinal: int) -> bool:
        """Whether messages from this one on may have to go through lenses."""
        return self.version > 1 and self.version_at(ordinal) < self.version

    def as_of(self, ordinal: int) -> Rules:
        """What a fork takes that leaves its source there: no version that began later."""
        kept = tuple(boundary for boundary in self.boundaries if boundary[0] <= ordinal)
        if len(kept) == len(self.boundaries):
            return self
        version = kept[-1][1] if kept else 0
        return msgspec.structs.replace(
            self,
            schemas=self.schemas[:version],
            lenses=self.lenses[:version],
            boundaries=kept,
        )


def _first_of(boundary: tuple[int, int]) -> int:
    return boundary[0]
