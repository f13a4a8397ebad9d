"""Answers that take many short steps: others have the loop in between."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

from millstream.api.errors import respond_error
from millstream.engine.engine import Engine
from millstream.errors import StreamError
from millstream.http.message import Request

Steps = Generator[None]  # the last one answers the request


def take_steps(engine: Engine, request: Request, steps: Steps) -> None:
    """The first one now, each further one in a turn of its own. What a step raises answers the
    request."""
    try:
        next(steps)
    except StopIteration:
        return
    except StreamError as error:
        respond_error(request, error)
        return
    except Exception:
        engine.abandon(request)  # no client waits for ever; the loop hears the error
        raise
    asyncio.get_running_loop().call_soon(take_steps, engine, request, steps)
