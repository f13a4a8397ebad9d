"""Snapshots: what may be published, what it replaces, and what stays as it was.

The letters are those of the checklist in the reference: S1 to S5.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

import pytest

from tests.conformance.api import (
    BINARY,
    JSON,
    START,
    TEXT,
    Api,
    Call,
    error_code,
    fresh_path,
    producer,
    token,
)
from tests.conformance.conftest import speak_to
from tests.conformance.multipart import bootstrap
from tests.conformance.raw import RawConnection
from tests.support.server import running_server

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def small_api() -> Iterator[Api]:
    flags = ("--max-snapshot-bytes", "200000", "--max-body-bytes", "100000")
    with running_server(None, *flags, "--page-bytes", "4000") as server:
        yield from speak_to(server)


# S1: publish


def test_s1_a_published_snapshot_can_be_read_with_its_own_type(api: Api) -> None:
    path = api.bucketed(b"one", b"two", b"three")
    published = api.publish(path, token(2, 6), b"\0state\xff", "application/x-state; v=2")
    assert (published.status, published.body) == (204, b"")
    assert published.headers["stream-snapshot-offset"] == token(2, 6)
    assert published.next_offset == token(3, 11)
    read = api.get(f"{path}/snapshot/{token(2, 6)}")
    assert (read.status, read.body) == (200, b"\0state\xff")
    assert read.headers["content-type"] == "application/x-state; v=2"
    assert api.head(path).headers["content-type"] == TEXT


def test_s1_a_snapshot_without_a_type_is_bytes(api: Api) -> None:
    path = api.bucketed(b"one")
    assert api.publish(path, token(1, 3)).status == 204
    assert api.get(f"{path}/snapshot/{token(1, 3)}").headers["content-type"] == BINARY


def test_s1_a_snapshot_may_be_empty_and_of_the_start_or_the_tail(api: Api) -> None:
    path = api.bucketed(b"one")
    assert api.publish(path, START, b"").status == 204
    assert api.get(f"{path}/snapshot/{START}").body == b""
    assert bootstrap(api, path).messages == [b"one"]
    assert api.publish(path, token(1, 3), b"").status == 204
    read = api.get(f"{path}/snapshot/{token(1, 3)}")
    assert (read.status, read.body, read.headers["content-length"]) == (200, b"", "0")


@pytest.mark.parametrize(
    "offset",
    ["-1", "now", "x", "1", "0" * 16, f"{token(1, 3)}0", f" {token(1, 3)}", "%FF", "-", "1_3"],
)
def test_s1_what_is_no_offset_is_refused(api: Api, offset: str) -> None:
    path = api.bucketed(b"one")
    refused = api.publish(path, quote(offset, safe="%"))
    assert (refused.status, error_code(refused)) == (400, "invalid_offset")
    assert "stream-snapshot-offset" not in api.head(path).headers


@pytest.mark.parametrize(
    ("offset", "status", "code"),
    [
        pytest.param(token(1, 2), 400, "invalid_offset", id="a byte short"),
        pytest.param(token(1, 4), 400, "invalid_offset", id="a byte inside the next"),
        pytest.param(token(2, 3), 400, "invalid_offset", id="units that disagree"),
        pytest.param(token(0, 3), 400, "invalid_offset", id="another message's byte"),
        pytest.param(f"{4:020d}", 400, "invalid_offset", id="bytes only, inside"),
        pytest.param(token(3, 6), 409, "snapshot_conflict", id="a message beyond"),
        pytest.param(token(2, 7), 409, "snapshot_conflict", id="a byte beyond"),
        pytest.param(token(9, 99), 409, "snapshot_conflict", id="far beyond"),
        pytest.param(f"{99:020d}", 409, "snapshot_conflict", id="bytes only, beyond"),
        pytest.param(token(10**15, 10**15), 409, "snapshot_conflict", id="absurdly far"),
    ],
)
def test_s1_an_offset_has_to_be_a_message_boundary_of_the_stream(
    api: Api, offset: str, status: int, code: str
) -> None:
    path = api.bucketed(b"one", b"two")
    refused = api.publish(path, offset)
    assert (refused.status, error_code(refused)) == (status, code)
    assert "stream-snapshot-offset" not in api.head(path).headers
    assert api.get(path).body == b"onetwo"


@pytest.mark.parametrize(
    ("offset", "status"),
    [
        pytest.param(START, 410, id="the start"),
        pytest.param(token(1, 3), 410, id="a boundary that was one"),
        pytest.param(token(1, 4), 410, id="gone wins over misaligned"),
        pytest.param(token(1, 999), 410, id="gone wins over beyond"),
        pytest.param(f"{3:020d}", 410, id="gone by its bytes"),
        pytest.param(token(2, 999), 409, id="beyond wins over misaligned"),
        pytest.param(token(2, 7), 400, id="misaligned"),
        pytest.param("x", 400, id="no offset at all"),
    ],
)
def test_s1_the_checks_come_in_the_documented_order(api: Api, offset: str, status: int) -> None:
    path = api.bucketed(b"one", b"two", b"three")
    assert api.publish(path, token(2, 6)).status == 204
    refused = api.publish(path, offset, b"other")
    assert refused.status == status
    if status == 410:
        assert refused.headers["stream-earliest-offset"] == token(2, 6)
    assert api.get(f"{path}/snapshot/{token(2, 6)}").body == b"snapshot"


def test_s1_a_bad_offset_is_reported_before_a_missing_stream(memory_api: Api) -> None:
    bucket = memory_api.bucket()
    assert memory_api.publish(f"{bucket}/missing", "x").status == 400
    missing = memory_api.publish(f"{bucket}/missing", token(0, 0))
    assert (missing.status, error_code(missing)) == (404, "stream_not_found")


@pytest.mark.parametrize("content_type", ["nonsense", "a/b/c d", "text/", "/x"])
def test_s1_a_type_that_is_none_is_refused(memory_api: Api, content_type: str) -> None:
    path = memory_api.bucketed(b"one")
    refused = memory_api.publish(path, token(1, 3), b"x", content_type)
    assert (refused.status, error_code(refused)) == (400, "invalid_request")


def test_s1_the_same_snapshot_may_be_published_again(api: Api) -> None:
    path = api.bucketed(b"one", b"two")
    for _ in range(3):
        again = api.publish(path, token(1, 3), b"state", JSON)
        assert (again.status, again.headers["stream-snapshot-offset"]) == (204, token(1, 3))
    for body, content_type in ((b"other", JSON), (b"state", TEXT), (b"", JSON)):
        refused = api.publish(path, token(1, 3), body, content_type)
        assert (refused.status, error_code(refused)) == (409, "snapshot_conflict")
    read = api.get(f"{path}/snapshot/{token(1, 3)}")
    assert (read.body, read.headers["content-type"]) == (b"state", JSON)


def test_s1_an_offset_may_be_written_with_escapes_and_in_other_spellings(api: Api) -> None:
    path = api.bucketed(b"one", b"two")
    assert api.publish(path, token(1, 3).replace("_", "%5F")).status == 204
    assert api.get(f"{path}/snapshot/{token(1, 3).replace('0', '%30', 3)}").status == 200
    assert api.publish(path, f"{6:020d}").headers["stream-snapshot-offset"] == token(2, 6)
    assert api.get(f"{path}/snapshot/{6:020d}").status == 200


def test_s1_a_snapshot_over_the_limit_is_refused_before_anything_else(small_api: Api) -> None:
    path = small_api.bucketed(b"one", b"two")
    assert small_api.publish(path, token(1, 3), b"x" * 200_000).status == 204
    for offset in (token(2, 6), "x", token(9, 99)):
        refused = small_api.publish(path, offset, b"x" * 200_001)
        assert (refused.status, error_code(refused)) == (413, "body_too_large")
    assert small_api.publish(f"{path}2", token(0, 0), b"x" * 200_001).status == 413
    assert small_api.head(path).headers["stream-snapshot-offset"] == token(1, 3)


@pytest.mark.parametrize("size", [1000, 150_000])
def test_s1_the_limit_counts_chunks_too(small_api: Api, size: int) -> None:
    path = small_api.bucketed(b"one")
    with contextlib.closing(RawConnection(small_api.port)) as connection:
        connection.send(
            f"PUT {path}/snapshot/{token(1, 3)} HTTP/1.1\r\nHost: localhost\r\n"
            "Transfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"%x\r\n%b\r\n" % (size, b"x" * size)
        with contextlib.suppress(ConnectionError):
            for _ in range(200_000 // size + 1):
                connection.send(chunk)
            connection.send(b"0\r\n\r\n")
        assert connection.answer().status == 413


def test_s1_a_small_limit_holds_for_small_snapshots_too() -> None:
    flags = ("--max-snapshot-bytes", "1000")
    with running_server(None, *flags) as server, contextlib.closing(Api(server)) as api:
        path = api.bucketed(b"one")
        for _ in range(4):  # the server remembers heads it has seen; sizes still count
            assert api.publish(path, token(1, 3), b"x" * 1001).status == 413
        assert api.publish(path, token(1, 3), b"x" * 1000).status == 204
        assert api.append(path, b"x" * 5000).status == 204


def test_s1_a_snapshot_may_be_larger_than_any_message(api: Api) -> None:
    path = api.bucketed(b"one")
    large = bytes(range(256)) * (65 * MIB // 256) + b"end"
    assert api.append(path, large).status == 413
    assert api.publish(path, token(1, 3), large, "application/x-large").status == 204
    read = api.get(f"{path}/snapshot/{token(1, 3)}")
    assert (read.status, read.body == large) == (200, True)
    whole = api.get(f"{path}/bootstrap")
    assert large in whole.body
    assert api.publish(path, token(1, 3), b"x").status == 409
    assert api.delete(path).status == 204


def test_s1_without_its_stream_nothing_is_published(api: Api) -> None:
    path = api.bucketed(b"one")
    api.fork(path, path=fresh_path())
    assert api.delete(path).status == 204
    assert api.publish(path, token(1, 3)).status == 410
    assert api.get(f"{path}/snapshot").status == 410
    assert api.get(f"{path}/bootstrap").status == 410


# S2: what a snapshot replaces


def test_s2_everything_below_the_snapshot_is_gone_for_every_reader(api: Api) -> None:
    path = api.bucketed(b"one", b"two", b"three")
    assert api.publish(path, token(2, 6)).status == 204
    below = ["", "?offset=-1", f"?offset={START}", f"?offset={token(1, 3)}", f"?offset={3:020d}"]
    for query in below:
        gone = api.get(f"{path}{query}")
        assert (gone.status, error_code(gone)) == (410, "offset_gone"), query
        assert gone.headers["stream-earliest-offset"] == token(2, 6)
        assert gone.headers["cache-control"] == "no-store"
        for live in ("long-poll", "sse"):
            if query:
                gone = api.get(f"{path}{query}&live={live}")
                assert gone.status == 410, (query, live)
                assert gone.headers["stream-earliest-offset"] == token(2, 6)
    tag = {"If-None-Match": "*"}
    assert api.get(path, headers=tag).status == 410
    assert api.get(f"{path}?offset={token(2, 6)}").body == b"three"
    assert api.get(f"{path}?offset=now").next_offset == token(3, 11)
    assert api.get(f"{path}?offset={token(2, 8)}").status == 400


def test_s2_forks_cannot_begin_below_it(api: Api) -> None:
    path = api.bucketed(b"one", b"two", b"three")
    assert api.publish(path, token(2, 6)).status == 204
    for offset in (START, token(1, 3), f"{3:020d}"):
        _, refused = api.fork(path, offset=offset)
        assert (refused.status, error_code(refused)) == (410, "offset_gone")
        assert refused.headers["stream-earliest-offset"] == token(2, 6)
    assert api.fork(path, offset=token(1, 3), sub_offset=8)[1].status == 410
    assert api.fork(path, offset=token(2, 6))[1].status == 201


def test_s2_reads_never_contain_the_snapshot(api: Api) -> None:
    path = api.bucketed(b"1", b"2", content_type=JSON)
    assert api.publish(path, token(1, 2), b'"SNAPSHOT"', JSON).status == 204
    assert api.get(f"{path}?offset={token(1, 2)}").body == b"[2]"
    assert api.get(f"{path}?offset={token(1, 2)}&live=long-poll").body == b"[2]"
    events = api.events(f"{path}?offset={token(1, 2)}&live=sse").until_up_to_date()
    assert [event.data for event in events if event.kind == "data"] == ["[2]"]


def test_s2_offsets_and_message_counts_go_on_unchanged(api: Api) -> None:
    path = api.bucketed(*[b"%d" % n * 5 for n in range(6)])
    boundaries = [token(n, 5 * n) for n in range(7)]
    for place in (2, 3, 6):
        assert api.publish(path, boundaries[place]).status == 204
        assert api.tail(path) == boundaries[6]
        offset, seen = boundaries[place], [boundaries[place]]
        while offset != boundaries[6]:
            offset = api.get(f"{path}?offset={offset}&max_bytes=1").next_offset
            seen.append(offset)
        assert seen == boundaries[place:]
    assert api.append(path, b"more!").next_offset == token(7, 35)
    assert api.append(path, b"x", headers=producer("p", 0, 0)).next_offset == token(8, 36)
    assert api.get(f"{path}?offset={boundaries[6]}").body == b"more!x"


def test_s2_tags_of_what_is_still_there_stay_good(api: Api) -> None:
    path = api.bucketed(b"one", b"two")
    tag = api.get(f"{path}?offset={token(1, 3)}").headers["etag"]
    assert api.publish(path, token(1, 3)).status == 204
    again = api.get(f"{path}?offset={token(1, 3)}", headers={"If-None-Match": tag})
    assert again.status == 304


def test_s2_a_newer_snapshot_takes_the_place_of_the_older(api: Api) -> None:
    path = api.bucketed(b"one", b"two", b"three")
    assert api.publish(path, token(1, 3), b"older").status == 204
    assert api.publish(path, token(2, 6), b"newer").status == 204
    assert api.get(f"{path}/snapshot/{token(1, 3)}").status == 404
    assert api.get(f"{path}/snapshot/{token(2, 6)}").body == b"newer"
    assert api.head(path).headers["stream-snapshot-offset"] == token(2, 6)
    older = api.publish(path, token(1, 3), b"older")
    assert older.status == 410


def test_s2_of_publications_at_once_one_wins_and_the_rest_fits(api: Api) -> None:
    path = api.bucketed(*[b"%d" % n for n in range(8)])
    calls = [Call("PUT", f"{path}/snapshot/{token(n, n)}", b"at %d" % n) for n in range(1, 9)]
    replies = api.together(calls)
    assert {reply.status for reply in replies} <= {204, 410}
    assert replies[-1].status == 204
    assert api.head(path).headers["stream-snapshot-offset"] == token(8, 8)
    assert bootstrap(api, path).snapshot.body == b"at 8"


def test_s2_a_waiting_reader_at_the_tail_does_not_notice(api: Api) -> None:
    path = api.bucketed(b"one")
    waiting = api.wait(f"{path}?offset=now&live=long-poll")
    events = api.events(f"{path}?offset=now&live=sse")
    events.until_up_to_date()
    assert api.publish(path, token(1, 3)).status == 204
    assert api.append(path, b"two").status == 204
    assert waiting.reply().body == b"two"
    assert events.until_up_to_date()[0].data == "two"


def test_s2_a_lagging_event_reader_is_ended_and_hears_410_when_it_comes_again(
    small_api: Api,
) -> None:
    api = small_api
    path = api.bucketed(content_type=BINARY)
    with socket.socket() as lagging:
        lagging.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lagging.settimeout(10)
        lagging.connect(("127.0.0.1", api.port))
        lagging.sendall(
            f"GET {path}?offset=-1&live=sse HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        api.settle()
        for _ in range(100):
            assert api.append(path, b"x" * 90_000, BINARY).status == 204
        tail = api.tail(path)
        assert api.publish(path, tail).status == 204
        assert api.append(path, b"after", BINARY).status == 204
        received = b""
        while part := lagging.recv(1 << 20):  # ends: the server lets go of it
            received += part
            if received.endswith(b"0\r\n\r\n"):
                break
    assert received.endswith(b"0\r\n\r\n")
    last = received.rpartition(b'"streamNextOffset":"')[2][:33].decode()
    assert last < tail
    assert api.get(f"{path}?offset={last}&live=sse").status == 410
    caught_up = bootstrap(api, path)
    assert (caught_up.snapshot_offset, caught_up.messages) == (tail, [b"after"])


def test_s2_an_event_reader_waiting_inside_a_character_is_ended(api: Api) -> None:
    path = api.bucketed(b"caf\xc3")
    events = api.events(f"{path}?offset=-1&live=sse")
    first = next(iter(events))
    assert (first.kind, first.json()["streamNextOffset"]) == ("control", START)
    assert api.publish(path, token(1, 4)).status == 204
    assert api.append(path, b"\xa9").status == 204
    assert [event for event in events if event.kind == "data"] == []
    assert api.get(f"{path}?offset={START}&live=sse").status == 410


# S2 and forks: what a fork inherited is its own


def test_s2_forks_made_before_keep_reading_everything(api: Api) -> None:
    source = api.bucketed(b"one", b"two", b"three")
    fork, _ = api.fork(source, offset=token(2, 6), path=f"{api.bucket()}/fork")
    cut, _ = api.fork(source, offset=token(1, 3), sub_offset=2, path=f"{api.bucket()}/cut")
    assert api.publish(source, token(3, 11)).status == 204
    assert api.append(fork, b"own").status == 204
    assert api.get(fork).body == b"onetwoown"
    assert api.get(cut).body == b"onetw"
    assert api.get(f"{fork}/snapshot").status == 404
    for stream, messages in ((fork, [b"one", b"two", b"own"]), (cut, [b"one", b"tw"])):
        found = bootstrap(api, stream)
        assert (found.snapshot_offset, found.messages) == ("-1", messages)
    assert api.delete(source).status == 204
    assert bootstrap(api, fork).messages == [b"one", b"two", b"own"]


def test_s2_forks_made_after_begin_with_the_same_snapshot(api: Api) -> None:
    source = api.bucketed(b"one", b"two", b"three")
    assert api.publish(source, token(1, 3), b"state", JSON).status == 204
    fork, created = api.fork(source, path=f"{api.bucket()}/fork")
    assert (created.status, created.next_offset) == (201, token(3, 11))
    at_it, created = api.fork(source, offset=token(1, 3), path=f"{api.bucket()}/fork")
    assert (created.status, created.next_offset) == (201, token(1, 3))
    assert api.head(fork).headers["stream-snapshot-offset"] == token(1, 3)
    assert api.get(fork).status == 410
    assert api.publish(source, token(3, 11), b"newer").status == 204
    assert api.delete(source).status == 204
    assert api.append(fork, b"own").next_offset == token(4, 14)
    found = bootstrap(api, fork)
    assert (found.snapshot.body, found.snapshot.content_type) == (b"state", JSON)
    assert (found.snapshot_offset, found.messages) == (token(1, 3), [b"two", b"three", b"own"])
    found = bootstrap(api, at_it)
    assert (found.snapshot.body, found.messages) == (b"state", [])
    assert api.get(f"{fork}/snapshot/{token(1, 3)}").body == b"state"


def test_s2_a_fork_has_snapshots_of_its_own(api: Api) -> None:
    source = api.bucketed(b"one", b"two")
    assert api.publish(source, token(1, 3), b"common").status == 204
    fork, _ = api.fork(source, path=f"{api.bucket()}/fork")
    assert api.append(fork, b"own").status == 204
    assert api.publish(fork, token(3, 9), b"fork's").status == 204
    assert bootstrap(api, source).snapshot.body == b"common"
    assert bootstrap(api, fork).snapshot.body == b"fork's"
    assert api.delete(fork).status == 204
    assert bootstrap(api, source).snapshot.body == b"common"
    other, _ = api.fork(source, path=f"{api.bucket()}/other")
    assert api.delete(source).status == 204
    assert bootstrap(api, other).snapshot.body == b"common"


def test_s2_forks_behind_a_snapshot_may_cut_messages(api: Api) -> None:
    source = api.bucketed(b"one", b"three")
    assert api.publish(source, token(1, 3)).status == 204
    fork, created = api.fork(source, offset=token(1, 3), sub_offset=2, path=f"{api.bucket()}/f")
    assert (created.status, created.next_offset) == (201, token(2, 5))
    assert bootstrap(api, fork).messages == [b"th"]
    json_source = api.bucketed(b"[1,22,333]", content_type=JSON)
    assert api.publish(json_source, token(1, 2)).status == 204
    fork, created = api.fork(
        json_source, offset=token(1, 2), sub_offset=1, path=f"{api.bucket()}/f"
    )
    assert created.status == 201
    assert bootstrap(api, fork).messages == [b"22"]


# S3: find and read


def test_s3_the_latest_snapshot_is_found_by_a_redirect_that_works(api: Api) -> None:
    path = api.bucketed(b"one", b"two", name="a%20b")
    missing = api.get(f"{path}/snapshot")
    assert (missing.status, error_code(missing)) == (404, "snapshot_not_found")
    for place, body in ((1, b"first"), (2, b"second")):
        offset = token(place, 3 * place)
        assert api.publish(path, offset, body).status == 204
        found = api.get(f"{path}/snapshot")
        assert (found.status, found.headers["stream-snapshot-offset"]) == (307, offset)
        location = urlsplit(found.headers["location"])
        assert location.netloc in ("", f"127.0.0.1:{api.port}")
        assert location.path == f"{path}/snapshot/{offset}"
        assert found.headers["cache-control"] == "no-store"
        assert api.get(location.path).body == body
        assert api.head(path).headers["stream-snapshot-offset"] == offset


def test_s3_a_snapshot_says_where_it_stands_and_whether_more_follows(api: Api) -> None:
    path = api.bucketed(b"one")
    assert api.publish(path, token(1, 3)).status == 204
    read = api.get(f"{path}/snapshot/{token(1, 3)}")
    assert read.headers["stream-snapshot-offset"] == token(1, 3)
    assert read.next_offset == token(1, 3)
    assert read.headers["stream-up-to-date"] == "true"
    assert api.append(path, b"two").status == 204
    read = api.get(f"{path}/snapshot/{token(1, 3)}")
    assert (read.next_offset, read.headers["stream-up-to-date"]) == (token(1, 3), "false")
    assert api.get(f"{path}?offset={read.next_offset}").body == b"two"


def test_s3_what_is_not_the_latest_snapshot_is_not_found(api: Api) -> None:
    path = api.bucketed(b"one", b"two")
    for offset in (token(1, 3), "-1", "now", "x", START):
        assert api.get(f"{path}/snapshot/{offset}").status == 404
    assert api.publish(path, token(1, 3)).status == 204
    for offset in ("-1", "now", "x", START, token(2, 6), token(1, 2), token(9, 9)):
        missing = api.get(f"{path}/snapshot/{offset}")
        assert (missing.status, error_code(missing)) == (404, "snapshot_not_found"), offset
    assert api.get(f"{path}2/snapshot").status == 404
    assert api.get(f"{path}2/snapshot/{token(1, 3)}").status == 404


def test_s3_head_of_a_snapshot_has_the_headers_and_no_body(memory_api: Api) -> None:
    path = memory_api.bucketed(b"one")
    assert memory_api.publish(path, token(1, 3), b"state", JSON).status == 204
    head = memory_api.head(f"{path}/snapshot/{token(1, 3)}")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-type"] == JSON
    assert memory_api.head(f"{path}/snapshot").status == 307


def test_s3_a_closed_stream_may_be_compacted_and_says_it_is_closed(api: Api) -> None:
    path = api.bucketed(b"one")
    api.close_stream(path)
    assert api.publish(path, token(1, 3), b"final").status == 204
    assert bootstrap(api, path).reply.headers["stream-closed"] == "true"
    read = api.get(f"{path}?offset={token(1, 3)}")
    assert (read.status, read.body, read.headers["stream-closed"]) == (200, b"", "true")
    assert api.append(path, b"x").status == 409


# S4: delete


def test_s4_a_snapshot_is_never_deleted_by_hand(api: Api) -> None:
    path = api.bucketed(b"one", b"two")
    assert api.delete(f"{path}/snapshot/{token(1, 3)}").status == 404
    assert api.publish(path, token(1, 3)).status == 204
    latest = api.delete(f"{path}/snapshot/{token(1, 3)}")
    assert (latest.status, error_code(latest)) == (409, "snapshot_conflict")
    assert api.publish(path, token(2, 6)).status == 204
    for offset in (token(1, 3), START, "x", "-1"):
        assert api.delete(f"{path}/snapshot/{offset}").status == 404
    assert api.delete(f"{path}2/snapshot/{token(1, 3)}").status == 404
    assert bootstrap(api, path).snapshot.body == b"snapshot"


# S5: appends go on


def test_s5_appends_are_acknowledged_while_a_large_snapshot_is_under_way(api: Api) -> None:
    path = api.bucketed(b"one")
    size = 30 * MIB
    with contextlib.closing(RawConnection(api.port)) as upload:
        upload.socket.settimeout(30)
        upload.send(
            f"PUT {path}/snapshot/{token(1, 3)} HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Length: {size}\r\n\r\n"
        )
        for _ in range(10):
            upload.send(bytes(2 * MIB))
            assert api.append(path, b"+").status == 204
        assert api.get(path).status == 200  # not visible before it is whole
        rest = threading.Thread(target=upload.send, args=(bytes(10 * MIB),))
        rest.start()
        appended = 10
        while rest.is_alive() or appended < 40:
            assert api.append(path, b"+").status == 204
            appended += 1
        rest.join()
        assert upload.answer().status == 204
    assert api.append(path, b"end").status == 204
    found = bootstrap(api, path)
    assert found.messages == [b"+"] * appended + [b"end"]
    assert found.snapshot.body == bytes(size)


def test_s5_an_upload_that_is_broken_off_publishes_nothing(api: Api) -> None:
    path = api.bucketed(b"one")
    upload = RawConnection(api.port)
    upload.send(
        f"PUT {path}/snapshot/{token(1, 3)} HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Length: 100\r\n\r\nhalf"
    )
    api.settle()
    upload.close()
    api.settle()
    assert "stream-snapshot-offset" not in api.head(path).headers
    assert api.get(path).body == b"one"


def test_s5_what_is_appended_while_a_snapshot_is_published_is_behind_it(api: Api) -> None:
    path = api.bucketed(b"one")
    publish = Call("PUT", f"{path}/snapshot/{token(1, 3)}", b"x" * 1_000_000)
    append = Call("POST", path, b"+", {"Content-Type": TEXT})
    replies = api.together([publish, *[append] * 20])
    assert [reply.status for reply in replies] == [204] * 21
    assert bootstrap(api, path).messages == [b"+"] * 20
