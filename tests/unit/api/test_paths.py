from __future__ import annotations

import pytest

from millstream.api.paths import CACHE_ENTRIES_MAX, V1_STREAM, StreamPaths, stream_key
from millstream.api.routes import SUB_RESOURCES
from millstream.errors import InvalidRequest

ROOT = b"/v1/stream/"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (b"orders", b"_default/orders"),
        (b"shop/orders", b"shop/orders"),
        (b"shop/orders/2024", b"shop/orders/2024"),
        (b"_default/orders", b"_default/orders"),
        (b"a%20b", b"_default/a b"),
        (b"%61", b"_default/a"),
        (b"caf%C3%A9", "_default/café".encode()),
        ("café".encode(), "_default/café".encode()),
        (b"...", b"_default/..."),
        (b".a/b.", b".a/b."),
        (b"a;b=c", b"_default/a;b=c"),
        (b"a%3Fb%23c", b"_default/a?b#c"),
        (b"a+b", b"_default/a+b"),
    ],
)
def test_a_path_names_a_stream_in_a_bucket(name: bytes, key: bytes) -> None:
    assert stream_key(ROOT + name) == key


def test_an_encoded_slash_is_part_of_a_name_and_splits_nothing() -> None:
    assert stream_key(ROOT + b"a%2Fb") == stream_key(ROOT + b"a%2fb") == b"_default/a%2Fb"
    assert stream_key(ROOT + b"a%2Fb") != stream_key(ROOT + b"a/b")


def test_an_encoded_percent_never_becomes_another_name() -> None:
    names = [b"a%2Fb", b"a%252Fb", b"a%25252Fb", b"a/b"]
    assert len({stream_key(ROOT + name) for name in names}) == len(names)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"/", id="only a slash"),
        pytest.param(b"a/", id="a slash at the end"),
        pytest.param(b"/a", id="a slash at the beginning"),
        pytest.param(b"a//b", id="an empty segment"),
        pytest.param(b".", id="dot"),
        pytest.param(b"a/..", id="dot dot"),
        pytest.param(b"../a", id="dot dot first"),
        pytest.param(b"a/./b", id="dot inside"),
        pytest.param(b"a/%2e%2E", id="encoded dot dot"),
        pytest.param(b"..%2f..%2fetc%2fpasswd", id="dot dot before an encoded slash"),
        pytest.param(b"%2e%2e%2fx", id="all of it encoded"),
        pytest.param(b"a%2F/b", id="empty behind an encoded slash"),
        pytest.param(b"__ds%2Fx", id="reserved, with an encoded slash"),
        pytest.param(b"%00", id="NUL"),
        pytest.param(b"a\0b", id="raw NUL"),
        pytest.param(b"%FF", id="not UTF-8"),
        pytest.param(b"\xff", id="raw and not UTF-8"),
        pytest.param(b"%ED%A0%80", id="a surrogate"),
        pytest.param(b"%", id="a lone percent"),
        pytest.param(b"a%2", id="half an escape"),
        pytest.param(b"a%zz", id="not hexadecimal"),
        pytest.param(b"%+1", id="a signed escape"),
        pytest.param(b"a" * 1025, id="too long"),
        pytest.param("é".encode() * 513, id="too long in bytes"),
    ],
)
def test_a_path_that_names_no_stream_is_refused(name: bytes) -> None:
    with pytest.raises(InvalidRequest):
        stream_key(ROOT + name)


def test_the_limit_counts_bytes_after_unescaping() -> None:
    assert stream_key(ROOT + b"%61" * 1024) == b"_default/" + b"a" * 1024


def test_a_remembered_path_gives_the_same_key() -> None:
    paths = StreamPaths()
    for _ in range(2):
        assert paths.any_key(ROOT + b"a%20b") == b"_default/a b"
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            paths.any_key(ROOT + b"a//b")


def test_the_memory_of_paths_is_bounded() -> None:
    paths = StreamPaths()
    for number in range(CACHE_ENTRIES_MAX + 10):
        assert paths.any_key(ROOT + b"%d" % number) == b"_default/%d" % number
    assert len(paths.keys) <= CACHE_ENTRIES_MAX


@pytest.mark.parametrize("below", ["touch/meta", "touch/wait", "touch/templates/activate"])
def test_touches_take_the_end_of_a_path_unless_it_is_spelled_otherwise(below: str) -> None:
    paths, pattern = StreamPaths(SUB_RESOURCES), "{stream}/" + below
    for name, key in ((b"a", b"_default/a"), (b"a/b/c", b"a/b/c")):
        place = paths.resolve(ROOT + name + b"/" + below.encode())
        assert place == (pattern, key, (key,))
    assert paths.resolve(b"/bucket/a/" + below.encode()) == (pattern, b"bucket/a", (b"bucket/a",))
    for spelled in (b"/%74" + below[1:].encode(), b"/" + below.encode() + b"/x"):
        place = paths.resolve(ROOT + b"a" + spelled)
        assert place.pattern == V1_STREAM
    assert paths.resolve(ROOT + b"touch/metal").key == b"touch/metal"
    assert paths.resolve(ROOT + b"touch/meta").key == b"touch/meta", "no stream is above it"
