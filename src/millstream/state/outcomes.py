"""What became of a command."""

from __future__ import annotations

from enum import Enum, auto

from millstream.errors import StreamError


class Done(Enum):
    """What an accepted command did."""

    CREATED = auto()
    EXISTED = auto()
    APPENDED = auto()
    DUPLICATE = auto()
    ALREADY_CLOSED = auto()
    DELETED = auto()
    PUBLISHED = auto()
    TOUCHED = auto()
    NOTHING = auto()
    ACCEPTED = auto()  # a subscription moved on


Outcome = Done | StreamError  # a refusal is returned, not raised: it is an answer
