"""Large bodies and many messages: the same content as in small ones, in order, and bounded."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.api import BINARY, JSON, Api, error_code, fresh_bucket, fresh_path, halves
from tests.conformance.conftest import speak_to
from tests.conformance.raw import RawConnection
from tests.support.http import Reply
from tests.support.server import ServerProcess, running_server

LIMIT = 1000


@pytest.fixture(scope="module")
def limited_server() -> Iterator[ServerProcess]:
    with running_server(None, "--max-append-messages", str(LIMIT)) as server:
        yield server


@pytest.fixture
def limited(limited_server: ServerProcess) -> Iterator[Api]:
    yield from speak_to(limited_server)


def array_of(messages: int, message: bytes = b"1") -> bytes:
    return b"[" + b",".join([message] * messages) + b"]"


def frames(*payloads: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(payload)) + payload for payload in payloads)


def refused(reply: Reply, sent: int) -> None:
    assert reply.status == 413
    assert error_code(reply) == "too_many_messages"
    message = json.loads(reply.body)["error"]["message"]
    assert f"{sent} messages" in message
    assert f"at most {LIMIT} " in message
    assert "--max-append-messages" in message


@pytest.mark.parametrize("filler", [b"1", b'"' + b"x" * 500 + b'"'], ids=["small", "large"])
def test_more_messages_than_allowed_are_refused_on_every_surface(
    limited: Api, filler: bytes
) -> None:
    path = fresh_path()
    assert limited.put(path, array_of(LIMIT, filler), content_type=JSON).status == 201
    refused(limited.post(path, array_of(LIMIT + 1, filler), content_type=JSON), LIMIT + 1)
    refused(limited.put(fresh_path(), array_of(LIMIT + 7, filler), content_type=JSON), LIMIT + 7)
    bucket = fresh_bucket()
    limited.put(bucket)
    limited.put(f"{bucket}/s", content_type=JSON)
    half = array_of(LIMIT // 2 + 1, filler)
    reply = limited.post(f"{bucket}/s/append-batch", frames(half, half), content_type=JSON)
    refused(reply, LIMIT + 2)
    assert limited.post(path, array_of(LIMIT, filler), content_type=JSON).status == 204
    assert halves(limited.head(path).next_offset)[0] == 2 * LIMIT
    assert halves(limited.head(f"{bucket}/s").next_offset)[0] == 0


def test_millions_of_messages_in_one_body_are_refused(memory_api: Api) -> None:
    path = fresh_path()
    memory_api.put(path, content_type=JSON)
    reply = memory_api.post(path, array_of(4_000_000), content_type=JSON)
    assert reply.status == 413
    assert "4000000 messages; at most 262144" in json.loads(reply.body)["error"]["message"]


def test_a_batch_of_the_smallest_frames_is_refused_at_once(api: Api) -> None:
    bucket = fresh_bucket()
    api.put(bucket)
    api.put(f"{bucket}/s", content_type=BINARY)
    assert api.post(f"{bucket}/s/append-batch", bytes(8 << 20), content_type=BINARY).status == 413


MESSAGES = [{"number": number, "text": '\u4e16\\ ",' * (number % 50)} for number in range(5000)]


@pytest.mark.parametrize("indent", [None, 1])
def test_a_large_array_is_kept_as_its_messages(api: Api, indent: int | None) -> None:
    path = fresh_path()
    body = json.dumps(MESSAGES, indent=indent, ensure_ascii=False)
    assert len(body) > 1_000_000
    created = api.put(path, body, content_type=JSON)
    assert created.status == 201
    assert halves(created.next_offset)[0] == len(MESSAGES)
    appended = api.post(path, body, content_type=JSON)
    assert appended.status == 204
    assert halves(appended.next_offset)[0] == 2 * len(MESSAGES)
    assert api.get(path).json() == MESSAGES * 2
    # Every message has its own offset.
    assert api.get(f"{path}?offset={created.next_offset}").json() == MESSAGES


def test_a_large_value_is_one_message(api: Api) -> None:
    path = fresh_path()
    api.put(path, content_type=JSON)
    value = {"all": MESSAGES}
    assert api.post(path, json.dumps(value), content_type=JSON).status == 204
    assert halves(api.head(path).next_offset)[0] == 1
    assert api.get(path).json() == [value]


def test_a_large_body_that_is_no_json_is_refused_and_changes_nothing(api: Api) -> None:
    path = fresh_path()
    api.put(path, content_type=JSON)
    for body in (json.dumps(MESSAGES)[:-1], json.dumps(MESSAGES) + "]", "[" + " " * 200_000 + "]"):
        reply = api.post(path, body, content_type=JSON)
        assert reply.status == 400
        assert error_code(reply) == "invalid_json"
    assert halves(api.head(path).next_offset) == (0, 0)


def test_requests_behind_a_large_one_wait_for_it(api: Api) -> None:
    path = fresh_path()
    api.put(path, content_type=JSON)
    large = json.dumps(MESSAGES).encode()
    connection = RawConnection(api.port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\nContent-Length: "
    sent = [b"0", large, b"1", large, b"2"]
    connection.send(b"".join(head.encode() + b"%d\r\n\r\n" % len(b) + b for b in sent))
    ordinals = [halves(connection.answer().next_offset)[0] for _ in sent]
    connection.close()
    assert ordinals == [1, 5001, 5002, 10_002, 10_003]
    assert api.get(path).json() == [0, *MESSAGES, 1, *MESSAGES, 2]


def test_large_frames_are_acknowledged_each(api: Api) -> None:
    bucket = fresh_bucket()
    api.put(bucket)
    api.put(f"{bucket}/json", content_type=JSON)
    api.put(f"{bucket}/bytes", content_type=BINARY)
    one, two = json.dumps(MESSAGES).encode(), json.dumps({"a": MESSAGES}).encode()
    reply = api.post(f"{bucket}/json/append-batch", frames(one, b"7", two), content_type=JSON)
    offsets = [halves(entry["stream_next_offset"]) for entry in reply.json()]
    assert [ordinal for ordinal, _ in offsets] == [5000, 5001, 5002]
    assert api.get(f"{bucket}/json").json() == [*MESSAGES, 7, {"a": MESSAGES}]
    reply = api.post(f"{bucket}/bytes/append-batch", frames(one, b"7", two), content_type=BINARY)
    offsets = [halves(entry["stream_next_offset"]) for entry in reply.json()]
    assert offsets == [(1, len(one)), (2, len(one) + 1), (3, len(one) + 1 + len(two))]
    assert api.get(f"{bucket}/bytes").body == one + b"7" + two


def test_large_content_survives_a_crash(tmp_path: Path) -> None:
    path, binary = fresh_path(), fresh_path()
    blob = bytes(range(256)) * 20_000
    with running_server(tmp_path) as server, contextlib.closing(Api(server)) as api:
        api.put(path, json.dumps(MESSAGES), content_type=JSON)
        api.post(path, json.dumps(MESSAGES), content_type=JSON)
        api.put(binary, blob, content_type=BINARY)
        api.post(binary, blob, content_type=BINARY)
        tails = api.head(path).next_offset, api.head(binary).next_offset
        server.kill()
    with running_server(tmp_path) as server, contextlib.closing(Api(server)) as api:
        assert (api.head(path).next_offset, api.head(binary).next_offset) == tails
        assert api.get(path).json() == MESSAGES * 2
        assert api.get(binary).body == blob * 2
