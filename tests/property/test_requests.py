"""Whatever a header or a parameter says, the answer is a proper one: never a server error."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conformance.api import JSON, TEXT, error_code
from tests.property.driver import Server, running

HEADERS = [
    "Content-Type",
    "Stream-TTL",
    "Stream-Expires-At",
    "Stream-Seq",
    "Stream-Closed",
    "Stream-Forked-From",
    "Stream-Fork-Offset",
    "Stream-Fork-Sub-Offset",
    "Producer-Id",
    "Producer-Epoch",
    "Producer-Seq",
    "If-None-Match",
    "Origin",
]
PARAMETERS = ["offset", "live", "cursor", "timeout", "timeout_ms", "max_bytes", "format", "key"]
# Values near the right ones, so that the second check is reached and not only the first.
NEAR = ["", "0", "1", "-1", "now", "true", "long-poll", TEXT, JSON, "*", '"a"', "W/", "9" * 30]
NEAR += ["2040-01-01T00:00:00Z", "9999-12-31T23:59:59.999+14:00", "0001-01-01T00:00:00-23:59"]
NEAR += ["0000000000000001_0000000000000003", "9" * 16 + "_" + "9" * 16, "/v1/stream/a", "1d", "5s"]
VALUES = st.sampled_from(NEAR) | st.text(st.characters(max_codepoint=255), max_size=20).map(
    lambda text: "".join(letter for letter in text if letter.isprintable())
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(None, "--cors-origin", "*") as server:
        server.client.put("/v1/stream/a", b"one", content_type=TEXT)
        yield server
        server.client.close()
        assert server.process.stop() == 0
        assert "Traceback" not in server.process.finish_output()


@settings(deadline=None, print_blob=True, max_examples=500)
@given(
    method=st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH"]),
    known=st.booleans(),
    headers=st.dictionaries(st.sampled_from(HEADERS), VALUES, max_size=5),
    query=st.lists(st.tuples(st.sampled_from(PARAMETERS), st.binary(max_size=12)), max_size=4),
    near_query=st.lists(st.tuples(st.sampled_from(PARAMETERS), st.sampled_from(NEAR)), max_size=3),
    body=st.none() | st.binary(max_size=20),
)
# In UTC this is before the year 1, where a naive conversion overflows.
@example("PUT", False, {"Stream-Expires-At": "0001-01-01T00:00:00+23:59"}, [], [], None)
def test_every_answer_is_a_proper_one(
    server: Server,
    method: str,
    known: bool,
    headers: dict[str, str],
    query: list[tuple[str, bytes]],
    near_query: list[tuple[str, str]],
    body: bytes | None,
) -> None:
    pairs = [*query, *((name, value.encode()) for name, value in near_query)]
    if method == "GET":  # an event stream would not end, and a long-poll not soon
        pairs = [pair for pair in pairs if pair[0] not in ("live", "timeout", "timeout_ms")]
    path = "/v1/stream/a" if known and method != "DELETE" else f"/v1/stream/{uuid.uuid4().hex}"
    spelled = "&".join(f"{name}={quote_from_bytes(value)}" for name, value in pairs)
    reply = server.client.call(method, f"{path}?{spelled}", body, headers)
    assert reply.status < 500, reply
    if reply.status >= 400 and method != "HEAD":
        assert error_code(reply)
    server.client.put("/v1/stream/a", b"one", content_type=TEXT)
