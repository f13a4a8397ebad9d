from __future__ import annotations

from typing import Any

import pytest

from millstream.api.arguments import Query
from millstream.api.reads import (
    Page,
    Reads,
    locate,
    page_body,
    page_headers,
    plan_page,
    wanted_offset,
)
from millstream.cold.cold_reads import ColdReads
from millstream.errors import InvalidOffset
from millstream.protocol.offsets import Position
from millstream.state.machine import StateMachine
from millstream.state.stream import Stream
from tests.unit.api.fake_request import UNCOMPRESSED, FakeRequest
from tests.unit.engine.world import World
from tests.unit.state.store import JSON, TEXT, Store


def stream_of(content_type: bytes = TEXT, *messages: bytes, **fields: object) -> Stream:
    store = Store()
    store.create(b"a", *messages, content_type=content_type, **fields)
    return store[b"a"]


def whole(stream: Stream) -> Page:
    return Page(Position(0, 0), stream.log.tail)


def header_names(stream: Stream, page: Page) -> set[bytes]:
    lines = page_headers(stream, page).removesuffix(b"\r\n").split(b"\r\n")
    return {line.partition(b":")[0] for line in lines}


def windows_on(world: World) -> ColdReads:
    """Of streams that are all in memory."""
    return ColdReads(world.machine, None, None, 1)


def located(stream: Stream, token: bytes | None) -> Position:
    return locate(stream.log, wanted_offset(stream, token))


def body_of(stream: Stream, page: Page) -> bytes:
    return b"".join(page_body(stream.log, page, stream.is_json))


def reads_of(store_id: str) -> Reads:
    world = World(StateMachine())
    return Reads(world.engine, windows_on(world), world.clock, store_id, 1000, UNCOMPRESSED)


def test_no_offset_and_minus_one_are_the_start_and_now_is_the_tail() -> None:
    stream = stream_of(TEXT, b"one", b"three")
    assert located(stream, None) == located(stream, b"-1") == Position(0, 0)
    assert located(stream, b"now") == Position(2, 8)
    assert located(stream, b"0000000000000001_0000000000000003") == Position(1, 3)


def test_one_byte_behind_a_boundary_is_that_boundary() -> None:
    stream = stream_of(TEXT, b"one", b"x", b"three")
    assert located(stream, b"0000000000000000_0000000000000001") == Position(0, 0)
    assert located(stream, b"0000000000000001_0000000000000004") == Position(1, 3)
    assert located(stream, b"0000000000000002_0000000000000004") == Position(2, 4)
    assert located(stream, b"0000000000000003_0000000000000010") == Position(3, 9)


@pytest.mark.parametrize(
    "token",
    [b"0000000000000001_0000000000000005", b"0000000000000003_0000000000000009", b"junk"],
)
def test_an_offset_that_is_none_of_this_streams_is_refused(token: bytes) -> None:
    with pytest.raises(InvalidOffset):
        located(stream_of(TEXT, b"one", b"three"), token)


def test_a_page_of_a_json_stream_is_an_array() -> None:
    stream = stream_of(JSON, b"1,", b'{"a":2},', b"3,")
    assert body_of(stream, whole(stream)) == b'[1,{"a":2},3]'
    assert body_of(stream, plan_page(stream.log, Position(1, 2), 1)) == b'[{"a":2}]'


def test_an_empty_page_of_a_json_stream_is_an_empty_array() -> None:
    stream = stream_of(JSON)
    assert body_of(stream, whole(stream)) == b"[]"


def test_a_page_of_any_other_stream_is_its_bytes() -> None:
    stream = stream_of(TEXT, b"one", b"three")
    assert body_of(stream, whole(stream)) == b"onethree"
    assert body_of(stream, Page(Position(2, 8), Position(2, 8))) == b""


def test_only_a_page_that_reaches_the_tail_is_up_to_date() -> None:
    stream = stream_of(TEXT, b"one", b"three")
    assert b"stream-up-to-date" in header_names(stream, whole(stream))
    first = plan_page(stream.log, Position(0, 0), 1)
    assert b"stream-up-to-date" not in header_names(stream, first)
    assert b"stream-next-offset: 0000000000000001_0000000000000003" in page_headers(stream, first)
    assert b"stream-end-offset: 0000000000000002_0000000000000008" in page_headers(stream, first)


def test_closure_shows_only_to_whoever_has_read_everything() -> None:
    stream = stream_of(TEXT, b"one", b"three", closed=True)
    assert b"stream-closed" in header_names(stream, whole(stream))
    assert b"stream-closed" not in header_names(stream, plan_page(stream.log, Position(0, 0), 1))


def test_a_tag_differs_whenever_the_answer_does() -> None:
    reads = reads_of("0" * 32)
    open_stream = stream_of(TEXT, b"one", b"three")
    closed_stream = stream_of(TEXT, b"one", b"three", closed=True)
    store = Store()
    store.create(b"other")
    store.create(b"a", b"one", b"three")
    tags = [
        reads.etag(open_stream, whole(open_stream)),
        reads.etag(open_stream, plan_page(open_stream.log, Position(0, 0), 1)),
        reads.etag(open_stream, plan_page(open_stream.log, Position(1, 3), 1000)),
        reads.etag(closed_stream, whole(closed_stream)),
        reads.etag(store[b"a"], whole(store[b"a"])),  # another incarnation
        reads_of("1" * 32).etag(open_stream, whole(open_stream)),  # another store
    ]
    assert len(set(tags)) == len(tags)
    assert all(tag.startswith(b'"') and tag.endswith(b'"') for tag in tags)


def test_closing_does_not_change_the_tag_of_a_page_before_the_tail() -> None:
    reads = reads_of("0" * 32)
    page = Page(Position(0, 0), Position(1, 3))
    before = stream_of(TEXT, b"one", b"three")
    after = stream_of(TEXT, b"one", b"three", closed=True)
    assert reads.etag(before, page) == reads.etag(after, page)


# The handlers


class Library:
    """One stream `a` that expires after eight seconds without a read, and its reader."""

    def __init__(self, *messages: bytes, **fields: Any) -> None:
        self.world = World()
        self.stream = self.world.create(ttl_ms=8000, **fields)
        for message in messages:
            self.world.append(data=message)
        self.world.commit()
        windows = windows_on(self.world)
        self.reads = Reads(self.world.engine, windows, self.world.clock, "0" * 32, 4, UNCOMPRESSED)

    def get(self, query: bytes = b"", tag: str | None = None) -> tuple[int, dict[str, str], bytes]:
        request = FakeRequest({} if tag is None else {b"if-none-match": tag.encode()})
        self.reads.catch_up(request.request, b"a", Query(query))
        return request.answer

    def head(self) -> tuple[int, dict[str, str], bytes]:
        request = FakeRequest()
        self.reads.head(request.request, b"a")
        return request.answer


def test_following_next_offsets_reads_everything_page_by_page() -> None:
    library = Library(b"one", b"three", b"x", b"y")
    pages, query = [], b"offset=-1"
    while True:
        status, headers, body = library.get(query)
        assert status == 200
        pages.append(body)
        if "stream-up-to-date" in headers:
            break
        query = b"offset=" + headers["stream-next-offset"].encode()
    assert pages == [b"one", b"three", b"xy"]


def test_a_page_may_be_cached_and_is_not_sent_twice() -> None:
    library = Library(b"one")
    _, headers, _ = library.get()
    assert headers["cache-control"].startswith("public")
    status, again, body = library.get(tag=headers["etag"])
    assert (status, body) == (304, b"")
    assert again["etag"] == headers["etag"]
    library.world.append()
    library.world.commit()
    assert library.get(tag=headers["etag"])[0] == 200


def test_what_now_means_is_never_cached() -> None:
    status, headers, body = Library(b"one").get(b"offset=now")
    assert (status, body) == (200, b"")
    assert headers["cache-control"] == "no-store"
    assert "etag" not in headers
    assert headers["stream-next-offset"] == "0000000000000001_0000000000000003"


def test_a_read_renews_the_lifetime_and_head_does_not() -> None:
    library = Library(b"one")
    library.world.clock.advance(100)
    library.head()
    assert library.stream.accessed_ms == library.stream.created_ms
    library.get()
    assert library.stream.accessed_ms == library.world.now_ms


def test_head_tells_everything_but_the_content() -> None:
    status, headers, body = Library(b"one").head()
    assert (status, body) == (200, b"")
    assert headers["content-type"] == "text/plain"
    assert headers["stream-next-offset"] == "0000000000000001_0000000000000003"
    assert headers["stream-ttl"] == "8"
    assert headers["cache-control"] == "no-store"
    assert "stream-closed" not in headers


def test_head_of_a_closed_stream_says_so() -> None:
    assert Library(closed=True).head()[1]["stream-closed"] == "true"
