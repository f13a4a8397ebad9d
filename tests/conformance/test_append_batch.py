"""append-batch: many messages in one request, each with its own acknowledgement (X1)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.api import (
    BINARY,
    JSON,
    TEXT,
    Api,
    Call,
    error_code,
    fresh_bucket,
    producer,
    token,
)
from tests.conformance.multipart import bootstrap
from tests.support.http import Reply

FRAMES_MAX = 512
BATCH_BYTES_MAX = 32 * 1024 * 1024


def frames(*payloads: bytes) -> bytes:
    return b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)


def send(
    api: Api,
    path: str,
    *payloads: bytes,
    content_type: str | None = TEXT,
    headers: dict[str, str] | None = None,
) -> Reply:
    url = f"{path}/append-batch"
    return api.post(url, frames(*payloads), content_type=content_type, headers=headers)


def acks(reply: Reply) -> list[dict[str, Any]]:
    assert reply.status == 200, reply
    assert reply.headers["content-type"].startswith(JSON)
    found = json.loads(reply.body)
    assert isinstance(found, list)
    return found


def statuses(reply: Reply) -> list[int]:
    return [ack["status"] for ack in acks(reply)]


def offsets(reply: Reply) -> list[str]:
    return [ack["stream_next_offset"] for ack in acks(reply)]


# Frames and their acknowledgements


def test_every_frame_is_a_message_with_an_acknowledgement_of_its_own(api: Api) -> None:
    path = api.bucketed(b"zero")
    reply = send(api, path, b"one", b"three", b"\0")
    assert acks(reply) == [
        {"status": 204, "stream_next_offset": token(2, 7), "stream_closed": False},
        {"status": 204, "stream_next_offset": token(3, 12), "stream_closed": False},
        {"status": 204, "stream_next_offset": token(4, 13), "stream_closed": False},
    ]
    assert reply.next_offset == api.tail(path) == token(4, 13)
    assert api.get(path).body == b"zeroonethree\0"
    assert bootstrap(api, path).messages == [b"zero", b"one", b"three", b"\0"]
    for offset in offsets(reply):
        assert api.get(f"{path}?offset={offset}").status == 200


def test_one_frame_is_a_batch_too(api: Api) -> None:
    path = api.bucketed(content_type=BINARY)
    assert offsets(send(api, path, bytes(range(256)), content_type=BINARY)) == [token(1, 256)]
    assert api.get(path).body == bytes(range(256))


def test_an_empty_frame_is_refused_alone(api: Api) -> None:
    path = api.bucketed()
    found = acks(send(api, path, b"one", b"", b"two"))
    assert [ack["status"] for ack in found] == [204, 400, 204]
    assert (found[1]["error_code"], bool(found[1]["error"])) == ("empty_body", True)
    assert [found[0]["stream_next_offset"], found[2]["stream_next_offset"]] == [
        token(1, 3),
        token(2, 6),
    ]
    assert bootstrap(api, path).messages == [b"one", b"two"]
    assert statuses(send(api, path, b"", b"")) == [400, 400]
    assert api.tail(path) == token(2, 6)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="no frames"),
        pytest.param(b"\0\0\0", id="half a length"),
        pytest.param(b"\0\0\0\5four", id="a payload cut off"),
        pytest.param(frames(b"one") + b"\0", id="a length cut off behind a frame"),
        pytest.param(frames(b"one") + b"\0\0\0\2x", id="a payload cut off behind a frame"),
        pytest.param(b"\xff\xff\xff\xffx", id="an absurd length"),
        pytest.param(b"plain text, no frames", id="no batch at all"),
    ],
)
def test_a_body_that_is_not_whole_frames_is_refused_whole(api: Api, body: bytes) -> None:
    path = api.bucketed()
    refused = api.post(f"{path}/append-batch", body, content_type=TEXT)
    assert (refused.status, error_code(refused)) == (400, "invalid_request")
    assert api.tail(path) == token(0, 0)


def test_a_batch_has_at_most_512_frames(api: Api) -> None:
    path = api.bucketed()
    assert statuses(send(api, path, *[b"x"] * FRAMES_MAX)) == [204] * FRAMES_MAX
    refused = send(api, path, *[b"x"] * (FRAMES_MAX + 1))
    assert (refused.status, error_code(refused)) == (413, "body_too_large")
    assert send(api, path, *[b""] * (FRAMES_MAX + 1)).status == 413
    assert api.tail(path) == token(FRAMES_MAX, FRAMES_MAX)


def test_a_batch_has_at_most_32_mib(memory_api: Api) -> None:
    path = memory_api.bucketed(content_type=BINARY)
    fitting = send(memory_api, path, bytes(BATCH_BYTES_MAX - 4), content_type=BINARY)
    assert statuses(fitting) == [204]
    too_large = send(memory_api, path, bytes(BATCH_BYTES_MAX - 3), content_type=BINARY)
    assert too_large.status == 413
    assert memory_api.delete(path).status == 204


# What keeps every frame out


def test_a_missing_stream_is_told_frame_by_frame(api: Api) -> None:
    path = f"{api.bucket()}/missing"
    found = acks(send(api, path, b"one", b"two"))
    assert [ack["status"] for ack in found] == [404, 404]
    assert {ack["error_code"] for ack in found} == {"stream_not_found"}
    assert api.head(path).status == 404


def test_a_missing_bucket_refuses_the_whole_batch(api: Api) -> None:
    path = f"{fresh_bucket()}/missing"
    for headers in ({}, {"Prefer": "return=minimal"}, producer("p", 0, 0)):
        refused = send(api, path, b"one", b"two", headers=headers)
        assert (refused.status, error_code(refused)) == (404, "bucket_not_found")
    nothing = api.post(f"{path}/append-batch", b"")
    assert (nothing.status, error_code(nothing)) == (404, "bucket_not_found")
    assert api.get(path.rpartition("/")[0]).status == 404


def test_a_deleted_source_of_forks_is_told_frame_by_frame(api: Api) -> None:
    path = api.bucketed(b"one")
    api.fork(path)
    assert api.delete(path).status == 204
    assert statuses(send(api, path, b"x")) == [410]


def test_a_closed_stream_is_told_frame_by_frame(api: Api) -> None:
    path = api.bucketed(b"one")
    api.close_stream(path)
    found = acks(send(api, path, b"two", b"three"))
    for ack in found:
        assert (ack["status"], ack["error_code"]) == (409, "stream_closed")
        assert (ack["stream_closed"], ack["stream_next_offset"]) == (True, token(1, 3))
        assert ack["error"]
    assert api.get(path).body == b"one"


def test_another_type_is_told_frame_by_frame(api: Api) -> None:
    path = api.bucketed(b"one")
    found = acks(send(api, path, b"two", b"three", content_type=JSON))
    assert [(ack["status"], ack["error_code"]) for ack in found] == [
        (409, "content_type_mismatch")
    ] * 2
    assert api.tail(path) == token(1, 3)
    assert statuses(send(api, path, b"two", content_type="TEXT/Plain; x=y")) == [204]


def test_a_batch_without_a_type_is_bytes(api: Api) -> None:
    assert statuses(send(api, api.bucketed(), b"x", content_type=None)) == [409]
    path = api.bucketed(content_type=BINARY)
    assert statuses(send(api, path, b"x", content_type=None)) == [204]


def test_an_expired_stream_is_told_frame_by_frame(api: Api) -> None:
    path = api.bucketed(headers={"Stream-TTL": "0"})
    assert statuses(send(api, path, b"x")) == [404]


def test_closing_and_sequences_are_not_part_of_a_batch(api: Api) -> None:
    path = api.bucketed()
    headers = {"Stream-Closed": "true", "Stream-Seq": "5"}
    for _ in range(2):
        assert statuses(send(api, path, b"x", headers=headers)) == [204]
    assert "stream-closed" not in api.head(path).headers
    assert api.append(path, b"y", headers={"Stream-Seq": "1"}).status == 204


def test_a_batch_in_a_name_that_is_none_is_refused_whole(memory_api: Api) -> None:
    assert send(memory_api, f"{memory_api.bucket()}/a..b", b"x").status == 400
    assert send(memory_api, "/Bad/stream", b"x").status == 400


# JSON


def test_json_frames_are_like_json_bodies(api: Api) -> None:
    path = api.bucketed(content_type=JSON)
    reply = send(api, path, b"1", b'[2, {"a":3}]', b" [[4]] ", content_type=JSON)
    assert offsets(reply) == [token(1, 2), token(3, 12), token(4, 16)]
    assert api.get(path).body == b'[1,2,{"a":3},[4]]'
    assert bootstrap(api, path).messages == [b"1", b"2", b'{"a":3}', b"[4]"]


@pytest.mark.parametrize("bad", [b"{", b"[]", b"NaN", b"1 2", b"\xff", b" "])
def test_one_bad_json_frame_refuses_the_whole_batch(api: Api, bad: bytes) -> None:
    path = api.bucketed(content_type=JSON)
    refused = send(api, path, b"1", bad, b"2", content_type=JSON)
    assert (refused.status, error_code(refused)) == (400, "invalid_json")
    assert api.get(path).body == b"[]"


def test_an_empty_json_frame_is_refused_alone(api: Api) -> None:
    path = api.bucketed(content_type=JSON)
    assert statuses(send(api, path, b"1", b"", b"2", content_type=JSON)) == [204, 400, 204]
    assert api.get(path).body == b"[1,2]"


# Prefer


@pytest.mark.parametrize(
    "preference", ["return=minimal", "respond-async, return=minimal", "Return=Minimal"]
)
def test_a_client_may_ask_for_no_acknowledgements(api: Api, preference: str) -> None:
    path = api.bucketed()
    reply = send(api, path, b"one", b"two", headers={"Prefer": preference})
    assert (reply.status, reply.body, reply.next_offset) == (204, b"", token(2, 6))


@pytest.mark.parametrize("preference", ["return=representation", "minimal", ""])
def test_other_preferences_change_nothing(memory_api: Api, preference: str) -> None:
    path = memory_api.bucketed()
    assert send(memory_api, path, b"one", headers={"Prefer": preference}).status == 200


def test_what_was_refused_is_told_also_to_those_who_prefer_less(api: Api) -> None:
    path = api.bucketed()
    minimal = {"Prefer": "return=minimal"}
    assert statuses(send(api, path, b"one", b"", headers=minimal)) == [204, 400]
    api.close_stream(path)
    assert statuses(send(api, path, b"one", headers=minimal)) == [409]
    assert statuses(send(api, f"{path}2", b"one", headers=minimal)) == [404]


# Producers: all or nothing under one sequence


def test_a_producers_batch_is_one_sequence(api: Api) -> None:
    path = api.bucketed()
    first = send(api, path, b"one", b"two", headers=producer("p", 1, 0))
    assert offsets(first) == [token(1, 3), token(2, 6)]
    assert (first.headers["producer-epoch"], first.headers["producer-seq"]) == ("1", "0")
    assert statuses(send(api, path, b"three", headers=producer("p", 1, 1))) == [204]
    assert api.append(path, b"four", headers=producer("p", 1, 2)).status == 200
    assert api.get(path).body == b"onetwothreefour"


def test_a_retry_is_acknowledged_alike_and_stores_nothing(api: Api) -> None:
    path = api.bucketed()
    first = send(api, path, b"one", b"two", headers=producer("p", 0, 0))
    assert api.append(path, b"between").status == 204
    for _ in range(2):
        again = send(api, path, b"one", b"two", headers=producer("p", 0, 0))
        assert (statuses(again), offsets(again)) == (statuses(first), offsets(first))
        assert again.headers["producer-seq"] == "0"
        assert again.next_offset == first.next_offset
    minimal = {**producer("p", 0, 0), "Prefer": "return=minimal"}
    assert send(api, path, b"one", b"two", headers=minimal).status == 204
    assert api.get(path).body == b"onetwobetween"


def test_a_retry_after_the_stream_was_closed_is_acknowledged(api: Api) -> None:
    path = api.bucketed(content_type=JSON)
    first = send(api, path, b"[1,2]", b"3", content_type=JSON, headers=producer("p", 0, 0))
    api.close_stream(path)
    again = send(api, path, b"[1,2]", b"3", content_type=JSON, headers=producer("p", 0, 0))
    assert (statuses(again), offsets(again)) == ([204, 204], offsets(first))


def test_a_retry_of_an_older_sequence_names_a_place_in_the_stream(api: Api) -> None:
    path = api.bucketed()
    send(api, path, b"one", b"two", headers=producer("p", 0, 0))
    latest = send(api, path, b"a", b"bb", b"ccccccc", headers=producer("p", 0, 1))
    again = send(api, path, b"one", b"two", headers=producer("p", 0, 0))
    assert statuses(again) == [204, 204]
    for offset in offsets(again):
        assert api.get(f"{path}?offset={offset}").status == 200, offset
    assert again.headers["producer-seq"] == "1"
    assert api.tail(path) == latest.next_offset


def test_a_gap_a_stale_epoch_and_a_late_start_refuse_the_whole_batch(api: Api) -> None:
    path = api.bucketed()
    gap = send(api, path, b"x", headers=producer("p", 3, 1))
    assert (gap.status, error_code(gap)) == (409, "producer_gap")
    assert gap.headers["producer-expected-seq"] == "0"
    assert gap.headers["producer-received-seq"] == "1"
    assert send(api, path, b"x", headers=producer("p", 3, 0)).status == 200
    stale = send(api, path, b"y", headers=producer("p", 2, 0))
    assert (stale.status, error_code(stale)) == (403, "producer_fenced")
    assert stale.headers["producer-epoch"] == "3"
    late = send(api, path, b"y", headers=producer("p", 4, 1))
    assert late.status == 400
    assert api.get(path).body == b"x"


def test_a_bad_frame_keeps_a_producers_sequence_unused(api: Api) -> None:
    path = api.bucketed(content_type=JSON)
    for bad in (b"{", b"", b"[]"):
        refused = send(api, path, b"1", bad, content_type=JSON, headers=producer("p", 0, 0))
        assert refused.status == 400
    assert send(api, path, b"1", content_type=JSON, headers=producer("p", 0, 0)).status == 200
    assert api.get(path).body == b"[1]"


def test_a_closed_stream_refuses_a_producers_batch_whole(api: Api) -> None:
    path = api.bucketed(b"one")
    api.close_stream(path)
    refused = send(api, path, b"x", headers=producer("p", 0, 0))
    assert (refused.status, refused.headers["stream-closed"]) == (409, "true")
    assert refused.next_offset == token(1, 3)


@pytest.mark.parametrize(
    "headers", [{"Producer-Id": "p"}, producer("p", "x", 0), producer("", 0, 0)]
)
def test_broken_producer_headers_refuse_the_whole_batch(
    memory_api: Api, headers: dict[str, str]
) -> None:
    assert send(memory_api, memory_api.bucketed(), b"x", headers=headers).status == 400


def test_many_senders_of_one_batch_store_it_once_and_whole(api: Api) -> None:
    path = api.bucketed()
    headers = {"Content-Type": TEXT, **producer("p", 0, 0)}
    call = Call("POST", f"{path}/append-batch", frames(b"one", b"two"), headers)
    replies = api.together([call] * 6)
    assert {reply.status for reply in replies} == {200}
    assert {tuple(offsets(reply)) for reply in replies} == {(token(1, 3), token(2, 6))}
    assert api.get(path).body == b"onetwo"


def test_batches_of_many_clients_stay_together(api: Api) -> None:
    path = api.bucketed()
    calls = [
        Call("POST", f"{path}/append-batch", frames(*[b"%d" % n] * 20), {"Content-Type": TEXT})
        for n in range(8)
    ]
    replies = api.together(calls)
    body = api.get(path).body
    assert sorted(body[at : at + 20] for at in range(0, 160, 20)) == [
        b"%d" % n * 20 for n in range(8)
    ]
    for n, reply in enumerate(replies):
        end = int(reply.next_offset.split("_")[0])
        assert body[end - 20 : end] == b"%d" % n * 20


def test_a_batch_wakes_readers_once_with_everything(api: Api) -> None:
    path = api.bucketed()
    waiting = api.wait(f"{path}?offset=-1&live=long-poll")
    events = api.events(f"{path}?offset=-1&live=sse")
    events.until_up_to_date()
    assert send(api, path, b"one", b"two").status == 200
    assert waiting.reply().body == b"onetwo"
    assert events.until_up_to_date()[0].data == "onetwo"


def test_a_batch_renews_a_sliding_lifetime_and_works_on_v1_streams(api: Api) -> None:
    path = api.stream()
    bucketed = path.replace("/v1/stream/", "/_default/")
    assert statuses(send(api, bucketed, b"one", b"two")) == [204, 204]
    assert api.get(path).body == b"onetwo"
    assert send(api, path, b"one").status == 404  # /append-batch is part of a name there
