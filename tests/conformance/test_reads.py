"""Pages: bounded, on message boundaries, at least one message each, together the whole."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.conformance.api import BINARY, JSON, TEXT, Api, fresh_path
from tests.conformance.conftest import speak_to
from tests.support.http import Reply
from tests.support.server import running_server

SIZES = [1, 2, 3, 50, 1, 1, 200, 7, 7, 7, 100, 1]


@pytest.fixture(scope="module")
def small_page_api() -> Iterator[Api]:
    with running_server(None, "--page-bytes", "1000", "--long-poll-timeout", "5") as server:
        yield from speak_to(server)


def pages(api: Api, path: str, query: str = "") -> list[Reply]:
    """Every page from the start until the server says that there is no more."""
    read = [api.get(f"{path}?offset=-1{query}")]
    while "stream-up-to-date" not in read[-1].headers:
        assert len(read) < 1000
        read.append(api.get(f"{path}?offset={read[-1].next_offset}{query}"))
    assert all(page.status == 200 for page in read)
    return read


@pytest.mark.parametrize("max_bytes", [1, 2, 5, 60, 200, 201, 100_000])
def test_pages_hold_whole_messages_and_add_up(api: Api, max_bytes: int) -> None:
    messages = [bytes([65 + i]) * size for i, size in enumerate(SIZES)]
    path = api.stream(*messages, content_type=BINARY)
    boundaries = [sum(SIZES[:i]) for i in range(len(SIZES) + 1)]
    read = pages(api, path, f"&max_bytes={max_bytes}")
    assert b"".join(page.body for page in read) == b"".join(messages)
    position = 0
    for page in read:
        size = len(page.body)
        assert size > 0
        assert position + size in boundaries
        assert size <= max_bytes or boundaries.index(position + size) - 1 == boundaries.index(
            position
        )
        position += size
        assert page.next_offset.endswith(f"_{position:016d}")


@pytest.mark.parametrize("max_bytes", [1, 10, 64, 100_000])
def test_json_pages_are_arrays_that_add_up(api: Api, max_bytes: int) -> None:
    values = [{"n": i, "pad": "x" * size} for i, size in enumerate(SIZES)]
    path = fresh_path()
    assert api.put(path, json.dumps(values[:5]), content_type=JSON).status == 201
    for value in values[5:]:
        assert api.append(path, json.dumps(value), JSON).status == 204
    read = pages(api, path, f"&max_bytes={max_bytes}")
    assert [value for page in read for value in page.json()] == values
    for page in read:
        # The brackets are not counted; a page may hold one message that is larger than asked for.
        assert len(page.body) - 2 <= max_bytes or len(page.json()) == 1


def test_a_page_before_the_end_is_not_up_to_date(memory_api: Api) -> None:
    path = memory_api.stream(b"one", b"two")
    first = memory_api.get(f"{path}?max_bytes=3")
    assert "stream-up-to-date" not in first.headers
    last = memory_api.get(f"{path}?max_bytes=3&offset={first.next_offset}")
    assert last.headers["stream-up-to-date"] == "true"


def test_every_read_names_the_end_of_the_stream(api: Api) -> None:
    path = api.stream(b"one", b"two")
    tail = api.append(path, b"three").next_offset
    first = api.get(f"{path}?max_bytes=1")
    assert (first.body, first.headers["stream-end-offset"]) == (b"one", tail)
    assert api.get(f"{path}?offset={tail}").headers["stream-end-offset"] == tail
    assert api.get(f"{path}?offset=now").headers["stream-end-offset"] == tail
    assert api.get(f"{path}?offset=-1&live=long-poll").headers["stream-end-offset"] == tail
    head = api.head(path)
    assert (head.headers["stream-end-offset"], head.next_offset) == (tail, tail)


def test_the_servers_page_size_bounds_every_read(small_page_api: Api) -> None:
    messages = [bytes([65 + i]) * 300 for i in range(10)]
    path = small_page_api.stream(*messages, content_type=BINARY)
    for query in ("", "&max_bytes=1000000"):
        read = pages(small_page_api, path, query)
        assert [len(page.body) for page in read] == [900, 900, 900, 300]
        assert b"".join(page.body for page in read) == b"".join(messages)


def test_a_message_larger_than_a_page_comes_whole(small_page_api: Api) -> None:
    path = small_page_api.stream(b"a" * 5000, b"b", content_type=BINARY)
    assert [len(page.body) for page in pages(small_page_api, path)] == [5000, 1]


def test_a_long_poll_far_behind_is_answered_with_one_page(small_page_api: Api) -> None:
    path = small_page_api.stream(*[b"x" * 300] * 10, content_type=BINARY)
    polled = small_page_api.get(f"{path}?offset=-1&live=long-poll")
    assert (polled.status, len(polled.body)) == (200, 900)
    assert "stream-up-to-date" not in polled.headers
    assert polled.headers["stream-cursor"].isdigit()


def test_an_event_stream_far_behind_comes_in_pages(small_page_api: Api) -> None:
    messages = [bytes([65 + i]).decode() * 300 for i in range(10)]
    path = small_page_api.stream(*messages, content_type=TEXT)
    events = small_page_api.events(f"{path}?offset=-1&live=sse").until_up_to_date()
    assert [event.kind for event in events] == ["data", "control"] * (len(events) // 2)
    assert "".join(event.data for event in events if event.kind == "data") == "".join(messages)
    offsets = [event.json()["streamNextOffset"] for event in events if event.kind == "control"]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == small_page_api.tail(path)
    assert all("upToDate" not in event.json() for event in events[1:-1:2])
    assert max(len(event.data) for event in events) <= 1000


def test_an_unknown_way_of_living_is_refused(memory_api: Api) -> None:
    # Reference defect 10: live=bogus is answered as a catch-up read.
    path = memory_api.stream(b"one")
    for live in ("bogus", "longpoll", "SSE", "sse%20"):
        assert memory_api.get(f"{path}?offset=-1&live={live}").status == 400


def test_reading_at_now_shows_nothing_and_the_tail(api: Api) -> None:
    for content_type, body in ((TEXT, b""), (JSON, b"[]")):
        path = api.stream(b"1", content_type=content_type)
        read = api.get(f"{path}?offset=now")
        assert (read.status, read.body) == (200, body)
        assert read.next_offset == api.tail(path)
        assert read.headers["stream-up-to-date"] == "true"


def test_unknown_parameters_are_ignored(memory_api: Api) -> None:
    path = memory_api.stream(b"one")
    assert memory_api.get(f"{path}?foo=bar&offset=-1&&x=&=y").body == b"one"


def test_any_byte_survives(api: Api) -> None:
    everything = bytes(range(256)) * 3
    path = api.stream(everything, content_type="image/png")
    read = api.get(path)
    assert (read.body, read.headers["content-type"]) == (everything, "image/png")
