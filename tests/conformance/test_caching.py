"""What caches may keep, and how they ask whether it is still true."""

from __future__ import annotations

import re

import pytest

from tests.conformance.api import JSON, TEXT, Api

CATCH_UP = "public, max-age=60, stale-while-revalidate=300"


def conditional(api: Api, path: str, tag: str, method: str = "GET") -> int:
    reply = api.call(method, path, headers={"If-None-Match": tag})
    assert reply.status in (200, 304)
    if reply.status == 304:
        assert reply.body == b""
    return reply.status


def test_an_etag_is_strong_and_names_the_range(memory_api: Api) -> None:
    path = memory_api.stream(b"one", b"two")
    tag = memory_api.get(path).headers["etag"]
    assert re.fullmatch(r'"[^":]+:[^":]+:[^":]+"', tag)
    assert memory_api.get(path).headers["etag"] == tag
    partial = memory_api.get(f"{path}?max_bytes=3")
    rest = memory_api.get(f"{path}?offset={partial.next_offset}")
    assert len({tag, partial.headers["etag"], rest.headers["etag"]}) == 3


def test_an_etag_does_not_outlive_its_stream(api: Api) -> None:
    # Reference defect 9: path and lengths are equal, so other content is answered with 304.
    path = api.stream(b"old")
    tag = api.get(path).headers["etag"]
    assert api.delete(path).status == 204
    api.stream(b"new", path=path)
    read = api.get(path, headers={"If-None-Match": tag})
    assert (read.status, read.body) == (200, b"new")
    assert read.headers["etag"] != tag


def test_closing_changes_the_etag(api: Api) -> None:
    path = api.stream(b"one")
    for offset in ("-1", api.tail(path)):
        open_read = api.get(f"{path}?offset={offset}")
        assert conditional(api, f"{path}?offset={offset}", open_read.headers["etag"]) == 304
    open_tag = api.get(path).headers["etag"]
    tail_tag = api.get(f"{path}?offset={api.tail(path)}").headers["etag"]
    api.close_stream(path)
    for offset, old in (("-1", open_tag), (api.tail(path), tail_tag)):
        read = api.get(f"{path}?offset={offset}", headers={"If-None-Match": old})
        assert (read.status, read.headers["stream-closed"]) == (200, "true")
        assert read.headers["etag"] == old[:-1] + ':c"'


def test_an_append_ends_the_life_of_a_tag(api: Api) -> None:
    path = api.stream(b"one")
    tag = api.get(path).headers["etag"]
    assert conditional(api, path, tag) == 304
    assert api.append(path, b"two").status == 204
    assert conditional(api, path, tag) == 200


def test_a_tag_of_a_full_page_stays_true_while_the_stream_grows(memory_api: Api) -> None:
    path = memory_api.stream(b"one", b"two")
    page = f"{path}?offset=-1&max_bytes=3"
    tag = memory_api.get(page).headers["etag"]
    assert memory_api.append(path, b"three").status == 204
    assert conditional(memory_api, page, tag) == 304


# Reference defect 10: only one exact tag is understood.
@pytest.mark.parametrize(
    "form", ["{tag}", "W/{tag}", '"other", {tag}', '{tag},"other"', 'W/"a:b" ,W/{tag} , "c"', "*"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_if_none_match_is_understood_in_all_its_forms(
    memory_api: Api, method: str, form: str
) -> None:
    path = memory_api.stream(b"one")
    tag = memory_api.call(method, path).headers["etag"]
    assert conditional(memory_api, path, form.format(tag=tag), method) == 304


@pytest.mark.parametrize("form", ['"other"', 'W/"other"', '"a", "b"', "{bare}", '"{bare}x"', ""])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_tags_that_do_not_match_get_the_answer(memory_api: Api, method: str, form: str) -> None:
    path = memory_api.stream(b"one")
    bare = memory_api.call(method, path).headers["etag"].strip('"')
    assert conditional(memory_api, path, form.format(bare=bare), method) == 200


def test_not_modified_still_carries_tag_and_cache_rules(memory_api: Api) -> None:
    path = memory_api.stream(b"one")
    tag = memory_api.get(path).headers["etag"]
    reply = memory_api.get(path, headers={"If-None-Match": tag})
    assert (reply.status, reply.headers["etag"]) == (304, tag)
    assert reply.headers["cache-control"] == CATCH_UP


def test_head_tells_a_changed_stream_from_an_unchanged_one(api: Api) -> None:
    path = api.stream(b"one")
    tag = api.head(path).headers["etag"]
    assert conditional(api, path, tag, "HEAD") == 304
    assert api.append(path, b"two").status == 204
    assert conditional(api, path, tag, "HEAD") == 200
    tag = api.head(path).headers["etag"]
    api.close_stream(path)
    assert conditional(api, path, tag, "HEAD") == 200


def test_a_missing_stream_is_missing_whatever_the_tag(memory_api: Api) -> None:
    path = memory_api.stream()
    memory_api.delete(path)
    for method in ("GET", "HEAD"):
        assert memory_api.call(method, path, headers={"If-None-Match": "*"}).status == 404


@pytest.mark.parametrize("content_type", [TEXT, JSON])
def test_cache_control_depends_on_the_way_of_reading(memory_api: Api, content_type: str) -> None:
    # Reference defect 10: catch-up reads carry no Cache-Control at all.
    path = memory_api.stream(b"1", content_type=content_type)
    tail = memory_api.tail(path)
    cache_control = {
        query: memory_api.get(f"{path}{query}").headers["cache-control"]
        for query in (
            "",
            f"?offset={tail}",
            "?offset=now",
            "?offset=-1&live=long-poll",
            f"?offset={tail}&live=long-poll&timeout_ms=10",
        )
    }
    assert list(cache_control.values()) == [CATCH_UP, CATCH_UP, "no-store", "no-store", "no-store"]
    assert memory_api.head(path).headers["cache-control"] == "no-store"
    events = memory_api.events(f"{path}?offset=-1&live=sse")
    assert events.headers["cache-control"] == "no-cache"


def test_a_read_at_now_has_no_tag(memory_api: Api) -> None:
    path = memory_api.stream(b"one")
    assert "etag" not in memory_api.get(f"{path}?offset=now").headers
