"""Requests that take time: each is a coroutine, and ends with an answer whatever is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from millstream.api.control import respond_json
from millstream.api.errors import respond_error
from millstream.engine.engine import Engine
from millstream.errors import ShuttingDown, StreamError
from millstream.http.message import Request


class SlowRequests:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, request: Request, answering: Coroutine[Any, Any, dict[str, Any]]) -> None:
        """Answers with what the coroutine returns, as JSON, or with the StreamError it raises."""
        task = asyncio.get_running_loop().create_task(self._serve(request, answering))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(
        self, request: Request, answering: Coroutine[Any, Any, dict[str, Any]]
    ) -> None:
        try:
            respond_json(request, 200, await answering)
        except StreamError as error:
            respond_error(request, error)
        except Exception as error:
            self._engine.faults.report("request", error)
            self._engine.abandon(request)
        except BaseException:
            respond_error(request, ShuttingDown("the server stops; ask again when it is back"))
            raise
