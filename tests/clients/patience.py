"""What a user of the official Python client adds so that a restart of the server is no event.

docs/clients.md shows these functions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
from durable_streams import DurableStream, DurableStreamError, SeqConflictError, stream


def is_passing(error: Exception) -> bool:
    """Whether the same request may succeed in a moment."""
    if isinstance(error, DurableStreamError):
        return error.status in (429, 503)
    return isinstance(error, httpx.TransportError)


def append_once(handle: DurableStream, data: Any, seq: str) -> None:
    """Appends until it is certain that it happened, and happened once.

    For one writer per stream that counts its appends: `seq` grows as a string. The handle is made
    with batching=False, or several appends share one request and its `seq`.
    """
    is_retry = False
    while True:
        try:
            handle.append(data, seq=seq)
            return
        except SeqConflictError:
            if is_retry:
                return  # the answer was lost, not the append
            raise
        except (DurableStreamError, httpx.TransportError) as error:
            if not is_passing(error):
                raise
            is_retry = True
            time.sleep(0.1)


def follow(url: str, offset: str = "-1") -> Iterator[Any]:
    """The messages of a JSON stream as they come, until it is closed; one long-poll at a time."""
    is_closed = False
    while not is_closed:
        try:
            with stream(url, offset=offset, live="long-poll") as response:
                items = response.read_json()
        except (DurableStreamError, httpx.TransportError) as error:
            if not is_passing(error):
                raise
            time.sleep(0.1)
            continue
        yield from items
        offset = response.offset
        is_closed = response.headers.get("stream-closed") == "true"
