"""Which names a stream may have, and when two spellings are the same name."""

from __future__ import annotations

import uuid

import pytest

from tests.conformance.api import TEXT, Api, fresh_path


def test_an_encoded_slash_is_part_of_a_name(api: Api) -> None:
    nested = fresh_path("a") + "/b"
    flat = nested.removesuffix("/b") + "%2Fb"
    api.stream(b"nested", path=nested)
    assert api.head(flat).status == 404
    api.stream(b"flat", path=flat)
    assert api.get(nested).body == b"nested"
    assert api.get(flat).body == b"flat"
    assert api.get(flat.replace("%2F", "%2f")).body == b"flat"
    assert api.delete(flat).status == 204
    assert api.get(nested).body == b"nested"


def test_spellings_of_the_same_letters_are_the_same_name(memory_api: Api) -> None:
    name = uuid.uuid4().hex
    path = memory_api.stream(b"one", path=f"/v1/stream/caf%C3%A9~{name}")
    assert memory_api.get(f"/v1/stream/caf%c3%a9%7E{name}").body == b"one"
    assert memory_api.get(f"/v1/stream/%63af%C3%A9~{name}").body == b"one"
    assert memory_api.head(path.replace("caf", "CAF")).status == 404


@pytest.mark.parametrize(
    "name",
    [
        *("with%20space", "a:b@c;d=e,f", "100%25", "what%3F", "x.y_z-", "...", "%F0%9F%98%80", "+"),
        *("%252e%252e%252f", "..a%2F.b", "a%2F...", "a..b"),
    ],
)
def test_unusual_names_are_fine(memory_api: Api, name: str) -> None:
    path = f"/v1/stream/{name}{uuid.uuid4().hex}"
    created = memory_api.put(path, b"one", content_type=TEXT)
    assert created.status == 201
    assert created.headers["location"].endswith(path)
    assert memory_api.get(f"{path}?offset=-1").body == b"one"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/stream/",
        "/v1/stream/a//b",
        "/v1/stream//a",
        "/v1/stream/a/",
        "/v1/stream/.",
        "/v1/stream/a/./b",
        "/v1/stream/a/%2e/b",
        "/v1/stream/..",
        "/v1/stream/a/../b",
        "/v1/stream/a/..",
        "/v1/stream/a/%2e%2E/b",
        "/v1/stream/a/.%2e/b",
        "/v1/stream/..%2f..%2fetc%2fpasswd",
        "/v1/stream/%2e%2e%2fx",
        "/v1/stream/a%2F..",
        "/v1/stream/a/b%2f.%2Fc",
        "/v1/stream/a%2F",
        "/v1/stream/%2Fa",
        "/v1/stream/a%2f%2Fb",
        "/v1/stream/a/%2Fb",
        "/v1/stream/__ds%2Fjwks.json",
        "/v1/stream/a%00b",
        "/v1/stream/%00",
        "/v1/stream/%FF",
        "/v1/stream/%C3",
        "/v1/stream/%ED%A0%80",
        "/v1/stream/%zz",
        "/v1/stream/a%2",
        "/v1/stream/a%",
        "/v1/stream/" + "x" * 1025,
        "/v1/stream/a/" + "x" * 1023,
    ],
)
def test_names_that_are_none_are_refused(memory_api: Api, path: str) -> None:
    for method in ("PUT", "GET", "HEAD", "DELETE"):
        assert memory_api.call(method, path).status == 400
    assert memory_api.append(path, b"x").status == 400
    assert memory_api.fork(path)[1].status in (400, 404)


def test_a_name_may_have_1024_bytes(memory_api: Api) -> None:
    name = uuid.uuid4().hex
    longest = f"/v1/stream/{name}".ljust(len("/v1/stream/") + 1024, "x")
    assert memory_api.put(longest, b"one", content_type=TEXT).status == 201
    assert memory_api.get(longest).body == b"one"
    encoded = f"/v1/stream/{name}" + "%C3%A9" * 400
    assert memory_api.put(encoded, b"two", content_type=TEXT).status == 201
    assert memory_api.get(encoded).body == b"two"


def test_a_name_without_a_bucket_is_in_the_default_one(api: Api) -> None:
    path = api.stream(b"one")
    assert api.get(path.replace("/stream/", "/stream/_default/")).body == b"one"


def test_deep_names_are_fine(memory_api: Api) -> None:
    path = fresh_path() + "/a/b/c/d/e/f"
    memory_api.stream(b"deep", path=path)
    assert memory_api.get(path).body == b"deep"
    assert memory_api.head(path.removesuffix("/f")).status == 404
