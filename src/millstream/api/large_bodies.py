"""Large bodies become messages in a thread; the client that sent one waits, and no other does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from millstream.api.errors import respond_error
from millstream.engine.off_loop import OffLoop
from millstream.errors import StreamError
from millstream.http.message import Request
from millstream.limits import (
    LARGE_BODY_BYTES,
    LARGE_BODY_COMMAS,
    MEDIUM_BODY_BYTES,
    MEDIUM_BODY_COMMAS,
)
from millstream.protocol.json_mode import split_body, too_many
from millstream.protocol.json_pieces import LargeMessages, split_large_body

Result = TypeVar("Result")


class LargeBodies:
    def __init__(self, messages_max: int) -> None:
        self.messages_max = messages_max
        # One thread: two would only take the interpreter from each other, and twice the memory.
        self._thread = OffLoop("bodies", 1)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._thread.start(loop)

    def run(
        self, request: Request, work: Callable[[], Result], done: Callable[[Result], None]
    ) -> None:
        """Calls `done` on the loop with what the work gave; a refusal is answered here."""

        def finished(result: Result | Exception) -> None:
            try:
                if isinstance(result, Exception):
                    raise result
                done(result)
            except StreamError as error:
                respond_error(request, error)
            except Exception:
                server = request.connection.server
                server.report_crash(request)
                server.respond_crash(request)

        self._thread.run(work, finished)

    def split_json_beside(self, body: bytes) -> LargeMessages:
        """The same in a thread beside the loop, where one step may be a little longer."""
        is_medium = len(body) <= MEDIUM_BODY_BYTES and body.count(b",") <= MEDIUM_BODY_COMMAS
        return self._split_at_once(body) if is_medium else self.split_json(body)

    def split_json(self, body: bytes) -> LargeMessages:
        """In whichever thread. Raises InvalidJson or TooManyMessages."""
        if is_large_json(body):
            return split_large_body(body, self.messages_max)
        return self._split_at_once(body)

    def _split_at_once(self, body: bytes) -> LargeMessages:
        data, ends, total = split_body(body)
        if total > self.messages_max:
            raise too_many(total, self.messages_max)
        return LargeMessages((data,) if total else (), ends, total)

    async def close(self) -> None:
        await self._thread.wait_idle()
        self._thread.close()


def is_large_json(body: bytes) -> bool:
    """Whether it would take long to split it: by its size, or because it may be many messages."""
    size = len(body)
    if size >= LARGE_BODY_BYTES:
        return True
    return size > 2 * LARGE_BODY_COMMAS and body.count(b",") > LARGE_BODY_COMMAS
