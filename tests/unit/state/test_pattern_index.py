from __future__ import annotations

import itertools
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.layout import StreamId
from millstream.protocol.patterns import Pattern, parse_pattern, weight_of
from millstream.state import pattern_index
from millstream.state.buckets import Namespace
from millstream.state.pattern_index import OrderedKeys, PatternIndex, examined_keys
from millstream.state.pattern_load import PatternLoad
from tests.unit.effort import brief


def matching_keys(names: OrderedKeys, pattern: Pattern) -> list[bytes]:
    return [key for key, is_match in examined_keys(names, pattern) if is_match]


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
        names.add(key, StreamId(1), 0)
    for number, pattern in enumerate(parsed):
        found = matching_keys(names, pattern)
        assert len(found) == len(set(found))
        assert set(found) == {key for key in keys if str(number) in index.match(key)}
    for number, pattern in enumerate(parsed):
        index.remove(pattern, str(number))
    assert not index._root.children


def steps_to_match(patterns: list[bytes], path: bytes, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many places are looked at, all segments of the path together."""
    index = PatternIndex()
    for number, pattern in enumerate(patterns):
        index.add(parse_pattern(pattern), str(number))
    looked = 0
    after = pattern_index._after

    def counted(places: list[pattern_index._Node], segment: bytes) -> list[pattern_index._Node]:
        nonlocal looked
        looked += len(places)
        return after(places, segment)

    with monkeypatch.context() as patched:
        patched.setattr(pattern_index, "_after", counted)
        index.match(path)
    return looked


def test_a_run_of_wildcards_for_any_number_of_segments_is_one() -> None:
    assert parse_pattern(b"**/" * 340 + b"a") == parse_pattern(b"**/a")
    assert parse_pattern(b"a/**/**/*/**/**") == parse_pattern(b"a/**/*/**")


def test_a_run_of_wildcards_costs_what_one_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    path = b"/".join([b"a"] * 500)
    one = steps_to_match([b"**/b"], path, monkeypatch)
    assert steps_to_match([b"**/" * 340 + b"b"], path, monkeypatch) == one


@pytest.mark.parametrize("part", [b"**/a/", b"**/*/", b"**/a/*/"])
def test_matching_costs_at_most_the_weight_for_each_segment(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps(parts: int, segments: int) -> int:
        pattern = part * parts + b"b"
        found = steps_to_match([pattern], b"/".join([b"a"] * segments), monkeypatch)
        assert found <= (weight_of(parse_pattern(pattern)) + 1) * segments
        return found

    assert steps(10, 800) < 2.1 * steps(10, 400)  # twice the path, twice the work
    assert steps(20, 800) < 2.1 * steps(10, 800)  # twice the pattern, twice the work


prefixes = st.lists(segments, max_size=4).map(tuple)


@given(st.lists(st.tuples(prefixes, st.integers(1, 5)), max_size=12), st.data())
@brief
def test_the_load_is_that_of_the_heaviest_way(
    added: list[tuple[tuple[bytes, ...], int]], data: st.DataObject
) -> None:
    load = PatternLoad()
    for prefix, weight in added:
        load.add(prefix, weight)
    for _ in range(data.draw(st.integers(0, len(added)))):
        load.remove(*added.pop(data.draw(st.integers(0, len(added) - 1))))
    ways = [
        (end, sum(weight for prefix, weight in added if end[: len(prefix)] == prefix))
        for end in itertools.product([b"a", b"b"], repeat=4)
    ]
    for length in range(5):
        for prefix in itertools.product([b"a", b"b"], repeat=length):
            heaviest = max(total for end, total in ways if end[:length] == prefix)
            assert load.heaviest_through(prefix) == heaviest
    for prefix, weight in added:
        load.remove(prefix, weight)
    assert load.heaviest_through(()) == 0
    assert len(load._places) <= 1


def test_only_names_that_begin_like_the_pattern_are_looked_at() -> None:
    class Watched(Namespace):
        looked = 0

        def keys_from(self, first: bytes, **more):  # type: ignore[no-untyped-def]
            for key in super().keys_from(first, **more):
                self.looked += 1
                yield key

    names = Watched()
    for bucket in (b"a", b"b", b"c"):
        for number in range(100):
            names.add(b"%b/%d" % (bucket, number), StreamId(1), 0)
    assert matching_keys(names, parse_pattern(b"b/7")) == [b"b/7"]
    assert names.looked < 15
    assert [a < b for a, b in pairwise(matching_keys(names, parse_pattern(b"b/*")))] == [True] * 99
    assert names.looked < 130
