"""Where a fork leaves its source, looked up before the command is sent.

Whether an offset lies between two messages may only be known from content that is not in memory,
so `apply` must not have to ask.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.api.reads import Reads
from millstream.errors import InvalidOffset
from millstream.http.message import Request
from millstream.protocol.offsets import Offset, Position
from millstream.state.commands import CreateStream
from millstream.state.decisions import beyond_tail, cut_past
from millstream.state.log import Log
from millstream.state.stream import Stream, resolve_in


def find_fork_place(
    reads: Reads,
    request: Request,
    source: Stream,
    command: CreateStream,
    then: Callable[[], None],
) -> None:
    """Calls `then` with `fork_place` filled in, now or later; else the request is refused.

    The command must have an offset; without one, a fork leaves its source where that ends when the
    command is applied.
    """
    offset = Offset(command.fork_ordinal, command.fork_byte)
    sub_offset = command.fork_sub_offset

    def found(anchor: Position, cut: Position) -> None:
        command.fork_place = (source.stream_id, *anchor, *cut)
        then()

    def anchored(log: Log) -> None:
        anchor = resolve_in(log, offset)
        if anchor is None:
            raise InvalidOffset("Stream-Fork-Offset is not a position in the source stream")
        if not sub_offset:
            found(anchor, anchor)
            return

        def cut(log: Log) -> None:
            place = cut_past(log, anchor, sub_offset, source.is_json)
            assert place is not None
            found(anchor, place)

        target = _past(source, anchor, sub_offset)
        reads.with_log(request, source, target, 0, cut)

    reads.with_log(request, source, offset, 0, anchored)


def _past(source: Stream, anchor: Position, sub_offset: int) -> Offset:
    ordinal, byte = anchor
    if source.is_json:
        if ordinal + sub_offset > source.log.tail_ordinal:
            raise beyond_tail()
        return Offset(ordinal + sub_offset, None)
    if byte + sub_offset > source.log.tail_byte:
        raise beyond_tail()
    return Offset(None, byte + sub_offset)
