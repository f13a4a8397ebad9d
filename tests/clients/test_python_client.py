"""The official Python client as its users use it, in calm and in stormy weather."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from durable_streams import DurableStream, DurableStreamError, SeqConflictError, stream

from tests.clients.patience import append_once, follow, is_passing
from tests.clients.phoenix import Phoenix

JSON = "application/json"
EVENTS = 240
MIB = 1024 * 1024


def write(url: str, strike: Callable[[], None] | None, storm: ThreadPoolExecutor) -> None:
    with DurableStream(url, content_type=JSON, batching=False) as handle:
        for n in range(EVENTS):
            append_once(handle, {"n": n, "text": "ünï " * (n % 7)}, seq=f"{n:08d}")
            if strike is not None and n % 100 == 50:
                storm.submit(strike)
            time.sleep(0.004)
        append_once(handle, {"n": "done"}, seq=f"{EVENTS:08d}")


def close(url: str) -> None:
    """The client has no call for it."""
    assert httpx.post(url, headers={"Stream-Closed": "true"}).status_code == 204


def follow_events(url: str) -> list[Any]:
    """SSE: the reader ends with its connection, so it is opened again, until the last message."""
    seen, offset = list[Any](), "-1"
    while not seen or seen[-1] != "done":
        try:
            with stream(url, offset=offset, live="sse") as response:
                for event in response.iter_events():
                    seen += [item["n"] for item in event.data]
                    offset = event.next_offset
        except (DurableStreamError, httpx.TransportError) as error:
            if not is_passing(error):
                raise
            time.sleep(0.05)
    return seen


def read_in_pieces(url: str) -> list[Any]:
    """A client that comes and goes, and keeps an offset in between."""
    seen, offset, is_closed = list[Any](), "-1", False
    while not is_closed:
        try:
            with stream(url, offset=offset, live=False) as response:
                seen += [item["n"] for item in response.read_json()]
                offset = response.offset
                is_closed = response.headers.get("stream-closed") == "true"
        except (DurableStreamError, httpx.TransportError) as error:
            if not is_passing(error):
                raise
        time.sleep(0.03)
    return seen


def test_an_agents_run_is_read_whole_by_everybody(
    server: Phoenix, strike: Callable[[], None] | None
) -> None:
    url = f"{server.url}/v1/stream/agents/run-1"
    DurableStream.create(url, content_type=JSON).close()
    with ThreadPoolExecutor(4) as readers, ThreadPoolExecutor(1) as storm:
        followed = readers.submit(lambda: [item["n"] for item in follow(url)])
        pieces = readers.submit(read_in_pieces, url)
        events = readers.submit(follow_events, url)
        write(url, strike, storm)
        storm.shutdown()
        close(url)
        written = [*range(EVENTS), "done"]
        for seen in (followed, pieces, events):
            assert seen.result(60) == written
    assert server.deaths == (0 if strike is None else 2)
    with DurableStream(url, content_type=JSON) as handle, pytest.raises(SeqConflictError):
        handle.append({"n": "late"})  # it calls every 409 so


def test_a_fork_goes_its_own_way(server: Phoenix) -> None:
    url = f"{server.url}/v1/stream/agents/run-2"
    with DurableStream.create(url, content_type=JSON) as handle:
        handle.append({"n": 1})
        cut = handle.append({"n": 2}).next_offset
        handle.append({"n": 3})
    headers: Any = {"Stream-Forked-From": "/v1/stream/agents/run-2", "Stream-Fork-Offset": cut}
    with DurableStream.create(f"{url}-fork", content_type=JSON, headers=headers) as fork:
        fork.append({"n": "other"})
        with fork.stream(live=False) as response:
            assert [item["n"] for item in response.read_json()] == [1, 2, "other"]
        assert fork.head().offset == response.offset
    with stream(url, offset=cut, live=False) as response:
        assert response.read_json() == [{"n": 3}]


@pytest.fixture
def long_streams(server: Phoenix) -> tuple[str, str, str]:
    """50 MiB of bytes and of JSON, and the hash of the bytes."""
    bytes_url, json_url = (f"{server.url}/v1/stream/long/{kind}" for kind in ("bytes", "json"))
    sent = hashlib.sha256()
    with httpx.Client(timeout=30) as client:
        for url, kind in ((bytes_url, "application/octet-stream"), (json_url, JSON)):
            assert client.put(url, headers={"content-type": kind}).status_code == 201
        for n in range(50):
            chunk = (b"chunk %d " % n * MIB)[:MIB]
            sent.update(chunk)
            posted = client.post(
                bytes_url, content=chunk, headers={"content-type": "application/octet-stream"}
            )
            assert posted.status_code == 204
            batch = [{"n": n * 1000 + i, "pad": "x" * 1000} for i in range(1000)]
            body = json.dumps(batch).encode()
            posted = client.post(json_url, content=body, headers={"content-type": JSON})
            assert posted.status_code == 204
    return bytes_url, json_url, sent.hexdigest()


def test_fifty_megabytes_are_read_to_the_end(
    server: Phoenix, strike: Callable[[], None] | None, long_streams: tuple[str, str, str]
) -> None:
    bytes_url, json_url, sent = long_streams
    if strike is not None:
        with stream(bytes_url, live=False) as response:
            chunks = iter(response)
            next(chunks)
            strike()
            with pytest.raises(httpx.TransportError):  # and not a short answer
                list(chunks)
    with stream(bytes_url, live=False) as response:
        read = response.read_bytes()
    assert (len(read), hashlib.sha256(read).hexdigest()) == (50 * MIB, sent)
    with stream(json_url, live=False) as response:
        numbers = [item["n"] for item in response.read_json()]
    assert numbers == list(range(50_000))


# What docs/clients.md says of the client itself. When one of these fails, a new version does
# better, and the page has to say so.


def test_its_long_poll_asks_for_ever_at_the_end_of_a_closed_stream(server: Phoenix) -> None:
    url = f"{server.url}/v1/stream/closed"
    with DurableStream.create(url, content_type=JSON) as handle:
        handle.append({"n": 1})
    close(url)

    class Enough(Exception):
        pass

    answers = itertools.count()

    def count(response: httpx.Response) -> None:
        if next(answers) == 25:
            raise Enough

    with (
        httpx.Client(event_hooks={"response": [count]}) as client,
        stream(url, offset="-1", live="long-poll", client=client) as response,
        pytest.raises(Enough),
    ):
        list(response.iter_json())
    assert list(follow(url)) == [{"n": 1}]  # ours ends


def test_its_sse_reader_ends_with_the_connection(server: Phoenix) -> None:
    url = f"{server.url}/v1/stream/open"
    with DurableStream.create(url, content_type=JSON) as handle:
        handle.append({"n": 1})
    with stream(url, offset="-1", live="sse") as response:
        assert list(response.iter_json()) == [{"n": 1}]  # over, though the stream is open
