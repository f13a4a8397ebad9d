"""Event streams: what they carry, and when they end."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.conformance.api import BINARY, JSON, TEXT, Api, Call, Events
from tests.conformance.conftest import speak_to
from tests.support.http import Event
from tests.support.server import running_server

HEARTBEAT_SECONDS, LIFETIME_SECONDS = 0.2, 1.0


@pytest.fixture(scope="module")
def hasty_api() -> Iterator[Api]:
    flags = ("--sse-heartbeat", str(HEARTBEAT_SECONDS), "--sse-lifetime", str(LIFETIME_SECONDS))
    with running_server(None, *flags) as server:
        yield from speak_to(server)


def attach(api: Api, path: str, offset: str = "-1") -> Events:
    """A reader that has everything there is and now waits."""
    events = api.events(f"{path}?offset={offset}&live=sse")
    assert events.status == 200
    return events


def text_of(events: list[Event]) -> str:
    return "".join(event.data for event in events if event.kind == "data")


def seconds_until_end(events: Events) -> float:
    started = time.monotonic()
    list(events)
    return time.monotonic() - started


def test_a_deleted_stream_ends_its_event_streams(api: Api) -> None:
    # Reference defect 8: the reader hangs for ever.
    path = api.stream(b"one")
    events = attach(api, path)
    events.until_up_to_date()
    assert api.delete(path).status == 204
    assert seconds_until_end(events) < 2


def test_an_event_stream_never_reads_from_the_successor_of_its_stream(api: Api) -> None:
    path = api.stream(b"one")
    events = attach(api, path)
    events.until_up_to_date()
    create = Call("PUT", path, b"onetwo", {"Content-Type": TEXT})
    api.together([Call("DELETE", path), create])
    assert text_of(list(events)) == ""


def test_an_expired_stream_ends_its_event_streams(api: Api) -> None:
    expires = datetime.now(UTC) + timedelta(seconds=0.8)
    path = api.stream(b"one", headers={"Stream-Expires-At": expires.isoformat()})
    events = attach(api, path)
    events.until_up_to_date()
    assert seconds_until_end(events) < 3
    assert datetime.now(UTC) >= expires - timedelta(seconds=0.05)


def test_an_event_stream_ends_at_its_lifetime_and_can_be_resumed(hasty_api: Api) -> None:
    # Reference defect 8: an event stream never ends by itself.
    path = hasty_api.stream(b"one")
    events = attach(hasty_api, path)
    *_, control = events.until_up_to_date()
    assert 0.3 < seconds_until_end(events) < LIFETIME_SECONDS + 2
    assert hasty_api.append(path, b"two").status == 204
    resumed = attach(hasty_api, path, control.json()["streamNextOffset"])
    assert text_of(resumed.until_up_to_date()) == "two"


def test_a_silent_event_stream_sends_heartbeat_comments(hasty_api: Api) -> None:
    path = hasty_api.stream()
    events = attach(hasty_api, path)
    kinds = [event.kind for event in events]
    assert kinds[0] == "control"
    assert kinds.count("comment") >= 2
    assert set(kinds) == {"control", "comment"}


@pytest.mark.parametrize("start", ["live", "catch-up"])
def test_a_character_split_over_two_appends_arrives_whole(api: Api, start: str) -> None:
    # Reference defect 10: both halves become replacement characters.
    whole = "caf\u00e9 \U0001f600!"
    encoded = whole.encode()
    parts = [encoded[:4], encoded[4:7], encoded[7:8], encoded[8:]]
    path = api.stream()
    events = attach(api, path)
    if start == "live":
        events.until_up_to_date()
    for part in parts:
        assert api.append(path, part).status == 204
    if start == "catch-up":
        events = attach(api, path)
    text, tail = "", api.tail(path)
    for event in events:
        if event.kind == "data":
            text += event.data
        if event.kind == "control" and event.json()["streamNextOffset"] == tail:
            break
    assert text == whole


def test_a_split_character_survives_a_reconnect_at_any_point(api: Api) -> None:
    whole = "caf\u00e9!"
    path = api.stream()
    first = attach(api, path)
    first.until_up_to_date()
    assert api.append(path, whole.encode()[:4]).status == 204
    assert api.append(path, whole.encode()[4:]).status == 204
    text, tail = "", api.tail(path)
    resume_points = list[tuple[str, str]]()
    for event in first:
        if event.kind == "data":
            text += event.data
        if event.kind == "control":
            resume_points.append((text, event.json()["streamNextOffset"]))
            if resume_points[-1][1] == tail:
                break
    for seen, offset in resume_points:
        assert seen + text_of(attach(api, path, offset).until_up_to_date()) == whole


def test_a_text_that_ends_inside_a_character_still_ends(api: Api) -> None:
    path = api.stream(b"caf\xc3")
    api.close_stream(path)
    *_, control = list(attach(api, path))
    assert control.json()["streamClosed"] is True
    assert control.json()["streamNextOffset"] == api.tail(path)


def test_bytes_that_are_no_text_do_not_stop_a_text_stream(api: Api) -> None:
    path = api.stream(b"a\xff\xfe", b"\xc3(", b"b")
    events = attach(api, path).until_up_to_date()
    text = text_of(events)
    assert (text[0], text[-1]) == ("a", "b")
    assert "\ufffd" in text
    assert events[-1].json()["streamNextOffset"] == api.tail(path)


@pytest.mark.parametrize("byte", [b"\xff", b"\xf5", b"\xc0", b"\x80"])
def test_a_byte_that_begins_no_character_holds_nothing_back(memory_api: Api, byte: bytes) -> None:
    path = memory_api.stream(b"one" + byte)
    events = attach(memory_api, path)
    first = next(iter(events))
    assert (first.kind, first.data) == ("data", "one\ufffd")


@pytest.mark.parametrize(
    "text",
    [
        " leading space",
        "  two",
        "\n",
        "a\n b",
        "trailing newline\n",
        "data: x\nevent: control\n\nid: 7",
        ": comment",
        "\ufeffbom",
        "tab\tcolon: \u2028 \x00 end",
    ],
)
def test_text_reaches_a_standard_event_source_unchanged(memory_api: Api, text: str) -> None:
    path = memory_api.stream(text.encode())
    data, control = attach(memory_api, path).until_up_to_date()
    assert (data.kind, data.data, control.kind) == ("data", text, "control")


@pytest.mark.parametrize("text", ["a\rb", "a\r\nb", "a\r\r\nb\r", "\r"])
def test_every_line_break_becomes_a_new_line(memory_api: Api, text: str) -> None:
    path = memory_api.stream(text.encode())
    data, _ = attach(memory_api, path).until_up_to_date()
    assert data.data == text.replace("\r\n", "\n").replace("\r", "\n")


def test_binary_data_is_base64_that_stands_alone(api: Api) -> None:
    path = api.stream(content_type=BINARY)
    events = attach(api, path)
    assert events.headers["stream-sse-data-encoding"] == "base64"
    events.until_up_to_date()
    for size in (1, 2, 3, 256):
        body = bytes(range(size))
        assert api.append(path, body, BINARY).status == 204
        data, _ = events.until_up_to_date()
        assert base64.b64decode(data.data.replace("\n", ""), validate=True) == body


@pytest.mark.parametrize(
    "content_type", [TEXT, "text/html", JSON, "application/json; charset=utf-8"]
)
def test_text_and_json_are_not_encoded(memory_api: Api, content_type: str) -> None:
    path = memory_api.stream(b"1", content_type=content_type)
    events = attach(memory_api, path)
    assert "stream-sse-data-encoding" not in events.headers
    assert events.headers["content-type"] == "text/event-stream"
    data, _ = events.until_up_to_date()
    assert data.data == ("[1]" if "json" in content_type else "1")


def test_every_live_append_is_a_pair_of_data_and_control(api: Api) -> None:
    path = api.stream(content_type=JSON)
    events = attach(api, path)
    (first,) = events.until_up_to_date()
    assert first.json()["streamCursor"].isdigit()
    for number in range(5):
        appended = api.append(path, f"[{number}]", JSON)
        data, control = events.until_up_to_date()
        assert data.json() == [number]
        assert control.json()["streamNextOffset"] == appended.next_offset


def test_an_event_stream_for_nothing_is_an_ordinary_error(memory_api: Api) -> None:
    missing = memory_api.get("/v1/stream/there-is-no-such-stream?offset=-1&live=sse")
    assert missing.status == 404
    assert missing.headers["content-type"].startswith("application/json")


def test_readers_that_leave_do_not_disturb_the_others(api: Api) -> None:
    path = api.stream()
    leaver, stayer = attach(api, path), attach(api, path)
    leaver.until_up_to_date()
    stayer.until_up_to_date()
    leaver.close()
    for word in ("one", "two", "three"):
        assert api.append(path, word).status == 204
        assert text_of(stayer.until_up_to_date()) == word
