"""Forks: what they inherit, what they keep alive, and that a refused one leaves nothing."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from tests.conformance.api import (
    BINARY,
    JSON,
    START,
    TEXT,
    Api,
    Call,
    fresh_path,
    halves,
    producer,
    token,
)


def test_forks_that_race_appends_keep_their_data_and_their_source(api: Api) -> None:
    # Reference defect 3: the append writes old metadata back and the fork's reference is lost.
    for attempt in range(30):
        source, fork = api.stream(b"base."), fresh_path("fork")
        append = Call("POST", source, b"raced.", {"Content-Type": TEXT})
        forking = Call("PUT", fork, headers={"Stream-Forked-From": source})
        calls = [append, forking, append] if attempt % 2 else [forking, append, append]
        replies = api.together(calls)
        created = replies[calls.index(forking)]
        assert {reply.status for reply in replies} == {201, 204}
        inherited = api.get(fork)
        assert inherited.next_offset == created.next_offset
        assert api.get(source).body.startswith(inherited.body)
        assert api.delete(source).status == 204
        assert api.head(source).status == 410
        assert api.get(fork).body == inherited.body
        assert inherited.body in (b"base.", b"base.raced.", b"base.raced.raced.")
        assert api.delete(fork).status == 204
        wait_until_removed(api, source)


def test_a_fork_lives_in_the_offsets_of_its_source(api: Api) -> None:
    source = api.stream(b"one", b"two", b"three")
    fork, created = api.fork(source, offset=token(2, 6))
    assert (created.status, created.next_offset) == (201, token(2, 6))
    assert api.append(fork, b"own").next_offset == token(3, 9)
    assert api.get(fork).body == b"onetwoown"
    assert api.get(f"{fork}?offset={token(1, 3)}").body == b"twoown"
    assert api.get(source).body == b"onetwothree"


def test_pages_of_a_fork_cross_into_its_own_data(api: Api) -> None:
    source = api.stream(b"[1,2]", b"3", content_type=JSON)
    fork, _ = api.fork(source, body=b"[4]")
    assert api.append(fork, b"[5,6]", JSON).status == 204
    offset, values = START, list[int]()
    while offset != api.tail(fork):
        page = api.get(f"{fork}?offset={offset}&max_bytes=1")
        values += page.json()
        offset = page.next_offset
    assert values == api.get(fork).json() == [1, 2, 3, 4, 5, 6]


def test_repeating_a_fork_with_a_time_to_live_is_the_same_fork(api: Api) -> None:
    source = api.stream(b"one")
    hour = {"Stream-TTL": "3600"}
    fork, created = api.fork(source, headers=hour)
    _, again = api.fork(source, path=fork, headers=hour)
    _, other = api.fork(source, path=fork, headers={"Stream-TTL": "60"})
    assert [created.status, again.status, other.status] == [201, 200, 409]
    assert api.head(fork).headers["stream-ttl"] == "3600"


@pytest.mark.parametrize(
    "lifetime", [{"Stream-TTL": "3600"}, {"Stream-Expires-At": "2040-01-01T00:00:00Z"}]
)
def test_repeating_a_fork_that_inherited_its_end_is_the_same_fork(
    api: Api, lifetime: dict[str, str]
) -> None:
    source = api.stream(b"one", headers=lifetime)
    fork, created = api.fork(source)
    _, again = api.fork(source, path=fork)
    assert [created.status, again.status] == [201, 200]
    head = api.head(fork).headers
    if "Stream-TTL" in lifetime:
        assert head["stream-ttl"] == "3600"
    else:
        assert datetime.fromisoformat(head["stream-expires-at"]) == datetime(2040, 1, 1, tzinfo=UTC)


def test_repeating_a_fork_at_the_tail_stays_the_same_fork_when_the_source_grows(api: Api) -> None:
    source = api.stream(b"one")
    fork, created = api.fork(source)
    assert api.append(source, b"two").status == 204
    _, again = api.fork(source, path=fork)
    assert [created.status, again.status] == [201, 200]
    assert again.next_offset == created.next_offset
    _, other = api.fork(source, offset=api.tail(source), path=fork)
    assert other.status == 409
    assert api.get(fork).body == b"one"


def test_repeating_a_fork_that_has_grown_is_still_the_same_fork(api: Api) -> None:
    source = api.stream(b"one", b"two")
    fork, _ = api.fork(source, offset=token(1, 3), sub_offset=2, body=b"!")
    assert api.append(fork, b"own").status == 204
    _, again = api.fork(source, offset=token(1, 3), sub_offset=2, path=fork)
    assert again.status == 200
    for offset, sub_offset in ((token(1, 3), 1), (token(1, 3), None), (START, 2)):
        _, other = api.fork(source, offset=offset, sub_offset=sub_offset, path=fork)
        assert other.status == 409
    _, elsewhere = api.fork(api.stream(b"one", b"two"), offset=token(1, 3), path=fork)
    assert elsewhere.status == 409


def test_a_json_sub_offset_counts_messages_across_appends(api: Api) -> None:
    source = api.stream(b"[1,2]", b"3", b"[4,5]", content_type=JSON)
    for count in range(6):
        fork, created = api.fork(source, offset=START, sub_offset=count)
        assert created.status == 201
        assert halves(created.next_offset)[0] == count
        assert api.get(fork).json() == [1, 2, 3, 4, 5][:count]
    assert api.fork(source, offset=START, sub_offset=6)[1].status == 400


def test_a_json_sub_offset_counts_from_its_anchor(api: Api) -> None:
    source = api.stream(b"[1,2,3,4]", content_type=JSON)
    anchor = api.get(f"{source}?max_bytes=1").next_offset
    fork, created = api.fork(source, offset=anchor, sub_offset=2)
    assert (created.status, api.get(fork).json()) == (201, [1, 2, 3])


def test_a_byte_sub_offset_cuts_inside_a_message(api: Api) -> None:
    source = api.stream(b"abc", b"defgh", content_type=BINARY)
    for cut in range(6):
        fork, created = api.fork(source, offset=token(1, 3), sub_offset=cut)
        assert created.status == 201
        assert api.get(fork).body == b"abc" + b"defgh"[:cut]
        assert api.append(fork, b"!", BINARY).next_offset == api.tail(fork)
        assert api.get(fork).body == b"abc" + b"defgh"[:cut] + b"!"
        whole = api.get(f"{fork}?offset={created.next_offset}")
        assert whole.body == b"!"
    assert api.fork(source, offset=token(1, 3), sub_offset=6)[1].status == 400
    assert api.get(source).body == b"abcdefgh"


def test_a_fork_offset_must_be_a_position_of_the_source(api: Api) -> None:
    source = api.stream(b"one", b"two")
    for offset in (token(1, 2), token(1, 6), token(3, 7), "9" * 16 + "_" + "9" * 16, "x", ""):
        fork, refused = api.fork(source, offset=offset)
        assert refused.status == 400
        assert api.head(fork).status == 404


def test_fork_details_without_a_source_are_refused(memory_api: Api) -> None:
    for header in ({"Stream-Fork-Offset": START}, {"Stream-Fork-Sub-Offset": "0"}):
        path = fresh_path()
        assert memory_api.put(path, content_type=TEXT, headers=header).status == 400
        assert memory_api.head(path).status == 404


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (400, {"Stream-Fork-Offset": token(5, 5)}, None),
        (400, {"Stream-Fork-Sub-Offset": "1"}, None),
        (400, {"Stream-TTL": "x"}, None),
        (409, {"Content-Type": TEXT}, None),
        (400, {}, b"{broken"),
    ],
)
def test_a_refused_fork_keeps_no_hold_on_its_source(
    api: Api, status: int, headers: dict[str, str], body: bytes | None
) -> None:
    source = api.stream(b"1", content_type=JSON)
    fork, refused = api.fork(source, headers=headers, body=body)
    assert (refused.status, api.head(fork).status) == (status, 404)
    assert api.delete(source).status == 204
    assert api.get(source).status == 404


def test_forking_from_nothing_is_not_found(api: Api) -> None:
    fork, refused = api.fork(fresh_path("nowhere"))
    assert (refused.status, api.head(fork).status) == (404, 404)
    expired = api.stream(headers={"Stream-TTL": "0"})
    assert api.fork(expired)[1].status == 404


def test_a_soft_deleted_stream_is_gone_but_not_forgotten(api: Api) -> None:
    source = api.stream(b"one", b"two")
    fork, _ = api.fork(source, offset=token(1, 3))
    assert api.delete(source).status == 204
    for method in ("GET", "HEAD", "DELETE"):
        assert api.call(method, source).status == 410
    for live in ("long-poll", "sse"):
        assert api.get(f"{source}?offset=-1&live={live}").status == 410
    assert api.append(source, b"x").status == 410
    assert api.post(source, headers={"Stream-Closed": "true"}).status == 410
    assert api.put(source, content_type=TEXT).status == 409
    assert api.fork(source)[1].status == 409
    assert api.get(fork).body == b"one"
    assert api.append(fork, b"own").status == 204
    assert api.get(fork).body == b"oneown"


def test_a_fork_can_be_repeated_after_its_source_was_deleted(api: Api) -> None:
    source = api.stream(b"one")
    fork, _ = api.fork(source, offset=token(1, 3))
    assert api.delete(source).status == 204
    assert api.fork(source, offset=token(1, 3), path=fork)[1].status == 200
    assert api.fork(source, offset=START, path=fork)[1].status == 409


def test_the_last_fork_takes_its_deleted_ancestors_with_it(api: Api) -> None:
    root = api.stream(b"root.")
    middle, _ = api.fork(root, body=b"middle.")
    leaf, _ = api.fork(middle, body=b"leaf.")
    assert api.delete(root).status == 204
    assert api.delete(middle).status == 204
    assert [api.head(path).status for path in (root, middle, leaf)] == [410, 410, 200]
    assert api.get(leaf).body == b"root.middle.leaf."
    assert api.delete(leaf).status == 204
    assert api.head(leaf).status == 404
    for path in (root, middle):
        wait_until_removed(api, path)
        assert api.put(path, b"new", content_type=TEXT).status == 201
        assert api.get(path).body == b"new"


def test_an_expired_fork_lets_go_of_its_deleted_source(api: Api) -> None:
    source = api.stream(b"one")
    fork, _ = api.fork(source, headers={"Stream-TTL": "1"})
    assert api.delete(source).status == 204
    assert api.head(source).status == 410
    wait_until_removed(api, fork)
    wait_until_removed(api, source)


def test_a_fork_outlives_its_expired_source(api: Api) -> None:
    source = api.stream(b"one", headers={"Stream-TTL": "1"})
    fork, _ = api.fork(source, headers={"Stream-TTL": "60"})
    deadline = time.monotonic() + 5
    while api.head(source).status == 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert api.head(source).status in (404, 410)
    assert api.get(fork).body == b"one"


def test_a_fork_of_a_closed_stream_is_open_unless_it_asks(api: Api) -> None:
    source = api.stream(b"one")
    api.close_stream(source)
    opened, created = api.fork(source)
    assert (created.status, "stream-closed" in created.headers) == (201, False)
    assert api.append(opened, b"two").status == 204
    closed, created = api.fork(source, headers={"Stream-Closed": "true"}, body=b"!")
    assert (created.status, created.headers["stream-closed"]) == (201, "true")
    assert (api.get(closed).body, api.append(closed, b"x").status) == (b"one!", 409)


def test_a_fork_starts_with_fresh_writers(api: Api) -> None:
    source = api.stream()
    headers = {**producer("p", 3, 0), "Stream-Seq": "m"}
    assert api.append(source, b"one", headers=headers).status == 200
    fork, _ = api.fork(source)
    older = {**producer("p", 0, 0), "Stream-Seq": "a"}
    assert api.append(fork, b"two", headers=older).status == 200
    assert api.append(source, b"x", headers=older).status == 403


def test_a_fork_of_a_name_with_escapes_finds_its_source(memory_api: Api) -> None:
    source = memory_api.stream(b"one", path=fresh_path("a%20b%2Fc"))
    fork, created = memory_api.fork(source)
    assert (created.status, memory_api.get(fork).body) == (201, b"one")


def test_a_waiting_reader_of_a_fork_hears_only_the_fork(api: Api) -> None:
    source = api.stream(b"one")
    fork, _ = api.fork(source)
    waiting = api.wait(f"{fork}?offset={api.tail(fork)}&live=long-poll&timeout=30s")
    assert api.append(source, b"source").status == 204
    api.settle()
    assert api.append(fork, b"fork").status == 204
    assert waiting.reply().body == b"fork"


def test_fork_headers_never_come_back(memory_api: Api) -> None:
    source = memory_api.stream(b"one")
    fork, created = memory_api.fork(source, offset=token(1, 3), sub_offset=0)
    for reply in (created, memory_api.head(fork), memory_api.get(fork)):
        assert not [name for name in reply.headers if name.startswith("stream-fork")]


def wait_until_removed(api: Api, path: str) -> None:
    """Removal may be asynchronous by the protocol, but not slow."""
    deadline = time.monotonic() + 5
    while api.head(path).status != 404:
        assert time.monotonic() < deadline
        time.sleep(0.02)
