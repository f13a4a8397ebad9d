"""Creating a stream: once, twice, and with things that do not fit together."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from tests.conformance.api import BINARY, JSON, START, TEXT, Api, Call, fresh_path


def test_a_new_stream_answers_with_its_address_type_and_offset(api: Api) -> None:
    path = fresh_path()
    created = api.put(path, content_type=TEXT)
    assert (created.status, created.headers["content-type"]) == (201, TEXT)
    assert created.next_offset == START
    location = urlsplit(created.headers["location"])
    assert (location.scheme, location.netloc) == ("http", f"127.0.0.1:{api.port}")
    assert location.path == path


def test_the_type_is_kept_as_it_was_written(memory_api: Api) -> None:
    path = fresh_path()
    written = "Text/Plain; Charset=UTF-8"
    assert memory_api.put(path, content_type=written).headers["content-type"] == written
    assert memory_api.head(path).headers["content-type"] == written
    assert memory_api.get(path).headers["content-type"] == written


def test_a_stream_without_a_type_holds_bytes(memory_api: Api) -> None:
    path = fresh_path()
    assert memory_api.put(path).headers["content-type"] == BINARY
    assert memory_api.append(path, b"\x00", BINARY).status == 204


def test_creating_again_with_the_same_settings_changes_nothing(api: Api) -> None:
    path = fresh_path()
    headers = {"Stream-TTL": "3600"}
    assert api.put(path, b"one", content_type=TEXT, headers=headers).status == 201
    again = api.put(path, b"ignored", content_type="TEXT/plain; x=y", headers=headers)
    assert (again.status, again.next_offset) == (200, api.tail(path))
    assert api.get(path).body == b"one"


@pytest.mark.parametrize(
    "other",
    [
        {"Content-Type": JSON},
        {"Stream-TTL": "60"},
        {"Stream-Expires-At": "2040-01-01T00:00:00Z"},
        {"Stream-Closed": "true"},
        {"Stream-Forked-From": "/v1/stream/a-source"},
    ],
)
def test_creating_again_with_other_settings_is_a_conflict(api: Api, other: dict[str, str]) -> None:
    api.put("/v1/stream/a-source", content_type=TEXT)
    path = api.stream(b"one")
    assert api.put(path, headers={"Content-Type": TEXT, **other}).status == 409
    assert api.get(path).body == b"one"


def test_creators_that_race_make_one_stream(api: Api) -> None:
    path = fresh_path()
    calls = [Call("PUT", path, b"%d" % n, {"Content-Type": TEXT}) for n in range(8)]
    replies = api.together(calls)
    assert sorted(reply.status for reply in replies) == [200] * 7 + [201]
    (winner,) = [
        call.body for call, reply in zip(calls, replies, strict=True) if reply.status == 201
    ]
    assert api.get(path).body == winner


def test_a_type_that_is_none_is_refused(memory_api: Api) -> None:
    path = memory_api.stream(b"one")
    assert memory_api.append(path, b"two", content_type="").status == 400
    assert memory_api.append(path, b"two", content_type=None).status == 400
    assert memory_api.get(path).body == b"one"


def test_appends_that_race_are_all_kept_once_and_in_the_order_of_their_offsets(api: Api) -> None:
    path = api.stream()
    bodies = [b"<%02d>" % n for n in range(50)]
    replies = api.together([Call("POST", path, body, {"Content-Type": TEXT}) for body in bodies])
    order = sorted(zip(replies, bodies, strict=True), key=lambda pair: pair[0].next_offset)
    assert len({reply.next_offset for reply in replies}) == 50
    assert api.get(path).body == b"".join(body for _, body in order)


@pytest.mark.parametrize(
    ("first", "second", "accepted"),
    [
        ("2", "10", False),
        ("09", "10", True),
        ("a", "a", False),
        ("a", "B", False),
        ("a", "aa", True),
        ("z", "\u00e9", True),
    ],
)
def test_stream_seq_is_compared_byte_by_byte(
    api: Api, first: str, second: str, accepted: bool
) -> None:
    path = api.stream()
    assert api.append(path, b"1", headers={"Stream-Seq": first}).status == 204
    reply = api.append(path, b"2", headers={"Stream-Seq": second})
    assert reply.status == (204 if accepted else 409)
    assert api.get(path).body == (b"12" if accepted else b"1")
