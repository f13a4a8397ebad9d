from __future__ import annotations

import pytest

from millstream.api.arguments import (
    ForkRequest,
    Lifetime,
    ProducerClaim,
    Query,
    fork_request,
    is_now,
    lifetime,
    matches_etag,
    producer_claim,
    says_true,
    stream_seq,
)
from millstream.errors import InvalidOffset, InvalidRequest
from millstream.protocol.offsets import Offset

OFFSET = b"0000000000000001_0000000000000003"

# Stream-Closed


@pytest.mark.parametrize("value", [b"true", b"TRUE", b" True "])
def test_true_in_any_case_is_true(value: bytes) -> None:
    assert says_true({b"stream-closed": value}, b"stream-closed")


@pytest.mark.parametrize("value", [b"", b"1", b"yes", b"false", b"true,true", b"tru"])
def test_anything_else_is_as_good_as_absent(value: bytes) -> None:
    assert not says_true({b"stream-closed": value}, b"stream-closed")
    assert not says_true({}, b"stream-closed")


# Producer claims


def claim_headers(
    producer_id: bytes = b"p", epoch: bytes = b"0", seq: bytes = b"0"
) -> dict[bytes, bytes]:
    return {b"producer-id": producer_id, b"producer-epoch": epoch, b"producer-seq": seq}


def test_no_producer_headers_are_no_claim() -> None:
    assert producer_claim({b"content-type": b"text/plain"}) is None


def test_three_headers_are_a_claim() -> None:
    assert producer_claim(claim_headers(b"p-1", b"3", b"14")) == ProducerClaim(b"p-1", 3, 14)


@pytest.mark.parametrize("missing", [b"producer-id", b"producer-epoch", b"producer-seq"])
def test_a_claim_with_a_header_missing_is_refused(missing: bytes) -> None:
    headers = claim_headers()
    del headers[missing]
    with pytest.raises(InvalidRequest, match="together"):
        producer_claim(headers)
    with pytest.raises(InvalidRequest, match="together"):
        producer_claim({missing: b"0"})


def test_numbers_go_as_far_as_javascript_counts() -> None:
    claim = producer_claim(claim_headers(epoch=b"9007199254740991", seq=b"9007199254740991"))
    assert claim == ProducerClaim(b"p", 2**53 - 1, 2**53 - 1)


@pytest.mark.parametrize(
    "number",
    [
        b"",
        b" ",
        b"-1",
        b"+1",
        b"1.0",
        b"1e3",
        b"0x1",
        b"1 ",
        b"1\n",
        b"one",
        b"1_0",
        b"9007199254740992",
        b"9" * 17,
        b"9" * 5000,
        "٣".encode(),
    ],
)
def test_an_epoch_or_seq_that_is_no_such_number_is_refused_by_name(number: bytes) -> None:
    with pytest.raises(InvalidRequest, match="Producer-Epoch"):
        producer_claim(claim_headers(epoch=number))
    with pytest.raises(InvalidRequest, match="Producer-Seq"):
        producer_claim(claim_headers(seq=number))


@pytest.mark.parametrize("producer_id", [b"", b" ", b"\t"])
def test_an_empty_producer_id_is_refused(producer_id: bytes) -> None:
    with pytest.raises(InvalidRequest, match="Producer-Id"):
        producer_claim(claim_headers(producer_id))


def test_a_producer_id_is_bounded() -> None:
    assert producer_claim(claim_headers(b"p" * 1024)) is not None
    with pytest.raises(InvalidRequest, match="Producer-Id"):
        producer_claim(claim_headers(b"p" * 1025))


def test_a_stream_seq_is_opaque_and_bounded() -> None:
    assert stream_seq({}) is None
    assert stream_seq({b"stream-seq": b" any-thing "}) == b" any-thing "
    assert stream_seq({b"stream-seq": b"9" * 4096}) == b"9" * 4096
    with pytest.raises(InvalidRequest, match="Stream-Seq"):
        stream_seq({b"stream-seq": b"9" * 4097})


# Lifetimes


def test_a_lifetime_is_a_ttl_or_a_time_or_none() -> None:
    assert lifetime({}) == Lifetime(None, None)
    assert lifetime({b"stream-ttl": b"60"}) == Lifetime(60_000, None)
    assert lifetime({b"stream-expires-at": b"1970-01-01T00:00:01Z"}) == Lifetime(None, 1000)


def test_a_lifetime_of_zero_is_given() -> None:
    assert lifetime({b"stream-ttl": b"0"}).is_given
    assert lifetime({b"stream-expires-at": b"1970-01-01T00:00:00Z"}).is_given
    assert not lifetime({}).is_given


def test_a_ttl_and_a_time_together_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="not both"):
        lifetime({b"stream-ttl": b"60", b"stream-expires-at": b"2030-01-01T00:00:00Z"})


def test_a_malformed_lifetime_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        lifetime({b"stream-ttl": b"-1"})
    with pytest.raises(InvalidRequest):
        lifetime({b"stream-expires-at": b"tomorrow"})


# Forks


def test_no_fork_headers_are_no_fork() -> None:
    assert fork_request({}) is None


def test_a_fork_names_its_source_and_maybe_a_place() -> None:
    headers = {b"stream-forked-from": b"/v1/stream/a"}
    assert fork_request(headers) == ForkRequest(b"/v1/stream/a", None, 0)
    headers |= {b"stream-fork-offset": OFFSET, b"stream-fork-sub-offset": b"12"}
    assert fork_request(headers) == ForkRequest(b"/v1/stream/a", Offset(1, 3), 12)


@pytest.mark.parametrize(
    "headers", [{b"stream-fork-offset": OFFSET}, {b"stream-fork-sub-offset": b"1"}]
)
def test_a_place_without_a_source_is_refused(headers: dict[bytes, bytes]) -> None:
    with pytest.raises(InvalidRequest, match="Stream-Forked-From"):
        fork_request(headers)


@pytest.mark.parametrize("sub_offset", [b"", b"-1", b"+1", b"01", b"1.5", b"1\n", b"x", b"9" * 17])
def test_a_malformed_sub_offset_is_refused(sub_offset: bytes) -> None:
    headers = {b"stream-forked-from": b"/v1/stream/a", b"stream-fork-sub-offset": sub_offset}
    with pytest.raises(InvalidRequest, match="Sub-Offset"):
        fork_request(headers)


def test_a_malformed_fork_offset_is_refused() -> None:
    with pytest.raises(InvalidOffset):
        fork_request({b"stream-forked-from": b"/v1/stream/a", b"stream-fork-offset": b"x"})


# The query string


def test_a_parameter_is_found_and_others_are_ignored() -> None:
    query = Query(b"a=1&offset=-1&b=2&flag")
    assert query.one(b"a") == b"1"
    assert query.one(b"flag") == b""
    assert query.one(b"missing") is None
    assert query.offset() == b"-1"


def test_names_and_values_are_unescaped() -> None:
    assert Query(b"%6Fffset=%2D1").offset() == b"-1"
    assert Query(b"a=b+c%2Bd%26").one(b"a") == b"b c+d&"
    assert Query(b"a=b=c").one(b"a") == b"b=c"


def test_an_empty_query_has_nothing() -> None:
    for raw in (b"", b"&", b"&&"):
        assert Query(raw).offset() is None
        assert Query(raw).live() is None


def test_a_repeated_parameter_is_refused_only_where_it_is_asked_for() -> None:
    query = Query(b"a=1&a=1&offset=-1")
    assert query.offset() == b"-1"
    with pytest.raises(InvalidRequest, match="a only once"):
        query.one(b"a")


@pytest.mark.parametrize("raw", [b"offset=", b"offset", b"offset=-1&offset=-1", b"offset=&offset="])
def test_an_empty_or_repeated_offset_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidOffset):
        Query(raw).offset()


@pytest.mark.parametrize(
    ("raw", "live"),
    [
        (b"", None),
        (b"live=sse", b"sse"),
        (b"live=long-poll", b"long-poll"),
        (b"live=true", b"long-poll"),
        (b"live=1", b"long-poll"),
        (b"live=", None),
        (b"live=false", None),
        (b"live=0", None),
    ],
)
def test_live_is_sse_or_long_poll(raw: bytes, live: bytes | None) -> None:
    assert Query(raw).live() == live


@pytest.mark.parametrize("raw", [b"live=no", b"live=SSE", b"live=2", b"live=sse&live=sse"])
def test_another_live_mode_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        Query(raw).live()


def test_max_bytes_only_lowers_the_page() -> None:
    assert Query(b"").max_bytes(100) is None
    assert Query(b"max_bytes=7").max_bytes(100) == 7
    assert Query(b"max_bytes=101").max_bytes(100) == 100


@pytest.mark.parametrize("value", [b"", b"0", b"-1", b"01", b"1.5", b"1k", b"9" * 17])
def test_a_malformed_max_bytes_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequest, match="max_bytes"):
        Query(b"max_bytes=" + value).max_bytes(100)


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [
        (b"", 20.0),
        (b"timeout=5", 5.0),
        (b"timeout=5s", 5.0),
        (b"timeout=500ms", 0.5),
        (b"timeout=0", 0.0),
        (b"timeout=1h", 60.0),
        (b"timeout_ms=1500", 1.5),
        (b"timeout_ms=9999999", 60.0),
    ],
)
def test_a_timeout_is_a_duration_of_at_most_a_minute(raw: bytes, seconds: float) -> None:
    assert Query(raw).timeout_seconds(20.0) == seconds


@pytest.mark.parametrize(
    "raw",
    [
        b"timeout=",
        b"timeout=-1",
        b"timeout=soon",
        b"timeout=1&timeout=1",
        b"timeout_ms=",
        b"timeout_ms=1.5",
        b"timeout_ms=5s",
    ],
)
def test_a_malformed_timeout_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest, match="timeout"):
        Query(raw).timeout_seconds(20.0)


def test_only_the_word_now_is_now() -> None:
    assert is_now(b"now")
    assert not is_now(b"NOW")
    assert not is_now(None)


# If-None-Match


@pytest.mark.parametrize(
    "wanted", [b'"a:1"', b'W/"a:1"', b'"x", "a:1"', b'"x",W/"a:1" ,"y"', b"*", b" * "]
)
def test_a_tag_matches_alone_weak_in_a_list_or_by_a_star(wanted: bytes) -> None:
    assert matches_etag({b"if-none-match": wanted}, b'"a:1"')


@pytest.mark.parametrize("wanted", [b"", b'"a:2"', b"a:1", b'"a:1', b'"A:1"', b'"x", "y"', b"**"])
def test_another_tag_does_not_match(wanted: bytes) -> None:
    assert not matches_etag({b"if-none-match": wanted}, b'"a:1"')
    assert not matches_etag({}, b'"a:1"')
