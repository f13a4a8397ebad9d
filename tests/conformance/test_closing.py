"""A closed stream stays closed, and its last words reach everybody who was waiting for them."""

from __future__ import annotations

import pytest

from tests.conformance.api import JSON, TEXT, Api, Call, error_code, fresh_path, producer

CLOSED = {"Stream-Closed": "true"}


def test_the_final_append_of_a_close_reaches_a_waiting_long_poll(api: Api) -> None:
    # Reference defect 1: the waiter is told 204 + Stream-Closed at the old offset.
    path = api.stream(b"one")
    waiting = api.wait(f"{path}?offset={api.tail(path)}&live=long-poll")
    closing = api.append(path, b"last words", headers=CLOSED)
    heard = waiting.reply()
    assert (closing.status, closing.headers["stream-closed"]) == (204, "true")
    assert (heard.status, heard.body) == (200, b"last words")
    assert heard.next_offset == closing.next_offset
    assert heard.headers["stream-closed"] == "true"


def test_the_final_append_of_a_close_reaches_a_waiting_event_stream(api: Api) -> None:
    path = api.stream(b"one")
    events = api.events(f"{path}?offset={api.tail(path)}&live=sse")
    assert [event.kind for event in events.until_up_to_date()] == ["control"]
    closing = api.append(path, b"last words", headers=CLOSED)
    data, control = list(events)
    assert (data.kind, data.data) == ("data", "last words")
    assert control.json()["streamNextOffset"] == closing.next_offset
    assert control.json()["streamClosed"] is True


def test_a_close_without_data_wakes_a_waiting_long_poll(api: Api) -> None:
    path = api.stream(b"one")
    waiting = api.wait(f"{path}?offset={api.tail(path)}&live=long-poll&timeout=30s")
    closing = api.close_stream(path)
    heard = waiting.reply()
    assert (heard.status, heard.headers["stream-closed"]) == (204, "true")
    assert heard.next_offset == closing.next_offset


def test_an_acknowledged_close_is_never_undone_by_appends_that_race_it(api: Api) -> None:
    # Reference defect 2: an append in flight writes the open state back over the closed one.
    for attempt in range(30):
        path = api.stream()
        append = Call("POST", path, b"x" * 100, {"Content-Type": TEXT})
        close = Call("POST", path, headers=CLOSED)
        calls = [append, close, append] if attempt % 2 else [append, append, close]
        replies = api.together(calls)
        closed = replies[calls.index(close)]
        accepted = [
            reply
            for call, reply in zip(calls, replies, strict=True)
            if call is append and reply.status == 204
        ]
        assert closed.status == 204
        assert all(reply.next_offset <= closed.next_offset for reply in accepted)
        head = api.head(path)
        assert head.headers.get("stream-closed") == "true"
        assert head.next_offset == closed.next_offset
        assert api.append(path, b"late").status == 409


@pytest.mark.parametrize("value", ["true", "TRUE", "True"])
def test_any_spelling_of_true_closes(memory_api: Api, value: str) -> None:
    # Reference defect 10: only the lower-case spelling counts.
    path = memory_api.stream()
    closing = memory_api.post(path, headers={"Stream-Closed": value})
    assert (closing.status, closing.headers.get("stream-closed")) == (204, "true")
    created = memory_api.put(fresh_path(), content_type=TEXT, headers={"Stream-Closed": value})
    assert (created.status, created.headers.get("stream-closed")) == (201, "true")


@pytest.mark.parametrize("value", ["false", "1", "yes", "", "true,true", "t"])
def test_anything_but_true_is_as_good_as_no_header(memory_api: Api, value: str) -> None:
    header = {"Stream-Closed": value}
    path = fresh_path()
    created = memory_api.put(path, content_type=TEXT, headers=header)
    appended = memory_api.append(path, b"x", headers=header)
    emptied = memory_api.post(path, headers=header)
    assert [created.status, appended.status, emptied.status] == [201, 204, 400]
    assert "stream-closed" not in memory_api.head(path).headers


def test_append_after_close_is_refused_with_the_final_offset(api: Api) -> None:
    path = api.stream(b"one", b"two")
    final = api.close_stream(path).next_offset
    for headers in ({}, CLOSED, {"Stream-Seq": "1"}, producer("late", 0, 0)):
        refused = api.append(path, b"three", headers=headers)
        assert (refused.status, refused.headers["stream-closed"]) == (409, "true")
        assert refused.next_offset == final
        assert error_code(refused)
    assert api.get(path).body == b"onetwo"


def test_closing_again_changes_nothing(api: Api) -> None:
    path = api.stream(b"one")
    first, second = api.close_stream(path), api.close_stream(path)
    assert first.next_offset == second.next_offset
    assert second.headers["stream-closed"] == "true"


@pytest.mark.parametrize("closed_now", [True, False])
@pytest.mark.parametrize("closed_asked", [True, False])
def test_creating_again_must_agree_about_closure(
    api: Api, closed_now: bool, closed_asked: bool
) -> None:
    path = api.stream(b"one")
    if closed_now:
        api.close_stream(path)
    again = api.put(path, content_type=TEXT, headers=CLOSED if closed_asked else {})
    assert again.status == (200 if closed_now == closed_asked else 409)
    assert ("stream-closed" in api.head(path).headers) == closed_now


def test_a_stream_created_closed_holds_its_body_and_takes_no_more(api: Api) -> None:
    path = fresh_path()
    created = api.put(path, b'["a","b"]', content_type=JSON, headers=CLOSED)
    assert (created.status, created.headers["stream-closed"]) == (201, "true")
    read = api.get(path)
    assert (read.body, read.headers["stream-closed"]) == (b'["a","b"]', "true")
    assert api.append(path, b'"c"', JSON).status == 409


def test_the_end_of_a_closed_stream_is_told_in_every_mode(api: Api) -> None:
    path = api.stream(b"one")
    final = api.close_stream(path).next_offset
    caught_up = api.get(f"{path}?offset={final}")
    assert (caught_up.status, caught_up.body) == (200, b"")
    assert caught_up.headers["stream-closed"] == "true"
    polled = api.get(f"{path}?offset={final}&live=long-poll")
    assert (polled.status, polled.headers["stream-closed"]) == (204, "true")
    (control,) = list(api.events(f"{path}?offset={final}&live=sse"))
    assert control.json()["streamClosed"] is True
    at_now = api.get(f"{path}?offset=now")
    assert (at_now.status, at_now.headers["stream-closed"]) == (200, "true")


def test_only_the_page_that_reaches_the_end_says_closed(api: Api) -> None:
    path = api.stream(b"one", b"two")
    api.close_stream(path)
    first = api.get(f"{path}?max_bytes=1")
    assert (first.body, "stream-closed" in first.headers) == (b"one", False)
    last = api.get(f"{path}?offset={first.next_offset}&max_bytes=1")
    assert (last.body, last.headers["stream-closed"]) == (b"two", "true")
