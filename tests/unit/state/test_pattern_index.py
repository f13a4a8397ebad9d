from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.protocol.patterns import parse_pattern
from millstream.state.buckets import Namespace
from millstream.state.pattern_index import PatternIndex, matching_keys
from tests.unit.effort import brief


def matches(pattern: bytes, path: bytes) -> bool:
    index = PatternIndex()
    index.add(parse_pattern(pattern), "s")
    return index.match(path) == {"s"}


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        (b"events/*", b"events/a", True),
        (b"events/*", b"events/a/b", False),
        (b"events/*", b"events", False),
        (b"events/*", b"other/a", False),
        (b"*", b"_default/a", True),
        (b"*", b"a/b", False),
        (b"*/*", b"a/b", True),
        (b"a/b", b"a/b", True),
        (b"a", b"_default/a", True),
        (b"**", b"_default/a", True),
        (b"**", b"a/b/c/d", True),
        (b"events/**", b"_default/events", True),
        (b"events/**", b"events/a/b/c", True),
        (b"**/c", b"a/b/c", True),
        (b"**/c", b"_default/c", True),
        (b"**/c", b"a/c/d", False),
        (b"a/**/c", b"a/c", True),
        (b"a/**/c", b"a/x/y/c", True),
        (b"a/**/**/c", b"a/c", True),
        (b"a/*/**", b"_default/a", False),
        (b"a/*/**", b"a/b", True),
        (b"**/b/**", b"a/b/b/c", True),
        (b"ev*", b"_default/events", False),  # a star inside a segment is only a star
        (b"ev*", b"_default/ev*", True),
        (b"%2A", b"_default/*", True),
        (b"%2A", b"_default/a", False),
        (b"%2A%2A", b"_default/**", True),
        (b"_default/a/b", b"_default/a/b", True),
        (b"_default/*", b"_default/a", True),
        (b"_default/**", b"_default/a", True),
        (b"_default/**", b"_default/a/b", True),
        (b"_default/a", b"_default/a", True),
        (b"_default/*", b"a/b", False),
        (b"*/*", b"_default/a", False),
    ],
)
def test_globs(pattern: bytes, path: bytes, expected: bool) -> None:
    assert matches(pattern, path) is expected


segments = st.sampled_from([b"a", b"b"])
patterns = st.lists(st.sampled_from([b"a", b"b", b"*", b"**"]), min_size=1, max_size=6)


def as_regex(pattern: list[bytes]) -> re.Pattern[bytes]:
    """Over `/a/b/c`, where every segment brings its own slash."""
    parts = {b"*": rb"/[^/]+", b"**": rb"(/[^/]+)*"}
    return re.compile(b"".join(parts.get(segment, b"/" + segment) for segment in pattern))


@given(patterns, st.lists(segments, min_size=2, max_size=7))
@brief
def test_globs_match_what_the_same_regular_expression_matches(
    pattern: list[bytes], path: list[bytes]
) -> None:
    expected = as_regex(pattern).fullmatch(b"/" + b"/".join(path)) is not None
    assert matches(b"/".join(pattern), b"/".join(path)) is expected


@given(
    st.lists(patterns, max_size=8), st.sets(st.lists(segments, min_size=2, max_size=5).map(tuple))
)
@brief
def test_the_index_finds_each_pattern_and_each_pattern_finds_the_same_streams(
    several: list[list[bytes]], paths: set[tuple[bytes, ...]]
) -> None:
    index, names = PatternIndex(), Namespace()
    parsed = [parse_pattern(b"/".join(pattern)) for pattern in several]
    for number, pattern in enumerate(parsed):
        index.add(pattern, str(number))
    keys = {b"/".join(path) for path in paths} | {b"_default/a"}
    for key in keys:
        names.add(key, 1, 0)
    for number, pattern in enumerate(parsed):
        found = list(matching_keys(names, pattern))
        assert len(found) == len(set(found))
        assert set(found) == {key for key in keys if str(number) in index.match(key)}
    for number, pattern in enumerate(parsed):
        index.remove(pattern, str(number))
    assert not index._root.children


def test_no_pattern_makes_matching_run_away() -> None:
    index = PatternIndex()
    index.add(parse_pattern(b"**/a/" * 100 + b"b"), "s")
    assert index.match(b"/".join([b"a"] * 500)) == set()


def test_only_names_that_begin_like_the_pattern_are_looked_at() -> None:
    class Watched(Namespace):
        looked = 0

        def keys_from(self, first: bytes, *, inclusive: bool = True):  # type: ignore[no-untyped-def]
            for key in super().keys_from(first, inclusive=inclusive):
                self.looked += 1
                yield key

    names = Watched()
    for bucket in (b"a", b"b", b"c"):
        for number in range(100):
            names.add(b"%b/%d" % (bucket, number), 1, 0)
    assert list(matching_keys(names, parse_pattern(b"b/7"))) == [b"b/7"]
    assert names.looked < 15
    assert [a < b for a, b in pairwise(matching_keys(names, parse_pattern(b"b/*")))] == [True] * 99
    assert names.looked < 130
