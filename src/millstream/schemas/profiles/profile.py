"""What every profile can do, and the one that does nothing."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class Normalised(NamedTuple):
    record: Any
    key: str | None  # the routing key that the profile finds in it


class Profile(Protocol):
    @property
    def rewrites(self) -> bool:
        """False: what `normalise` gives is the record as it came."""
        ...

    def normalise(self, record: Any, now_ms: int) -> Normalised:
        """Takes the record over: parts of it are changed and become parts of the answer.

        Raises SchemaViolation, and nothing else, for a record that the profile does not take.
        """
        ...


class GenericProfile:
    """Takes everything as it is."""

    rewrites = False

    def normalise(self, record: Any, now_ms: int) -> Normalised:
        return Normalised(record, None)
