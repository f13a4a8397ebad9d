"""HTTP/1.1 as a conversation: many requests on one connection, in order, however they arrive."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.conformance.api import TEXT, Api, fresh_path, token
from tests.conformance.raw import RawConnection

Connect = Callable[[], RawConnection]


def request(
    method: str, path: str, body: bytes | None = None, *, version: str = "1.1", headers: str = ""
) -> bytes:
    head = f"{method} {path} HTTP/{version}\r\nHost: localhost\r\nContent-Type: {TEXT}\r\n{headers}"
    if body is not None:
        head += f"Content-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + (body or b"")


def test_a_connection_serves_many_requests(connect: Connect) -> None:
    path, connection = fresh_path(), connect()
    exchanges = [
        ("PUT", b"one", 201),
        ("POST", b"two", 204),
        ("GET", None, 200),
        ("HEAD", None, 200),
    ]
    for method, body, status in exchanges:
        connection.send(request(method, path, body))
        assert connection.answer(method).status == status


def test_requests_in_one_packet_are_answered_in_order(connect: Connect) -> None:
    path, connection = fresh_path(), connect()
    connection.send(
        request("PUT", path, b"one")
        + request("POST", path, b"two")
        + request("GET", path)
        + request("HEAD", path)
        + request("DELETE", path)
        + request("GET", path)
    )
    methods = ["PUT", "POST", "GET", "HEAD", "DELETE", "GET"]
    replies = [connection.answer(method) for method in methods]
    assert [reply.status for reply in replies] == [201, 204, 200, 200, 204, 404]
    assert replies[1].next_offset == token(2, 6)
    assert replies[2].body == b"onetwo"
    assert replies[3].next_offset == token(2, 6)


def test_pipelining_behaves_the_same_on_the_durable_journal(api: Api) -> None:
    connection = RawConnection(api.port)
    path = fresh_path()
    appends = [request("POST", path, b"<%03d>" % n) for n in range(200)]
    connection.send(request("PUT", path) + b"".join(appends) + request("GET", path))
    assert connection.answer("PUT").status == 201
    offsets = [connection.answer("POST").next_offset for _ in appends]
    assert offsets == [token(n, 5 * n) for n in range(1, 201)]
    assert connection.answer().body == b"".join(b"<%03d>" % n for n in range(200))
    connection.close()


def test_a_request_behind_a_waiting_long_poll_is_answered_after_it(connect: Connect) -> None:
    path, connection = fresh_path(), connect()
    connection.send(
        request("PUT", path)
        + request("GET", f"{path}?offset=-1&live=long-poll&timeout_ms=200")
        + request("HEAD", path)
        + request("POST", path, b"one")
    )
    replies = [connection.answer(method) for method in ("PUT", "GET", "HEAD", "POST")]
    assert [reply.status for reply in replies] == [201, 204, 200, 204]
    assert replies[2].next_offset == token(0, 0)


def test_an_error_in_a_pipeline_does_not_shift_the_answers(connect: Connect) -> None:
    path, connection = fresh_path(), connect()
    connection.send(
        request("POST", path, b"too early")
        + request("PUT", path)
        + request("PATCH", path, b"body of a wrong method")
        + request("POST", path, b"")
        + request("POST", path, b"right")
        + request("GET", path)
    )
    replies = [connection.answer() for _ in range(6)]
    assert [reply.status for reply in replies] == [404, 201, 405, 400, 204, 200]
    assert replies[-1].body == b"right"


def test_a_request_in_single_bytes_is_a_request(connect: Connect) -> None:
    path, connection = fresh_path(), connect()
    chunked = (
        request("POST", path, headers="Transfer-Encoding: chunked\r\n") + b"3\r\nabc\r\n0\r\n\r\n"
    )
    for byte in request("PUT", path, b"one") + chunked + request("GET", path):
        connection.send(bytes([byte]))
    assert [connection.answer().status for _ in range(2)] == [201, 204]
    assert connection.answer().body == b"oneabc"


def test_a_body_may_look_like_a_request(memory_api: Api, connect: Connect) -> None:
    # The same head many times over, as a client in a loop sends it; only the packets differ.
    path, connection = memory_api.stream(), connect()
    body = request("DELETE", path)
    whole = request("POST", path, body)
    for cuts in ([], [], [], [len(whole) - len(body)], [len(whole) - 5], [20, len(whole) - 30]):
        edges = [0, *cuts, len(whole)]
        for start, end in pairwise(edges):
            connection.send(whole[start:end])
            memory_api.settle()
        assert connection.answer("POST").status == 204
    connection.send(whole * 3)
    assert [connection.answer("POST").status for _ in range(3)] == [204] * 3
    assert memory_api.get(path).body == body * 9


def test_a_client_that_only_listens_still_gets_its_answer(connect: Connect) -> None:
    path, connection = fresh_path(), connect()
    connection.send(request("PUT", path, b"one") + request("GET", path))
    connection.finish_sending()
    assert connection.answer("PUT").status == 201
    assert connection.answer().body == b"one"
    assert connection.is_ended_by_server()


def test_a_durable_append_of_a_half_closed_client_is_answered(api: Api) -> None:
    connection = RawConnection(api.port)
    path = api.stream()
    connection.send(request("POST", path, b"one"))
    connection.finish_sending()
    assert connection.answer("POST").status == 204
    assert api.get(path).body == b"one"
    connection.close()


def test_answers_without_a_body_have_none(connect: Connect) -> None:
    path, connection = fresh_path(), connect()
    connection.send(request("PUT", path, b"one"))
    connection.answer("PUT")
    for method, headers, status in (
        ("HEAD", "", 200),
        ("GET", "If-None-Match: *\r\n", 304),
        ("HEAD", "If-None-Match: *\r\n", 304),
        ("POST", "Stream-Closed: true\r\n", 204),
    ):
        connection.send(request(method, path, headers=headers))
        reply = connection.answer(method)
        assert reply.status == status
        if status == 204:
            assert "content-length" not in reply.headers
            assert "transfer-encoding" not in reply.headers
    connection.send(request("HEAD", "/v1/stream/missing") + request("GET", path))
    assert connection.answer("HEAD").status == 404
    assert connection.answer().body == b"one"


def test_connection_close_is_honoured(connect: Connect) -> None:
    connection = connect()
    connection.send(request("GET", "/healthz", headers="Connection: close\r\n"))
    reply = connection.answer()
    assert (reply.status, reply.headers["connection"].lower()) == (200, "close")
    assert connection.is_ended_by_server()


def test_connection_close_is_one_of_a_list(connect: Connect) -> None:
    connection = connect()
    connection.send(request("GET", "/healthz", headers="Connection: foo, Close\r\n"))
    assert connection.answer().status == 200
    assert connection.is_ended_by_server()


def test_nothing_is_done_after_the_last_request(memory_api: Api, connect: Connect) -> None:
    path, connection = memory_api.stream(), connect()
    last = request("POST", path, b"one", headers="Connection: close\r\n")
    connection.send(last + request("POST", path, b"two"))
    assert connection.answer().status == 204
    assert connection.is_ended_by_server()
    assert memory_api.get(path).body == b"one"


def test_http_1_0_gets_one_answer_and_the_end(connect: Connect) -> None:
    path, connection = fresh_path(), connect()
    connection.send(request("PUT", path, b"one", version="1.0"))
    assert connection.answer().status == 201
    assert connection.is_ended_by_server()


def test_http_1_0_events_are_not_chunked(memory_api: Api, connect: Connect) -> None:
    path, connection = memory_api.stream(b"one"), connect()
    memory_api.close_stream(path)
    connection.send(request("GET", f"{path}?offset=-1&live=sse", version="1.0"))
    reply = connection.answer()
    assert "transfer-encoding" not in reply.headers
    assert reply.body.startswith(b"event: data\ndata:one\n\nevent: control\n")


def test_events_end_so_that_the_connection_can_go_on_or_is_ended(
    memory_api: Api, connect: Connect
) -> None:
    path, connection = memory_api.stream(b"one"), connect()
    memory_api.close_stream(path)
    connection.send(request("GET", f"{path}?offset=-1&live=sse"))
    reply = connection.answer()
    assert b"data:one\n" in reply.body
    if reply.headers.get("connection", "").lower() == "close":
        assert connection.is_ended_by_server()
    else:
        connection.send(request("GET", path))
        assert connection.answer().body == b"one"


def test_the_absolute_form_of_a_url_is_understood(memory_api: Api, connect: Connect) -> None:
    path, connection = memory_api.stream(b"one"), connect()
    connection.send(request("GET", f"http://localhost:1{path}?offset=-1"))
    assert connection.answer().body == b"one"


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_an_upgrade_is_politely_ignored(memory_api: Api, connect: Connect, protocol: str) -> None:
    path, connection = memory_api.stream(), connect()
    upgrade = (
        f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\nHTTP2-Settings: AAA\r\n"
    )
    connection.send(
        request("POST", path, b"one", headers=upgrade)
        + request("GET", path, headers=upgrade)
        + request("GET", path)
    )
    assert connection.answer().status == 204
    assert [connection.answer().body for _ in range(2)] == [b"one", b"one"]


def test_an_upgrade_does_not_cost_a_body(memory_api: Api, connect: Connect) -> None:
    # curl --http2 sends exactly this with its first request.
    path, connection = fresh_path(), connect()
    upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n"
    connection.send(request("PUT", path, b"one", headers=upgrade))
    assert connection.answer().status == 201
    assert memory_api.get(path).body == b"one"


@pytest.mark.parametrize("line", ["CONNECT example.com:443", "GET *", "PUT *", "GET http://x"])
def test_a_target_that_is_no_path_is_refused(connect: Connect, line: str) -> None:
    connection = connect()
    connection.send(f"{line} HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.answer().status in (400, 404, 405, 501)


def test_a_preflight_for_the_whole_server_is_answered(connect: Connect) -> None:
    connection = connect()
    connection.send(request("OPTIONS", "*"))
    assert connection.answer().status < 500


def test_expect_continue_is_answered_before_the_body(memory_api: Api, connect: Connect) -> None:
    path, connection = memory_api.stream(), connect()
    for expectation in ("100-continue", "100-Continue"):
        head = f"Expect: {expectation}\r\nContent-Length: 3\r\n"
        connection.send(request("POST", path, headers=head))
        assert connection.answer().status == 100
        connection.send(b"one")
        assert connection.answer().status == 204
    assert memory_api.get(path).body == b"oneone"


def test_expect_continue_with_a_chunked_body(memory_api: Api, connect: Connect) -> None:
    path, connection = memory_api.stream(), connect()
    head = "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n"
    connection.send(request("POST", path, headers=head))
    assert connection.answer().status == 100
    connection.send(b"3\r\none\r\n0\r\n\r\n")
    assert connection.answer().status == 204


def test_expect_continue_with_the_body_already_there_is_fine(
    memory_api: Api, connect: Connect
) -> None:
    path, connection = memory_api.stream(), connect()
    connection.send(request("POST", path, b"one", headers="Expect: 100-continue\r\n"))
    first = connection.answer()
    assert (connection.answer() if first.status == 100 else first).status == 204


def test_chunks_may_have_extensions_and_trailers(memory_api: Api, connect: Connect) -> None:
    path, connection = fresh_path(), connect()
    chunks = b'3;name=value;x\r\none\r\n03;q="a b"\r\ntwo\r\n0\r\n'
    chunks += b"X-Trailer: yes\r\nStream-Closed: true\r\n\r\n"
    head = "Transfer-Encoding: chunked\r\nTrailer: X-Trailer\r\n"
    connection.send(request("PUT", path, headers=head) + chunks)
    connection.send(request("POST", path, headers=head) + chunks + request("GET", path))
    assert [connection.answer().status for _ in range(2)] == [201, 204]
    assert connection.answer().body == b"onetwoonetwo"
    # A trailer comes after the decision to append; it must not be taken for a header.
    assert "stream-closed" not in memory_api.head(path).headers


def test_an_empty_chunked_body_is_an_empty_body(memory_api: Api, connect: Connect) -> None:
    path, connection = memory_api.stream(), connect()
    head = "Transfer-Encoding: chunked\r\n"
    connection.send(request("POST", path, headers=head) + b"0\r\n\r\n")
    assert connection.answer().status == 400
    connection.send(request("POST", path, headers=head + "Stream-Closed: true\r\n") + b"0\r\n\r\n")
    assert connection.answer().status == 204


def test_header_names_have_no_case_and_values_no_outer_space(
    memory_api: Api, connect: Connect
) -> None:
    path, connection = memory_api.stream(), connect()
    connection.send(
        f"POST {path} HTTP/1.1\r\nhOsT:localhost\r\nCONTENT-type: \t text/plain \t\r\n"
        "content-LENGTH:3\r\nsTREAM-cLOSED:   TRUE  \r\n\r\none"
    )
    reply = connection.answer()
    assert (reply.status, reply.headers["stream-closed"]) == (204, "true")


def test_a_large_body_travels_in_pieces(api: Api) -> None:
    connection = RawConnection(api.port)
    path, body = api.stream(), bytes(range(256)) * 4096
    connection.send(request("POST", path, headers=f"Content-Length: {len(body)}\r\n"))
    for start in range(0, len(body), 50_000):
        connection.send(body[start : start + 50_000])
    assert connection.answer().status == 204
    connection.send(request("GET", path))
    assert connection.answer().body == body
    connection.close()


def test_an_error_body_is_framed_and_readable(connect: Connect) -> None:
    connection = connect()
    connection.send(request("GET", "/v1/stream/missing") + request("GET", "/healthz"))
    missing = connection.answer()
    assert json.loads(missing.body)["error"]["message"]
    assert int(missing.headers["content-length"]) == len(missing.body)
    assert connection.answer().status == 200
