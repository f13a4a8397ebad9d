"""What streams there are: a bucket's listing page by page, and the list of all (B3)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.conformance.api import (
    JSON,
    TEXT,
    Api,
    error_code,
    fresh_bucket,
    halves,
    producer,
    token,
)
from tests.conformance.conftest import speak_to
from tests.support.server import MOSTLY_COLD, running_server

NAMES = ["a", "aa", "ab", "b", "b-1", "b-10", "b-2", "c.d", "z", "é", "日", "😀"]


def fill(api: Api, names: list[str]) -> str:
    bucket = api.bucket()
    for name in names:
        api.stream(path=f"{bucket}/{quote(name, safe='')}")
    return bucket


def ids(page: dict[str, list[dict[str, str]]]) -> list[str]:
    return [stream["stream_id"] for stream in page["streams"]]


def walk(api: Api, bucket: str, query: str = "", limit: int = 3) -> list[str]:
    """Every id, the way a client would page through them."""
    found, after = list[str](), ""
    for _ in range(100):
        page = api.get(f"{bucket}/streams?limit={limit}{query}{after}").json()
        assert page["stream_count"] == len(page["streams"]) <= limit
        found += ids(page)
        assert page["has_more"] == (page["next_cursor"] is not None)
        if not page["has_more"]:
            return found
        assert page["next_cursor"] == ids(page)[-1]
        after = f"&after={quote(page['next_cursor'], safe='')}"
    raise AssertionError(f"the listing does not end: {found[-5:]}")


def test_a_listing_has_all_the_documented_fields(api: Api) -> None:
    bucket = api.bucket()
    before_ms = int(time.time() * 1000)
    path = api.stream(path=f"{bucket}/user-1", content_type="Text/Plain; charset=utf-8")
    api.append(path, b"12345678901234567890", "text/plain")
    api.append(path, b"1234567890123456789012", "text/plain")
    page = api.get(f"{bucket}/streams")
    assert page.status == 200
    assert page.headers["content-type"].startswith(JSON)
    listing = page.json()
    assert {k: v for k, v in listing.items() if k != "streams"} == {
        "bucket_id": bucket[1:],
        "prefix": "",
        "stream_count": 1,
        "next_cursor": None,
        "has_more": False,
    }
    (stream,) = listing["streams"]
    times = (stream.pop("created_at_ms"), stream.pop("last_write_at_ms"))
    assert before_ms <= times[0] <= times[1] <= int(time.time() * 1000)
    assert stream == {
        "stream_id": "user-1",
        "status": "Open",
        "content_type": "Text/Plain; charset=utf-8",
        "tail_offset": token(2, 42),
    }


def test_an_empty_bucket_has_an_empty_listing(api: Api) -> None:
    listing = api.get(f"{api.bucket()}/streams").json()
    assert (listing["streams"], listing["stream_count"]) == ([], 0)
    assert (listing["has_more"], listing["next_cursor"]) == (False, None)


def test_streams_come_in_the_order_of_their_bytes(api: Api) -> None:
    bucket = fill(api, NAMES[::-1])
    expected = sorted(NAMES, key=str.encode)
    assert ids(api.get(f"{bucket}/streams").json()) == expected


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 12, 13, 1000])
def test_pages_of_any_size_add_up(api: Api, limit: int) -> None:
    bucket = fill(api, NAMES)
    assert walk(api, bucket, limit=limit) == sorted(NAMES, key=str.encode)


@pytest.mark.parametrize("prefix", ["", "a", "aa", "b", "b-1", "é", "nothing", "z", "😀"])
@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_a_prefix_picks_streams_out(memory_api: Api, prefix: str, limit: int) -> None:
    bucket = fill(memory_api, NAMES)
    expected = sorted((n for n in NAMES if n.startswith(prefix)), key=str.encode)
    assert walk(memory_api, bucket, f"&prefix={quote(prefix)}", limit) == expected
    listing = memory_api.get(f"{bucket}/streams?prefix={quote(prefix)}").json()
    assert listing["prefix"] == prefix


def test_a_prefix_of_half_a_character_is_refused(memory_api: Api) -> None:
    bucket = memory_api.bucket()
    assert memory_api.get(f"{bucket}/streams?prefix=%C3").status == 400
    assert memory_api.get(f"{bucket}/streams?after=%FF").status == 400


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("after=b", ["b-1", "b-10", "b-2", "c"]),
        ("after=b-", ["b-1", "b-10", "b-2", "c"]),
        ("after=c", []),
        ("after=zzz", []),
        ("after=", ["a", "b", "b-1", "b-10", "b-2", "c"]),
        ("prefix=b-&after=b-1", ["b-10", "b-2"]),
        ("prefix=b-&after=a", ["b-1", "b-10", "b-2"]),
        ("prefix=b-&after=c", []),
        ("prefix=b-1&after=b-10", []),
    ],
)
def test_a_cursor_is_exclusive_and_need_not_exist(
    memory_api: Api, query: str, expected: list[str]
) -> None:
    bucket = fill(memory_api, ["a", "b", "b-1", "b-10", "b-2", "c"])
    assert ids(memory_api.get(f"{bucket}/streams?{query}").json()) == expected


def test_percent_signs_in_names_are_listed_and_walked(memory_api: Api) -> None:
    names = ["100%", "100%25", "100%2F", "100&", "%", "%%", "a%b"]
    bucket = fill(memory_api, names)
    shown = sorted(name.replace("%", "%25") for name in names)
    assert walk(memory_api, bucket, limit=1) == shown
    assert walk(memory_api, bucket, "&prefix=100%2525", limit=1) == [
        *("100%25", "100%2525", "100%252F")
    ]
    for name in shown:  # as it is shown, it stands in a URL
        assert memory_api.head(f"{bucket}/{name.replace('&', '%26')}").status == 200


def test_a_walk_goes_on_though_its_cursor_is_deleted_and_others_appear(api: Api) -> None:
    bucket = fill(api, ["a", "c", "e", "g"])
    first = api.get(f"{bucket}/streams?limit=2").json()
    assert ids(first) == ["a", "c"]
    assert api.delete(f"{bucket}/c").status == 204
    for name in ("b", "d"):
        api.stream(path=f"{bucket}/{name}")
    rest = api.get(f"{bucket}/streams?after={first['next_cursor']}").json()
    assert ids(rest) == ["d", "e", "g"]


@pytest.mark.parametrize(
    "limit", ["0", "1001", "abc", "-1", "1.0", "", "+5", "%205", "9" * 30, "1&limit=2"]
)
def test_a_limit_that_is_none_is_refused(memory_api: Api, limit: str) -> None:
    refused = memory_api.get(f"{memory_api.bucket()}/streams?limit={limit}")
    assert (refused.status, error_code(refused)) == (400, "invalid_request")


def test_the_limit_may_be_1_to_1000_and_is_1000_by_default(memory_api: Api) -> None:
    bucket = memory_api.bucket()
    calls = 1003
    for number in range(calls):
        assert memory_api.put(f"{bucket}/{number:04d}", content_type=TEXT).status == 201
    for query in ("", "?limit=1000"):
        page = memory_api.get(f"{bucket}/streams{query}").json()
        assert (page["stream_count"], page["has_more"]) == (1000, True)
        assert page["next_cursor"] == "0999"
    rest = memory_api.get(f"{bucket}/streams?after=0999").json()
    assert (ids(rest), rest["has_more"]) == (["1000", "1001", "1002"], False)
    assert walk(memory_api, bucket, limit=17) == [f"{number:04d}" for number in range(calls)]


def test_a_bad_limit_in_a_missing_bucket_is_refused_somehow(memory_api: Api) -> None:
    assert memory_api.get(f"{fresh_bucket()}/streams?limit=0").status in (400, 404)
    assert memory_api.get("/Bad/streams").status == 400


def test_closed_streams_are_shown_as_closed(api: Api) -> None:
    bucket = fill(api, ["a", "b"])
    api.close_stream(f"{bucket}/a")
    statuses = [stream["status"] for stream in api.get(f"{bucket}/streams").json()["streams"]]
    assert statuses == ["Closed", "Open"]


def test_the_tail_is_an_offset_that_a_snapshot_does_not_change(api: Api) -> None:
    path = api.bucketed(b"12345", b"678")
    listing = f"{path.removesuffix('/stream')}/streams"
    assert api.get(listing).json()["streams"][0]["tail_offset"] == token(2, 8)
    assert api.publish(path, api.tail(path)).status == 204
    assert api.get(listing).json()["streams"][0]["tail_offset"] == token(2, 8)


def test_the_time_of_the_last_write_moves_with_writes_only(api: Api) -> None:
    path = api.bucketed(b"one")
    listing = f"{path.removesuffix('/stream')}/streams"

    def entry() -> dict[str, int]:
        (stream,) = api.get(listing).json()["streams"]
        assert isinstance(stream, dict)
        return stream

    before = entry()
    api.get(path)
    assert entry() == before
    deadline = time.monotonic() + 5
    while entry()["last_write_at_ms"] == before["last_write_at_ms"]:
        assert time.monotonic() < deadline
        api.append(path, b"x", headers=producer(uuid.uuid4().hex, 0, 0))
    assert entry()["created_at_ms"] == before["created_at_ms"]


def test_deleted_and_expired_streams_are_not_listed(api: Api) -> None:
    bucket = fill(api, ["a", "b", "c"])
    api.fork(f"{bucket}/c", path=f"{api.bucket()}/fork")
    api.stream(path=f"{bucket}/brief", headers={"Stream-TTL": "0"})
    for name in ("a", "c"):
        assert api.delete(f"{bucket}/{name}").status == 204
    assert ids(api.get(f"{bucket}/streams").json()) == ["b"]


def test_other_buckets_do_not_show_in_a_listing(api: Api) -> None:
    bucket = api.bucket()
    neighbour = f"{bucket}-"
    assert api.put(neighbour).status == 201
    api.stream(path=f"{bucket}/a")
    api.stream(path=f"{neighbour}/b")
    assert ids(api.get(f"{bucket}/streams").json()) == ["a"]
    assert ids(api.get(f"{neighbour}/streams").json()) == ["b"]
    assert ids(api.get(f"{bucket}/streams?prefix=b").json()) == []


# GET /v1/streams


@pytest.fixture
def quiet_api() -> Iterator[Api]:
    """A server of its own: the list of all streams is everybody's."""
    with running_server() as server:
        yield from speak_to(server)


def test_all_streams_are_described_in_order_of_name(quiet_api: Api) -> None:
    api = quiet_api
    assert api.get("/v1/streams").json() == []
    api.stream(b"one", path="/v1/stream/plain")
    assert api.put("/bucket").status == 201
    api.stream(b"1", b"2", path="/bucket/b%25", content_type=JSON, headers={"Stream-TTL": "3600"})
    api.stream(path="/v1/stream/bucket/a/deep")
    listed = api.get("/v1/streams")
    assert listed.status == 200
    assert listed.headers["content-type"].startswith(JSON)
    descriptors = listed.json()
    assert [d["name"] for d in descriptors] == ["bucket/a/deep", "bucket/b%25", "plain"]
    assert [d["next_offset"] for d in descriptors] == [token(0, 0), token(2, 4), token(1, 3)]
    assert [d["expires_at"] is None for d in descriptors] == [True, False, True]
    for descriptor in descriptors:
        assert descriptor["created_at"].endswith("Z")
        assert set(descriptor) >= {"epoch", "sealed_through", "uploaded_through"}


def test_the_list_of_all_is_paged_by_place(quiet_api: Api) -> None:
    names = [f"s{number:03d}" for number in range(150)]
    for name in names:
        quiet_api.stream(path=f"/v1/stream/{name}")

    def listed(query: str) -> list[str]:
        return [entry["name"] for entry in quiet_api.get(f"/v1/streams{query}").json()]

    assert listed("") == names[:100]
    assert listed("?limit=1000") == names
    assert listed("?limit=40&offset=100") == names[100:140]
    assert listed("?offset=140") == names[140:]
    assert listed("?offset=1000") == []


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "offset=-1", "offset=x"])
def test_a_bad_page_of_all_streams_is_refused(memory_api: Api, query: str) -> None:
    assert memory_api.get(f"/v1/streams?{query}").status == 400


def test_the_list_of_all_is_only_read(memory_api: Api) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert memory_api.call(method, "/v1/streams").status == 405


ODD_NAMES = [  # as they stand in a URL below /v1/stream/
    *("a", "a%2Fb", "a%25", "a%252Fb", "a%253", "a%26", "a/b", "a/b%2Fc", "_default/a/b", "z", "~"),
    *("_default/zz", "_default%2Fx", "_defaulu/x", "_defaulT/x", "_", "Z/1", "0/1", "A", "%C3%A9"),
    *("%C3%A9/1", "%E6%97%A5", "%F0%9F%98%80/%E6%97%A5", "aa/b", "aa%2Fb", "a-/b", "a0/b", "%7F"),
]


def walk_all(api: Api, limit: int) -> list[str]:
    """Every name of the server, page by page behind the last one seen."""
    found, after = list[str](), ""
    for _ in range(200):
        page = [entry["name"] for entry in api.get(f"/v1/streams?limit={limit}{after}").json()]
        found += page
        if len(page) < limit:
            return found
        after = f"&after={quote(page[-1], safe='')}"
    raise AssertionError(f"the listing does not end: {found[-5:]}")


@pytest.mark.parametrize("journal", ["memory", "cold"])
def test_every_listing_is_in_the_order_of_the_names_it_shows(journal: str, tmp_path: Path) -> None:
    data_dir, flags = (tmp_path, MOSTLY_COLD) if journal == "cold" else (None, ())
    with running_server(data_dir, *flags) as server, closing(Api(server)) as api:
        for name in reversed(ODD_NAMES):
            api.stream(b"x", path=f"/v1/stream/{name}")
        names = walk_all(api, 1000)
        assert names == sorted(names, key=str.encode)
        assert len(set(names)) == len(names) == len(ODD_NAMES)
        for limit in (1, 2, 3, 7):
            assert walk_all(api, limit) == names
        by_place = [
            entry["name"]
            for place in range(len(names))
            for entry in api.get(f"/v1/streams?limit=1&offset={place}").json()
        ]
        assert by_place == names
        for name in names:  # what is shown stands in a URL as it is, but for other letters
            assert api.get(f"/v1/stream/{quote(name, safe='/%')}").body == b"x", name
        walk_buckets(api, {name.partition("/")[0] if "/" in name else "_default" for name in names})


def walk_buckets(api: Api, expected: set[str]) -> None:
    whole = api.get("/v1/buckets").json()
    shown = [bucket["bucket_id"] for bucket in whole["buckets"]]
    assert shown == sorted(expected, key=str.encode)
    assert (whole["has_more"], whole["next_cursor"]) == (False, None)
    assert whole["bucket_count"] == len(shown)
    found, after = list[str](), ""
    while True:
        page = api.get(f"/v1/buckets?limit=2{after}").json()
        found += [bucket["bucket_id"] for bucket in page["buckets"]]
        if not page["has_more"]:
            break
        after = f"&after={quote(page['next_cursor'], safe='')}"
    assert found == shown


def test_buckets_are_listed_with_what_they_hold(api: Api) -> None:
    mark = f"/list-{uuid.uuid4().hex[:8]}"
    before_ms = int(time.time() * 1000)
    for name in ("-b", "-a", "-b2"):
        assert api.put(mark + name).status == 201
    api.stream(path=f"{mark}-b/one")
    listed = api.get(f"/v1/buckets?prefix={mark[1:]}")
    assert (listed.status, listed.headers["cache-control"]) == (200, "no-store")
    buckets = listed.json()["buckets"]
    assert [bucket["bucket_id"] for bucket in buckets] == [
        mark[1:] + n for n in ("-a", "-b", "-b2")
    ]
    assert [bucket["streams"] for bucket in buckets] == [0, 1, 0]
    assert all(before_ms <= b["created_at_ms"] <= int(time.time() * 1000) for b in buckets)
    assert api.delete(f"{mark}-a").status == 204
    after = quote(f"{mark[1:]}-b", safe="")
    rest = api.get(f"/v1/buckets?prefix={mark[1:]}&after={after}").json()
    assert [bucket["bucket_id"] for bucket in rest["buckets"]] == [f"{mark[1:]}-b2"]
    assert rest["prefix"] == mark[1:]


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "prefix=%FF", "after=%C3"])
def test_a_bad_page_of_buckets_is_refused(memory_api: Api, query: str) -> None:
    assert memory_api.get(f"/v1/buckets?{query}").status == 400
    for method in ("POST", "PUT", "DELETE"):
        assert memory_api.call(method, "/v1/buckets").status == 405


def test_a_listing_says_how_far_a_stream_lies_in_segments(tmp_path: Path) -> None:
    flags = ("--flush-age", "1h", "--log-level", "warning")
    with running_server(tmp_path, *flags) as server, closing(Api(server)) as api:
        assert api.put("/lake").status == 201
        api.stream(b"one", b"two", b"three", path="/lake/a")
        assert api.fork("/lake/a", token(2, 6), path="/lake/fork", body=b"more")[1].status == 201

        def shown(name: str) -> tuple[str, str, str]:
            [entry] = [e for e in api.get("/v1/streams").json() if e["name"] == name]
            return entry["sealed_through"], entry["uploaded_through"], entry["next_offset"]

        assert shown("lake/a") == ("-1", "-1", token(3, 11))
        flushed = api.post("/__ursula/flush-cold/lake/a?max_bytes=6")
        assert flushed.status == 200
        place = flushed.json()["hot_start_offset"]
        assert shown("lake/a") == (place, place, token(3, 11))
        assert api.get(f"/lake/a?offset={place}").body == b"onetwothree"[halves(place)[1] :]
        while api.post("/__ursula/flush-cold/lake/a").status == 200:
            pass
        assert shown("lake/a") == (token(3, 11),) * 3
        assert shown("lake/fork")[:2] == ("-1", "-1")  # of its own; the rest is its source's
        while api.post("/__ursula/flush-cold/lake/fork").status == 200:
            pass
        assert shown("lake/fork") == (token(3, 10),) * 3
        server.stop()
    with running_server(tmp_path, *flags) as server, closing(Api(server)) as api:
        assert shown("lake/a") == (token(3, 11),) * 3
        assert shown("lake/fork") == (token(3, 10),) * 3


def test_a_walk_ends_though_a_v1_name_has_an_encoded_slash(memory_api: Api) -> None:
    bucket = fill(memory_api, ["zz"])
    memory_api.stream(path=f"/v1/stream{bucket}/a%2Fb")
    assert walk(memory_api, bucket, limit=1)[-1] == "zz"
