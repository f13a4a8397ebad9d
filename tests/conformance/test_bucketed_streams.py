"""The base protocol on `/{bucket}/{stream}`, row by row of the checklist in the reference.

The details of each rule are tested on `/v1/stream`; here is what shows that both surfaces lead to
the same rules. The letters are those of the checklist.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.conformance.api import (
    BINARY,
    JSON,
    START,
    TEXT,
    Api,
    Call,
    error_code,
    halves,
    producer,
    token,
)
from tests.conformance.conftest import speak_to
from tests.conformance.raw import RawConnection
from tests.support.http import Reply
from tests.support.server import ServerProcess, running_server

CLOSE = {"Stream-Closed": "true"}


@pytest.fixture(scope="module")
def hasty_api() -> Iterator[Api]:
    flags = ("--sse-heartbeat", "0.2", "--sse-lifetime", "0.7", "--max-body-bytes", "100000")
    with running_server(None, *flags, "--page-bytes", "1000") as server:
        yield from speak_to(server)


# C: create


def test_c1_a_new_stream_answers_with_its_address_type_and_offset(api: Api) -> None:
    path = f"{api.bucket()}/a%20b"
    created = api.put(path, content_type="Text/Plain; x=y")
    assert (created.status, created.headers["content-type"]) == (201, "Text/Plain; x=y")
    assert created.next_offset == START
    location = urlsplit(created.headers["location"])
    assert (location.netloc, location.path) == (f"127.0.0.1:{api.port}", path)
    again = api.put(path, b"ignored", content_type="text/plain")
    assert (again.status, again.next_offset) == (200, START)
    assert api.put(path, content_type=JSON).status == 409
    assert api.put(path, content_type=TEXT, headers={"Stream-TTL": "60"}).status == 409


@pytest.mark.parametrize("was_closed", [True, False])
@pytest.mark.parametrize("asks_closed", [True, False])
def test_c1_closure_has_to_match_too(api: Api, was_closed: bool, asks_closed: bool) -> None:
    path = f"{api.bucket()}/a"
    assert api.put(path, content_type=TEXT, headers=CLOSE if was_closed else {}).status == 201
    again = api.put(path, content_type=TEXT, headers=CLOSE if asks_closed else {})
    assert again.status == (200 if was_closed == asks_closed else 409)


def test_c2_content_and_closure_come_with_the_creation(api: Api) -> None:
    path = f"{api.bucket()}/a"
    created = api.put(path, b"[1,2]", content_type=JSON, headers=CLOSE)
    assert (created.status, created.next_offset) == (201, token(2, 4))
    assert created.headers["stream-closed"] == "true"
    assert api.get(path).json() == [1, 2]
    assert api.append(path, b"3", JSON).status == 409
    broken = f"{api.bucket()}/a"
    assert api.put(broken, b"[1,", content_type=JSON).status == 400
    assert api.head(broken).status == 404


@pytest.mark.parametrize("written", ["+1", "01", "1.0", "1e3", "-1", "", "1 s", "abc"])
def test_c3_a_time_to_live_that_is_none_is_refused(memory_api: Api, written: str) -> None:
    path = f"{memory_api.bucket()}/a"
    headers = {"Stream-TTL": written}
    assert memory_api.put(path, content_type=TEXT, headers=headers).status == 400
    assert memory_api.head(path).status == 404


def test_c3_one_end_of_either_kind_but_not_both(memory_api: Api) -> None:
    bucket = memory_api.bucket()
    ttl, expiry = {"Stream-TTL": "60"}, {"Stream-Expires-At": "2040-01-01T00:00:00Z"}
    assert memory_api.put(f"{bucket}/a", headers=ttl).status == 201
    assert memory_api.put(f"{bucket}/b", headers=expiry).status == 201
    assert memory_api.put(f"{bucket}/c", headers={**ttl, **expiry}).status == 400
    assert memory_api.put(f"{bucket}/c", headers={"Stream-Expires-At": "soon"}).status == 400


def test_c4_an_expired_stream_is_gone_from_every_route(api: Api) -> None:
    bucket = api.bucket()
    path = f"{bucket}/a"
    assert api.put(path, b"x", content_type=TEXT, headers={"Stream-TTL": "0"}).status == 201
    for below in ("", "?offset=now&live=sse", "/snapshot", "/bootstrap"):
        assert api.get(f"{path}{below}").status == 404, below
    assert api.publish(path, token(1, 1)).status == 404
    assert api.append(path, b"x").status == 404
    assert api.get(f"{bucket}/streams").json()["streams"] == []


def test_c4_reads_of_every_kind_renew_a_sliding_lifetime_and_head_does_not(api: Api) -> None:
    paths = [api.bucketed(b"one", headers={"Stream-TTL": "3"}) for _ in range(4)]
    reads = ["?offset=-1", "/bootstrap", f"/snapshot/{token(1, 3)}"]
    assert api.publish(paths[2], token(1, 3)).status == 204
    ends = time.monotonic() + 30
    while api.head(paths[3]).status == 200:
        assert time.monotonic() < ends
        for path, read in zip(paths, reads, strict=False):
            assert api.get(f"{path}{read}").status == 200, read
        time.sleep(0.1)
    assert api.head(paths[3]).status == 404
    assert [api.head(path).status for path in paths[:3]] == [200] * 3


# A: append and close


def test_a1_append_close_and_both_at_once(api: Api) -> None:
    path = api.bucketed()
    appended = api.append(path, b"one")
    assert (appended.status, appended.body) == (204, b"")
    assert appended.next_offset == token(1, 3)
    closed = api.append(path, b"two", headers=CLOSE)
    assert (closed.status, closed.headers["stream-closed"]) == (204, "true")
    assert closed.next_offset == token(2, 6)
    other = api.bucketed(b"one")
    assert api.close_stream(other).next_offset == token(1, 3)


def test_a2_an_append_needs_a_body_and_the_right_type(api: Api) -> None:
    path = api.bucketed(b"one")
    assert api.append(path, b"").status == 400
    assert api.append(path, b"x", content_type=None).status == 400
    mismatch = api.append(path, b"x", JSON)
    assert (mismatch.status, error_code(mismatch)) == (409, "content_type_mismatch")
    assert api.append(path, b"x", "TEXT/plain; charset=utf-8").status == 204
    assert api.append(f"{api.bucket()}/missing", b"x").status == 404


def test_a3_closed_comes_before_type_and_type_before_sequence(api: Api) -> None:
    path = api.bucketed(b"one")
    assert api.append(path, b"two", headers={"Stream-Seq": "5"}).status == 204
    low = {"Stream-Seq": "1"}
    assert error_code(api.append(path, b"x", JSON, headers=low)) == "content_type_mismatch"
    assert error_code(api.append(path, b"x", headers=low)) == "sequence_regression"
    api.close_stream(path)
    refused = api.append(path, b"x", JSON, headers=low)
    assert (refused.status, error_code(refused)) == (409, "stream_closed")
    assert refused.headers["stream-closed"] == "true"
    assert refused.next_offset == token(2, 6)


def test_a4_closing_again_is_fine_unless_it_brings_data(api: Api) -> None:
    path = api.bucketed(b"one")
    for _ in range(2):
        assert api.close_stream(path).headers["stream-closed"] == "true"
    assert api.append(path, b"x", headers=CLOSE).status == 409


def test_a5_sequences_grow_by_their_bytes(api: Api) -> None:
    path = api.bucketed()
    for sequence, status in (("10", 204), ("9", 204), ("9", 409), ("10", 409), ("a", 204)):
        headers = {"Stream-Seq": sequence}
        assert api.append(path, b"x", headers=headers).status == status, sequence
    assert halves(api.tail(path)) == (3, 3)


def test_a6_a_body_may_come_in_chunks(memory_api: Api) -> None:
    path = memory_api.bucketed()
    with closing(RawConnection(memory_api.port)) as connection:
        connection.send(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
            "Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n"
        )
        connection.send("4\r\nfour\r\n0\r\n\r\n")
        assert connection.answer().status == 204
    assert memory_api.get(path).body == b"onefour"
    assert memory_api.tail(path) == token(1, 7)


def test_a7_a_body_that_is_too_large_is_refused(hasty_api: Api) -> None:
    path = hasty_api.bucketed()
    assert hasty_api.append(path, b"x" * 100_000).status == 204
    assert hasty_api.append(path, b"x" * 100_001).status == 413
    assert hasty_api.put(f"{path}2", b"x" * 100_001, content_type=TEXT).status == 413
    assert hasty_api.tail(path) == token(1, 100_000)


def test_a7_the_name_of_a_snapshot_elsewhere_in_the_url_allows_no_larger_body(
    hasty_api: Api,
) -> None:
    path = hasty_api.bucketed()
    for url in (f"{path}?x=/snapshot/", f"{path}?/snapshot/1"):
        assert hasty_api.append(url, b"x" * 100_001).status == 413, url
    inner = hasty_api.bucketed(name="snapshot")
    batch = b"\0\1\x86\xa1" + b"x" * 100_001
    assert hasty_api.post(f"{inner}/append-batch", batch, content_type=TEXT).status == 413


# P: producers


@pytest.mark.parametrize(
    "headers",
    [
        {"Producer-Id": "p"},
        {"Producer-Id": "p", "Producer-Epoch": "0"},
        {"Producer-Epoch": "0", "Producer-Seq": "0"},
        producer("", 0, 0),
        producer("p", -1, 0),
        producer("p", 0, "x"),
        producer("p", 2**53, 0),
    ],
)
def test_p1_producer_headers_come_together_and_within_limits(
    memory_api: Api, headers: dict[str, str]
) -> None:
    path = memory_api.bucketed()
    assert memory_api.append(path, b"x", headers=headers).status == 400
    assert memory_api.append(path, b"x", headers=producer("p", 2**53 - 1, 0)).status == 200


def test_p2_new_duplicate_stale_gap_and_a_new_epoch(api: Api) -> None:
    path = api.bucketed()
    new = api.append(path, b"one", headers=producer("p", 1, 0))
    assert (new.status, new.next_offset) == (200, token(1, 3))
    assert (new.headers["producer-epoch"], new.headers["producer-seq"]) == ("1", "0")
    assert api.append(path, b"two", headers=producer("p", 1, 1)).status == 200
    duplicate = api.append(path, b"two", headers=producer("p", 1, 1))
    assert (duplicate.status, duplicate.next_offset) == (204, token(2, 6))
    stale = api.append(path, b"x", headers=producer("p", 0, 0))
    assert (stale.status, stale.headers["producer-epoch"]) == (403, "1")
    gap = api.append(path, b"x", headers=producer("p", 1, 5))
    assert gap.status == 409
    assert (gap.headers["producer-expected-seq"], gap.headers["producer-received-seq"]) == (
        "2",
        "5",
    )
    assert api.append(path, b"x", headers=producer("p", 2, 1)).status == 400
    assert api.append(path, b"x", headers=producer("p", 2, 0)).status == 200
    assert api.get(path).body == b"onetwox"


def test_p3_producer_state_is_per_stream(api: Api) -> None:
    first, second = api.bucketed(), api.bucketed()
    assert api.append(first, b"x", headers=producer("p", 5, 0)).status == 200
    assert api.append(second, b"x", headers=producer("p", 0, 0)).status == 200
    assert api.append(second, b"x", headers=producer("q", 0, 3)).status == 409


@pytest.mark.parametrize("how", ["SIGTERM", "kill -9"])
def test_p3_everything_about_a_bucketed_stream_survives_a_restart(tmp_path: Path, how: str) -> None:
    server = ServerProcess(tmp_path / "data")
    with closing(Api(server)) as api:
        empty, path = api.bucket(), api.bucketed(b"one", b"two")
        assert api.append(path, b"three", headers=producer("p", 3, 0)).status == 200
        batch = b"\0\0\0\1a\0\0\0\1b"
        sent = {**producer("b", 0, 0), "Content-Type": TEXT}
        acks = api.post(f"{path}/append-batch", batch, headers=sent)
        assert api.publish(path, token(2, 6), b"state", JSON).status == 204
        fork, _ = api.fork(path, path=f"{empty}/fork")
        deleted = api.bucket()
        assert api.delete(deleted).status == 204
        before = [api.get(url) for url in (empty, f"{empty}/streams", f"{path}/snapshot")]
    if how == "SIGTERM":
        assert server.stop() == 0
    else:
        server.kill()
    with running_server(tmp_path / "data") as second, closing(Api(second)) as api:
        after = [api.get(url) for url in (empty, f"{empty}/streams", f"{path}/snapshot")]
        assert [reply.body for reply in after] == [reply.body for reply in before]
        assert api.get(deleted).status == 404
        assert api.append(path, b"x", headers=producer("p", 3, 0)).status == 204
        again = api.post(f"{path}/append-batch", batch, headers=sent)
        assert [ack["stream_next_offset"] for ack in again.json()] == [
            ack["stream_next_offset"] for ack in acks.json()
        ]
        for stream in (path, fork):
            assert api.get(stream).status == 410
            assert api.get(f"{stream}?offset={token(2, 6)}").body == b"threeab"
            snapshot = api.get(f"{stream}/snapshot/{token(2, 6)}")
            assert (snapshot.body, snapshot.headers["content-type"]) == (b"state", JSON)
        assert api.append(path, b"more").next_offset == token(6, 17)


def test_p4_a_sequence_that_arrives_too_early_is_told_so(api: Api) -> None:
    path = api.bucketed()
    early = api.append(path, b"two", headers=producer("p", 0, 1))
    assert (early.status, early.headers["producer-expected-seq"]) == (409, "0")
    assert api.append(path, b"one", headers=producer("p", 0, 0)).status == 200
    assert api.append(path, b"two", headers=producer("p", 0, 1)).status == 200
    assert api.get(path).body == b"onetwo"


def test_p4_many_senders_of_one_sequence_store_it_once(api: Api) -> None:
    path = api.bucketed()
    call = Call("POST", path, b"x", {"Content-Type": TEXT, **producer("p", 0, 0)})
    replies = api.together([call] * 8)
    assert sorted(reply.status for reply in replies) == [200] + [204] * 7
    assert api.tail(path) == token(1, 1)


def test_p5_a_closing_append_may_be_repeated(api: Api) -> None:
    path = api.bucketed()
    headers = {**producer("p", 0, 0), **CLOSE}
    assert api.append(path, b"end", headers=headers).status == 200
    again = api.append(path, b"end", headers=headers)
    assert (again.status, again.headers["stream-closed"]) == (204, "true")
    assert api.append(path, b"x", headers=producer("p", 0, 1)).status == 409


# R: catch-up reads


def test_r1_a_read_begins_where_it_is_told(api: Api) -> None:
    path = api.bucketed(b"one", b"two")
    assert api.get(path).body == b"onetwo"
    assert api.get(f"{path}?offset=-1").body == b"onetwo"
    assert api.get(f"{path}?offset={token(1, 3)}").body == b"two"
    now = api.get(f"{path}?offset=now")
    assert (now.status, now.body, now.next_offset) == (200, b"", token(2, 6))
    for offset in ("x", "", "1", token(1, 2), token(9, 99), "-2", f"-1&offset={token(1, 3)}"):
        assert api.get(f"{path}?offset={offset}").status == 400, offset
    assert api.publish(path, token(1, 3)).status == 204
    assert api.get(f"{path}?offset=-1").status == 410
    assert api.get(f"{path}2").status == 404


def test_r2_up_to_date_and_closed_are_said_only_at_the_tail(api: Api) -> None:
    path = api.bucketed(b"one", b"two")
    api.close_stream(path)
    first = api.get(f"{path}?max_bytes=3")
    assert {"stream-up-to-date", "stream-closed"} & set(first.headers) == set()
    last = api.get(f"{path}?offset={first.next_offset}")
    assert (last.headers["stream-up-to-date"], last.headers["stream-closed"]) == ("true", "true")
    at_tail = api.get(f"{path}?offset={last.next_offset}")
    assert (at_tail.status, at_tail.body) == (200, b"")
    assert at_tail.headers["stream-closed"] == "true"


def test_r3_tags_change_with_content_and_closure(api: Api) -> None:
    path = api.bucketed(b"one")
    tags = [api.get(path).headers["etag"]]
    assert api.get(path, headers={"If-None-Match": tags[0]}).status == 304
    assert api.get(path, headers={"If-None-Match": f'"x", W/{tags[0]}'}).status == 304
    head_tag = api.head(path).headers["etag"]
    assert api.head(path, headers={"If-None-Match": head_tag}).status == 304
    api.append(path, b"two")
    tags.append(api.get(path).headers["etag"])
    api.close_stream(path)
    tags.append(api.get(path).headers["etag"])
    assert len(set(tags)) == 3
    assert "etag" not in api.get(f"{path}?offset=now").headers


def test_r4_pages_are_bounded_by_the_client_and_the_server(hasty_api: Api) -> None:
    path = hasty_api.bucketed(*[b"x" * 300] * 5)
    assert len(hasty_api.get(f"{path}?max_bytes=301").body) == 300
    assert len(hasty_api.get(f"{path}?max_bytes=100000").body) == 900


def test_r5_what_may_be_cached_says_so(memory_api: Api) -> None:
    path = memory_api.bucketed(b"one")
    assert "max-age=60" in memory_api.get(path).headers["cache-control"]
    for url in (f"{path}?offset=now", f"{path}/bootstrap"):
        assert memory_api.get(url).headers["cache-control"] == "no-store"
    assert memory_api.head(path).headers["cache-control"] == "no-store"


def test_r6_offsets_sort_and_other_spellings_are_understood(api: Api) -> None:
    path = api.bucketed(b"one", b"two", b"x" * 100)
    seen = [START]
    while (
        "stream-up-to-date"
        not in (page := api.get(f"{path}?offset={seen[-1]}&max_bytes=1")).headers
    ):
        seen.append(page.next_offset)
    assert seen == sorted(seen)
    assert api.get(f"{path}?offset={3:020d}").body == b"two" + b"x" * 100


def test_r7_gone_names_the_earliest_offset(api: Api) -> None:
    path = api.bucketed(b"one", b"two")
    assert api.publish(path, token(1, 3)).status == 204
    gone = api.get(path)
    assert (gone.status, error_code(gone)) == (410, "offset_gone")
    assert gone.headers["stream-earliest-offset"] == token(1, 3)
    assert api.get(f"{path}?offset={gone.headers['stream-earliest-offset']}").body == b"two"


# L: live reads


def test_l1_long_polls_answer_at_once_later_or_with_nothing(api: Api) -> None:
    path = api.bucketed(b"one")
    assert api.get(f"{path}?offset=-1&live=long-poll").body == b"one"
    waiting = api.wait(f"{path}?offset=now&live=long-poll")
    assert api.append(path, b"two").status == 204
    woken = waiting.reply()
    assert (woken.status, woken.body, woken.next_offset) == (200, b"two", token(2, 6))
    timed_out = api.get(f"{path}?offset=now&live=long-poll&timeout_ms=1")
    assert (timed_out.status, timed_out.headers["stream-up-to-date"]) == (204, "true")
    api.close_stream(path)
    closed = api.get(f"{path}?offset=now&live=long-poll")
    assert (closed.status, closed.headers["stream-closed"]) == (204, "true")
    assert api.get(f"{path}?live=long-poll").status == 400


def test_l2_cursors_only_grow(memory_api: Api) -> None:
    path = memory_api.bucketed(b"one")
    first = int(memory_api.get(f"{path}?offset=-1&live=long-poll").headers["stream-cursor"])
    second = memory_api.get(f"{path}?offset=-1&live=long-poll&cursor={first}")
    assert int(second.headers["stream-cursor"]) > first


def test_l3_events_carry_data_and_control_and_end_with_the_stream(api: Api) -> None:
    path = api.bucketed(b"one")
    events = api.events(f"{path}?offset=-1&live=sse")
    assert events.headers["content-type"].startswith("text/event-stream")
    data, control = events.until_up_to_date()
    assert (data.kind, data.data) == ("data", "one")
    fields = control.json()
    assert (fields["streamNextOffset"], fields["upToDate"]) == (token(1, 3), True)
    assert int(fields["streamCursor"]) > 0
    assert api.append(path, b"two", headers=CLOSE).status == 204
    data, control = list(events)
    assert (data.data, control.json()["streamClosed"]) == ("two", True)


def test_l4_bytes_come_as_base64_and_text_as_text(api: Api) -> None:
    path = api.bucketed(bytes(range(256)), content_type=BINARY)
    events = api.events(f"{path}?offset=-1&live=sse")
    assert events.headers["stream-sse-data-encoding"] == "base64"
    assert base64.b64decode(events.until_up_to_date()[0].data) == bytes(range(256))
    for content_type in (TEXT, JSON):
        path = api.bucketed(b"1", content_type=content_type)
        events = api.events(f"{path}?offset=-1&live=sse")
        assert "stream-sse-data-encoding" not in events.headers


def test_l5_an_idle_connection_gets_heartbeats_and_then_ends(hasty_api: Api) -> None:
    path = hasty_api.bucketed(b"one")
    events = hasty_api.events(f"{path}?offset=-1&live=sse")
    kinds = [event.kind for event in events]
    assert kinds[:2] == ["data", "control"]
    assert kinds.count("comment") >= 2


def test_l6_a_reader_goes_on_where_it_was_after_the_server_was_killed(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    with closing(Api(server)) as api:
        path = api.bucketed(b"one")
        events = api.events(f"{path}?offset=-1&live=sse")
        control = events.until_up_to_date()[-1].json()
        server.kill()
    with running_server(tmp_path / "data") as second, closing(Api(second)) as api:
        offset, cursor = control["streamNextOffset"], control["streamCursor"]
        events = api.events(f"{path}?offset={offset}&cursor={cursor}&live=sse")
        events.until_up_to_date()
        assert api.append(path, b"two").status == 204
        assert events.until_up_to_date()[0].data == "two"


# J, H, D: JSON, HEAD, DELETE


def test_j1_json_is_checked_flattened_once_and_read_as_arrays(api: Api) -> None:
    path = api.bucketed(content_type=JSON)
    assert api.get(path).body == b"[]"
    assert api.append(path, b'[1.0, [2], {"a":1,"a":2}]', JSON).status == 204
    assert api.append(path, b' "x" ', JSON).status == 204
    assert api.get(path).body == b'[1.0,[2],{"a":1,"a":2},"x"]'
    for body in (b"[]", b"{", b"NaN", b"[1,]", b"1 2"):
        assert api.append(path, body, JSON).status == 400, body
    assert halves(api.tail(path))[0] == 4
    assert api.get(f"{path}?offset=now").body == b"[]"
    empty = f"{api.bucket()}/a"
    assert api.put(empty, b"[]", content_type=JSON).status == 201
    assert api.get(empty).body == b"[]"


def test_h1_head_says_everything_there_is_to_know(api: Api) -> None:
    path = api.bucketed(b"one", b"two", headers={"Stream-TTL": "3600"})
    head = api.head(path)
    assert (head.status, head.body, head.next_offset) == (200, b"", token(2, 6))
    assert (head.headers["content-type"], head.headers["stream-ttl"]) == (TEXT, "3600")
    assert head.headers["cache-control"] == "no-store"
    assert "stream-snapshot-offset" not in head.headers
    assert api.publish(path, token(1, 3)).status == 204
    api.close_stream(path)
    head = api.head(path)
    assert head.headers["stream-snapshot-offset"] == token(1, 3)
    assert head.headers["stream-earliest-offset"] == token(1, 3)
    assert head.headers["stream-closed"] == "true"
    assert api.head(f"{path}2").status == 404


def test_d1_a_deleted_stream_leaves_nothing_to_its_successor(api: Api) -> None:
    path = api.bucketed(b"one", b"two")
    assert api.publish(path, token(1, 3)).status == 204
    tag = api.get(f"{path}?offset={token(1, 3)}").headers["etag"]
    waiting = api.wait(f"{path}?offset=now&live=long-poll")
    assert api.delete(path).status == 204
    assert waiting.reply().status == 404
    assert api.delete(path).status == 404
    for below in ("", "/snapshot", f"/snapshot/{token(1, 3)}", "/bootstrap"):
        assert api.get(f"{path}{below}").status == 404
    api.stream(b"one", b"two", path=path)
    head = api.head(path)
    assert "stream-snapshot-offset" not in head.headers
    assert api.get(path).body == b"onetwo"
    fresh = api.get(f"{path}?offset={token(1, 3)}", headers={"If-None-Match": tag})
    assert (fresh.status, fresh.body) == (200, b"two")
    assert api.get(f"{path}/snapshot").status == 404


# What every answer carries


def test_every_answer_of_this_surface_has_the_common_headers(memory_api: Api) -> None:
    api = memory_api
    path = api.bucketed(b"one")
    assert api.publish(path, token(1, 3)).status == 204
    page = {"Origin": "http://localhost:5173"}
    answers: list[Reply] = [
        api.get(path.removesuffix("/stream"), headers=page),
        api.get(f"{path.removesuffix('/stream')}/streams", headers=page),
        api.get(path, headers=page),
        api.head(path, headers=page),
        api.get(f"{path}/bootstrap", headers=page),
        api.get(f"{path}/snapshot", headers=page),
        api.get(f"{path}/snapshot/{token(1, 3)}", headers=page),
        api.post(f"{path}/append-batch", b"\0\0\0\1x", content_type=TEXT, headers=page),
        api.get("/Bad", headers=page),
        api.get("/v1/streams", headers=page),
    ]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["access-control-allow-origin"] == page["Origin"]
        exposed = answer.headers["access-control-expose-headers"].lower()
        assert "stream-snapshot-offset" in exposed
        assert "stream-earliest-offset" in exposed


@pytest.mark.parametrize("below", ["", "/snapshot", "/snapshot/x", "/bootstrap", "/append-batch"])
def test_browsers_may_ask_before_every_call(memory_api: Api, below: str) -> None:
    path = memory_api.bucketed()
    allowed = memory_api.call("OPTIONS", f"{path}{below}", headers={"Origin": "http://x"})
    assert allowed.status == 204
    assert "PUT" in allowed.headers["access-control-allow-methods"]
    assert "prefer" in allowed.headers["access-control-allow-headers"].lower()
