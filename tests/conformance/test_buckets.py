"""Buckets: made and removed explicitly, found by strict names, and one namespace with /v1."""

from __future__ import annotations

import uuid
from contextlib import closing

import pytest

from tests.conformance.api import (
    JSON,
    TEXT,
    Api,
    Call,
    error_code,
    fresh_bucket,
    producer,
    token,
)
from tests.conformance.raw import RawConnection


def fresh_name(size: int) -> str:
    return uuid.uuid4().hex[: min(size, 32)].ljust(size, "x")


# B1, B2, B4: create, describe, delete


def test_a_bucket_is_created_described_and_deleted(api: Api) -> None:
    bucket = fresh_bucket()
    created = api.put(bucket)
    assert (created.status, created.body) == (201, b"")
    described = api.get(bucket)
    assert described.status == 200
    assert described.headers["content-type"].startswith(JSON)
    assert described.headers["cache-control"] == "no-store"
    fields = described.json()
    assert (fields["bucket_id"], fields["streams"]) == (bucket[1:], 0)
    assert isinstance(fields["streams"], int)
    deleted = api.delete(bucket)
    assert (deleted.status, deleted.body) == (204, b"")
    assert api.get(bucket).status == 404


def test_a_bucket_that_exists_is_a_conflict_and_stays_as_it_is(api: Api) -> None:
    bucket = api.bucket()
    api.stream(b"one", path=f"{bucket}/a")
    refused = api.put(bucket)
    assert (refused.status, error_code(refused)) == (409, "bucket_exists")
    assert api.get(bucket).json()["streams"] == 1


def test_of_many_creations_at_once_exactly_one_is_told_it_was_first(api: Api) -> None:
    bucket = fresh_bucket()
    replies = api.together([Call("PUT", bucket) for _ in range(8)])
    assert sorted(reply.status for reply in replies) == [201] + [409] * 7


def test_the_count_of_streams_follows_creations_deletions_and_forks(api: Api) -> None:
    bucket = api.bucket()

    def count() -> int:
        streams = api.get(bucket).json()["streams"]
        assert isinstance(streams, int)
        return streams

    source = api.stream(b"one", path=f"{bucket}/source")
    assert api.put(source, content_type=TEXT).status == 200
    assert count() == 1
    fork, _ = api.fork(source, path=f"{bucket}/fork")
    assert count() == 2
    assert api.delete(source).status == 204
    assert count() == 1
    assert api.delete(fork).status == 204
    assert count() == 0


def test_a_missing_bucket_is_neither_described_listed_nor_deleted(api: Api) -> None:
    bucket = fresh_bucket()
    for reply in (api.get(bucket), api.get(f"{bucket}/streams"), api.delete(bucket)):
        assert (reply.status, error_code(reply)) == (404, "bucket_not_found")
    assert api.head(bucket).status == 404


def test_a_bucket_with_streams_is_not_deleted(api: Api) -> None:
    bucket = api.bucket()
    path = api.stream(b"one", path=f"{bucket}/a")
    refused = api.delete(bucket)
    assert (refused.status, error_code(refused)) == (409, "bucket_not_empty")
    assert api.get(path).body == b"one"
    assert api.delete(path).status == 204
    assert api.delete(bucket).status == 204
    assert api.delete(bucket).status == 404
    assert api.put(path, content_type=TEXT).status == 404
    assert api.put(bucket).status == 201
    assert api.head(path).status == 404


def test_a_stream_kept_only_for_its_forks_does_not_keep_its_bucket(api: Api) -> None:
    bucket, other = api.bucket(), api.bucket()
    source = api.stream(b"one", path=f"{bucket}/source")
    fork, created = api.fork(source, path=f"{other}/fork")
    assert created.status == 201
    assert api.delete(source).status == 204
    assert api.delete(bucket).status == 204
    assert api.get(fork).body == b"one"
    assert api.put(bucket).status == 201
    assert api.put(source, content_type=TEXT).status == 409
    assert api.delete(fork).status == 204
    assert api.put(source, content_type=TEXT).status == 201


def test_an_expired_stream_does_not_keep_its_bucket(api: Api) -> None:
    bucket = api.bucket()
    api.stream(path=f"{bucket}/brief", headers={"Stream-TTL": "0"})
    for _ in range(200):
        deleted = api.delete(bucket).status
        if deleted == 204:
            break
    assert deleted == 204


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_other_methods_on_a_bucket_are_named_as_not_allowed(memory_api: Api, method: str) -> None:
    refused = memory_api.call(method, memory_api.bucket(), b"x")
    assert refused.status == 405
    assert set(refused.headers["allow"].replace(" ", "").split(",")) >= {"GET", "PUT", "DELETE"}


# B5: no bucket, no stream


def test_without_its_bucket_a_stream_cannot_be_created(api: Api) -> None:
    bucket = fresh_bucket()
    refused = api.put(f"{bucket}/a", b"x", content_type=TEXT)
    assert (refused.status, error_code(refused)) == (404, "bucket_not_found")
    assert api.get(bucket).status == 404
    source = api.bucketed(b"one")
    assert api.fork(source, path=f"{bucket}/fork")[1].status == 404
    assert api.get(bucket).status == 404


def test_without_its_bucket_no_verb_finds_a_stream(api: Api) -> None:
    bucket = fresh_bucket()
    path = f"{bucket}/a"
    offset = token(1, 1)
    calls = [
        Call("GET", path),
        Call("GET", f"{path}?offset=-1"),
        Call("GET", f"{path}?offset=now&live=long-poll"),
        Call("GET", f"{path}?offset=now&live=sse"),
        Call("HEAD", path),
        Call("POST", path, b"x", {"Content-Type": TEXT}),
        Call("POST", path, b"x", {"Content-Type": TEXT, **producer("p", 0, 0)}),
        Call("POST", path, None, {"Stream-Closed": "true"}),
        Call("DELETE", path),
        Call("PUT", path, b"x", {"Content-Type": TEXT}),
        Call("GET", f"{path}/bootstrap"),
        Call("GET", f"{path}/snapshot"),
        Call("GET", f"{path}/snapshot/{offset}"),
        Call("PUT", f"{path}/snapshot/{offset}", b"x"),
        Call("DELETE", f"{path}/snapshot/{offset}"),
    ]
    for call in calls:
        assert api.call(call.method, call.path, call.body, call.headers).status == 404, call
    assert api.get(bucket).status == 404


def test_a_malformed_name_is_reported_before_a_missing_bucket(memory_api: Api) -> None:
    assert memory_api.put(f"{fresh_bucket()}/a..b", content_type=TEXT).status == 400


# B6: names


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("", id="nothing after the slash"),
        pytest.param("a", id="1"),
        pytest.param("abc", id="3"),
        pytest.param("a" * 65, id="65"),
        pytest.param("a" * 1000, id="1000"),
        pytest.param("Upper", id="upper case"),
        pytest.param("with.dot", id="a dot"),
        pytest.param("with%20space", id="a space"),
        pytest.param("caf%C3%A9", id="an accent"),
        pytest.param("abcd%0A", id="a newline at the end"),
        pytest.param("abcd%00", id="NUL"),
        pytest.param("%FF%FF%FF%FF", id="not UTF-8"),
        pytest.param("ab%2Fcd", id="an encoded slash"),
        pytest.param("abcd~", id="a tilde"),
        pytest.param("....", id="dots"),
        pytest.param("ab%zz", id="a broken escape"),
        pytest.param("abcd%", id="half an escape"),
    ],
)
def test_a_bucket_with_another_name_is_refused_by_every_verb(memory_api: Api, name: str) -> None:
    if name:
        for method in ("PUT", "GET", "DELETE"):
            assert memory_api.call(method, f"/{name}").status == 400, method
        assert memory_api.get(f"/{name}/streams").status == 400
    for method in ("PUT", "GET", "HEAD", "DELETE"):
        refused = memory_api.call(method, f"/{name}/stream")
        assert refused.status == (400 if name else 404), method


@pytest.mark.parametrize("size", [4, 5, 63, 64])
def test_a_bucket_name_has_4_to_64_characters(api: Api, size: int) -> None:
    for attempt in range(3):  # four characters may be taken already
        bucket = f"/{fresh_name(size)}"
        status = api.put(bucket).status
        if status == 201 or attempt == 2:
            break
    assert status == 201
    assert api.get(bucket).json()["bucket_id"] == bucket[1:]
    assert api.stream(b"x", path=f"{bucket}/a") == f"{bucket}/a"


def test_all_allowed_characters_make_a_bucket_name(memory_api: Api) -> None:
    bucket = f"/abcdefghijklmnopqrstuvwxyz0123456789_-{uuid.uuid4().hex[:20]}"
    assert memory_api.put(bucket).status == 201
    escaped = bucket.replace("abc", "%61b%63")
    assert memory_api.get(escaped).json()["bucket_id"] == bucket[1:]


@pytest.mark.parametrize("name", ["healthz", "readyz", "metrics", "console", "__ursula", "__ds"])
def test_names_the_server_needs_itself_are_reserved(memory_api: Api, name: str) -> None:
    refused = memory_api.put(f"/{name}")
    assert (refused.status, error_code(refused)) == (400, "invalid_request")
    assert memory_api.put(f"/{name}/stream", b"x", content_type=TEXT).status in (400, 404)
    escaped = f"/%{ord(name[0]):x}{name[1:]}"
    assert memory_api.put(escaped).status == 400
    assert memory_api.put(f"{escaped}/stream", b"x", content_type=TEXT).status in (400, 404)


def test_the_versioned_prefix_is_no_bucket(memory_api: Api) -> None:
    for path in ("/v1", "/v1/", "/v1/other", "/v1/other/stream"):
        assert memory_api.put(path, b"x", content_type=TEXT).status in (400, 404, 405)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a%2Fb", id="an encoded slash"),
        pytest.param("a%2fb", id="an encoded slash in lower case"),
        pytest.param("%2F", id="only a slash"),
        pytest.param("..", id="dot dot"),
        pytest.param("a..b", id="dot dot inside"),
        pytest.param("%2e%2E", id="encoded dot dot"),
        pytest.param(".%2e", id="half encoded dot dot"),
        pytest.param("a%00b", id="NUL"),
        pytest.param("%FF", id="not UTF-8"),
        pytest.param("%C3", id="half a character"),
        pytest.param("%ED%A0%80", id="a surrogate"),
        pytest.param("a%zz", id="a broken escape"),
        pytest.param("a%2", id="half an escape"),
        pytest.param("", id="empty"),
        pytest.param("%73treams", id="the reserved name, encoded"),
    ],
)
def test_a_stream_with_another_name_is_refused_by_every_verb(memory_api: Api, name: str) -> None:
    bucket = memory_api.bucket()
    path = f"{bucket}/{name}"
    for method in ("PUT", "GET", "HEAD", "DELETE"):
        assert memory_api.call(method, path).status == 400, method
    assert memory_api.append(path, b"x").status == 400
    if name:
        assert memory_api.get(f"{path}/bootstrap").status == 400
        assert memory_api.publish(path, token(0, 0)).status == 400
        assert memory_api.post(f"{path}/append-batch", b"\0\0\0\1x").status == 400
    assert memory_api.get(bucket).json()["streams"] == 0


def test_raw_bytes_that_are_not_utf8_are_refused(memory_api: Api) -> None:
    bucket = memory_api.bucket()
    with closing(RawConnection(memory_api.port)) as connection:
        connection.send(
            b"PUT %b/\xff\xfe HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
            % bucket.encode()
        )
        assert connection.answer().status == 400


def test_streams_is_the_listing_and_never_a_stream(api: Api) -> None:
    bucket = api.bucket()
    for refused in (
        api.put(f"{bucket}/streams", b"x", content_type=TEXT),
        api.append(f"{bucket}/streams", b"x"),
        api.delete(f"{bucket}/streams"),
    ):
        assert refused.status == 400
    assert api.get(f"{bucket}/streams").json()["streams"] == []
    assert api.put(f"{bucket}/streams2", content_type=TEXT).status == 201


@pytest.mark.parametrize("bucket_size", [4, 40, 64])
def test_bucket_and_stream_together_have_at_most_122_bytes(
    memory_api: Api, bucket_size: int
) -> None:
    for attempt in range(3):
        bucket = f"/{fresh_name(bucket_size)}"
        if memory_api.put(bucket).status == 201 or attempt == 2:
            break
    room = 122 - bucket_size - 1
    longest, too_long = f"{bucket}/{'x' * room}", f"{bucket}/{'x' * (room + 1)}"
    assert memory_api.put(longest, b"one", content_type=TEXT).status == 201
    assert memory_api.get(longest).body == b"one"
    for method in ("PUT", "GET", "HEAD", "DELETE"):
        assert memory_api.call(method, too_long).status == 400
    assert memory_api.append(too_long, b"x").status == 400


def test_a_name_is_measured_in_bytes_after_unescaping(memory_api: Api) -> None:
    bucket = memory_api.bucket()
    room = 122 - len(bucket)
    fitting = f"{bucket}/{'%C3%A9' * (room // 2)}{'x' * (room % 2)}"
    assert memory_api.put(fitting, b"one", content_type=TEXT).status == 201
    assert memory_api.get(fitting).body == b"one"
    assert memory_api.put(f"{fitting}%61", content_type=TEXT).status == 400


@pytest.mark.parametrize(
    "name",
    [
        *("with%20space", "a:b@c;d=e,f", "100%25", "%2525", "what%3F", "x.y_z-", ".", "+", "%0A"),
        *("%F0%9F%98%80", "snapshot", "bootstrap", "append-batch", "Streams", "streams%20", "v1"),
    ],
)
def test_unusual_stream_names_are_fine(memory_api: Api, name: str) -> None:
    bucket = memory_api.bucket()
    path = f"{bucket}/{name}"
    created = memory_api.put(path, b"one", content_type=TEXT)
    assert created.status == 201
    assert created.headers["location"].endswith(path)
    assert memory_api.append(path, b"two").status == 204
    assert memory_api.get(f"{path}?offset=-1").body == b"onetwo"
    assert memory_api.get(f"{path}/bootstrap").status == 200
    assert memory_api.publish(path, memory_api.tail(path)).status == 204
    assert memory_api.get(bucket).json()["streams"] == 1
    assert memory_api.delete(path).status == 204


def test_a_percent_sign_never_becomes_another_name(memory_api: Api) -> None:
    bucket = memory_api.bucket()
    names = ["a%25", "a%2525", "a%252F", "a%25252F", "a%2525252F"]
    for name in names:
        memory_api.stream(name, path=f"{bucket}/{name}")
    for name in names:
        assert memory_api.get(f"{bucket}/{name}").body == name.encode()
        assert memory_api.get(f"/v1/stream{bucket}/{name}").body == name.encode()


@pytest.mark.parametrize(
    "below", ["other", "snapshot/x/y", "bootstrap/x", "append-batch/x", "", "streams"]
)
def test_nothing_else_hangs_below_a_stream(memory_api: Api, below: str) -> None:
    path = memory_api.bucketed(b"one")
    assert memory_api.get(f"{path}/{below}").status == 404


@pytest.mark.parametrize(
    ("method", "below", "allowed"),
    [
        ("POST", "bootstrap", "GET"),
        ("PUT", "bootstrap", "GET"),
        ("GET", "append-batch", "POST"),
        ("PUT", "append-batch", "POST"),
        ("PUT", "snapshot", "GET"),
        ("POST", "snapshot", "GET"),
        ("DELETE", "snapshot", "GET"),
        ("POST", f"snapshot/{token(0, 0)}", "PUT"),
    ],
)
def test_other_methods_below_a_stream_are_named_as_not_allowed(
    memory_api: Api, method: str, below: str, allowed: str
) -> None:
    path = memory_api.bucketed(b"one")
    refused = memory_api.call(method, f"{path}/{below}", b"x")
    assert refused.status == 405
    assert allowed in refused.headers["allow"].replace(" ", "").split(",")


@pytest.mark.parametrize("target", ["*", "example.com:443"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "CONNECT"])
def test_a_target_that_is_no_path_is_no_bucket(memory_api: Api, method: str, target: str) -> None:
    with closing(RawConnection(memory_api.port)) as connection:
        connection.send(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.answer().status in (400, 404, 501)


# One namespace on both surfaces (X2)


def test_a_stream_made_through_v1_brings_its_bucket_into_being(api: Api) -> None:
    bucket = fresh_bucket()
    assert api.put(f"/v1/stream{bucket}/a", b"one", content_type=TEXT).status == 201
    assert api.get(bucket).json()["streams"] == 1
    assert api.get(f"{bucket}/a").body == b"one"
    assert api.put(bucket).status == 409
    assert api.put(f"{bucket}/b", content_type=TEXT).status == 201
    assert api.delete(f"/v1/stream{bucket}/a").status == 204
    assert api.get(bucket).json()["streams"] == 1


def test_a_stream_is_the_same_on_both_surfaces(api: Api) -> None:
    strict = api.bucketed(b"one")
    lenient = f"/v1/stream{strict}"
    assert api.get(lenient).body == b"one"
    assert api.append(lenient, b"two").status == 204
    assert api.append(strict, b"three").next_offset == api.tail(lenient)
    assert api.get(strict).headers["etag"] == api.get(lenient).headers["etag"]
    assert api.put(lenient, content_type=TEXT).status == 200
    assert api.put(strict, content_type=JSON).status == 409
    assert api.publish(strict, token(1, 3)).status == 204
    assert api.get(lenient).status == 410
    assert api.head(lenient).headers["stream-snapshot-offset"] == token(1, 3)
    assert api.delete(lenient).status == 204
    assert api.get(strict).status == 404


def test_a_reader_on_one_surface_hears_of_writes_on_the_other(api: Api) -> None:
    path = api.bucketed()
    waiting = api.wait(f"{path}?offset=-1&live=long-poll")
    events = api.events(f"/v1/stream{path}?offset=-1&live=sse")
    events.until_up_to_date()
    assert api.append(f"/v1/stream{path}", b"one").status == 204
    assert waiting.reply().body == b"one"
    assert events.until_up_to_date()[0].data == "one"


def test_the_default_bucket_is_an_ordinary_one(api: Api) -> None:
    path = api.stream(b"one")
    name = path.removeprefix("/v1/stream/")
    assert api.get(f"/_default/{name}").body == b"one"
    assert api.get("/_default").json()["streams"] >= 1
    assert api.append(f"/_default/{name}", b"two").status == 204
    assert api.get(path).body == b"onetwo"


@pytest.mark.parametrize("from_v1", [True, False])
@pytest.mark.parametrize("into_v1", [True, False])
def test_forks_cross_surfaces(api: Api, from_v1: bool, into_v1: bool) -> None:
    strict = api.bucketed(b"one", b"two")
    source = f"/v1/stream{strict}" if from_v1 else strict
    fork = f"{api.bucket()}/fork"
    if into_v1:
        fork = f"/v1/stream{fork}"
    _, created = api.fork(source, offset=token(1, 3), path=fork)
    assert created.status == 201
    assert api.append(fork, b"own").status == 204
    assert api.get(fork).body == b"oneown"
    other = fork.removeprefix("/v1/stream") if into_v1 else f"/v1/stream{fork}"
    assert api.get(other).body == b"oneown"
    assert api.fork(strict, offset=token(1, 3), path=fork)[1].status == 200
    assert api.delete(strict).status == 204
    assert api.get(strict).status == 410
    assert api.get(f"/v1/stream{strict}").status == 410


def test_names_only_v1_allows_are_reachable_only_there(api: Api) -> None:
    bucket = api.bucket()
    deep = api.stream(b"deep", path=f"/v1/stream{bucket}/a/b")
    reserved = api.stream(b"reserved", path=f"/v1/stream{bucket}/streams")
    assert api.get(f"{bucket}/a/b").status == 404
    assert api.get(f"{bucket}/a%2Fb").status == 400
    assert api.get(f"{bucket}/streams").json()["bucket_id"] == bucket[1:]
    assert (api.get(deep).body, api.get(reserved).body) == (b"deep", b"reserved")
    assert api.get(bucket).json()["streams"] == 2
    assert api.delete(bucket).status == 409
