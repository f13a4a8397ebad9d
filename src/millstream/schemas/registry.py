"""What a change of a stream's rules asks of the state machine."""

from __future__ import annotations

from typing import NamedTuple

from millstream.state.rules import Rules


class Change(NamedTuple):
    """The fields of `SetRules` that a plan decides."""

    rules: Rules
    begins_version: bool
    is_fresh: bool
    needs_empty: bool
