from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.access.scopes import Scope, parse_rule
from millstream.errors import InvalidRequest
from millstream.protocol.patterns import parse_pattern


def covers(pattern: str, key: str) -> bool:
    return parse_rule(f"read:{pattern}").covers(key.encode())


@pytest.mark.parametrize(
    ("pattern", "key"),
    [
        ("**", "docs/a"),
        ("**", "_default/a"),
        ("docs/**", "docs/a"),
        ("docs/**", "docs/a/b/c"),
        ("docs/*", "docs/a"),
        ("agents/run-*", "agents/run-"),
        ("agents/run-*", "agents/run-17"),
        ("agents/*-log", "agents/run-log"),
        ("agents/r*n*log", "agents/run-and-log"),
        ("agents/a**b", "agents/axyb"),
        ("a*/*/c", "abc/b/c"),
        ("**/c", "docs/a/b/c"),
        ("a/**/c", "a/c"),
        ("a/**/b/**/c", "a/x/b/b/y/c"),
        ("*", "_default/a"),
        ("hello", "_default/hello"),
        ("_default/hello", "_default/hello"),
        ("_default/**", "_default/hello"),
        ("_default/**", "_default/a/b"),
        ("docs/%2A", "docs/*"),
        ("docs/a%2A*", "docs/a*b"),
        ("docs/%2Fa", "docs/%2Fa"),
        ("docs/é*", "docs/été"),
    ],
)
def test_a_pattern_covers_what_it_names(pattern: str, key: str) -> None:
    assert covers(pattern, key)


@pytest.mark.parametrize(
    ("pattern", "key"),
    [
        ("docs/*", "docs/a/b"),
        ("docs/*", "docs2/a"),
        ("docs/**", "docs2/a"),
        ("docs/**", "_default/other"),
        ("agents/run-*", "agents/run"),
        ("agents/run-*", "agents/run-1/below"),
        ("agents/run-*", "agents/xrun-1"),
        ("agents/*-log", "agents/run-log2"),
        ("agents/ab*ba", "agents/aba"),
        ("agents/r*n*log", "agents/rlog"),
        ("*", "docs/a"),
        ("*/*", "_default/a"),
        ("hello", "docs/hello"),
        ("_default/**", "docs/a"),
        ("docs/%2A", "docs/a"),
        ("docs/a", "docs/A"),
        ("docs/a", "docs/a%2F"),
        ("a/**/c", "a/c/d"),
    ],
)
def test_a_pattern_covers_nothing_else(pattern: str, key: str) -> None:
    assert not covers(pattern, key)


@pytest.mark.parametrize("pattern", ["**", "docs/**", "doc*/**", "*/**", "d**/**"])
def test_a_whole_bucket_is_covered_by_who_covers_all_that_can_be_in_it(pattern: str) -> None:
    assert covers(pattern, "docs/")


@pytest.mark.parametrize("pattern", ["docs/*", "docs/a*", "docs", "**/a", "docs/**/a", "x/**"])
def test_a_part_of_a_bucket_is_not_the_bucket(pattern: str) -> None:
    assert not covers(pattern, "docs/")


@pytest.mark.parametrize(
    ("pattern", "other"),
    [
        ("**", "**"),
        ("**", "_default/*"),
        ("docs/**", "docs/**"),
        ("docs/**", "docs/*/x/**"),
        ("docs/*", "docs/*"),
        ("docs/*", "docs/a"),
        ("docs/a*", "docs/ab"),
        ("*", "_default/a"),
        ("_default/**", "_default/*"),
        ("_default/a", "_default/a"),
    ],
)
def test_a_pattern_covers_a_pattern_that_names_nothing_beyond_it(pattern: str, other: str) -> None:
    assert parse_rule(f"subscribe:{pattern}").covers_pattern(parse_pattern(other.encode()))


@pytest.mark.parametrize(
    ("pattern", "other"),
    [
        ("docs/*", "docs/**"),
        ("docs/**", "**"),
        ("docs/a*", "docs/*"),
        ("*/*", "_default/*"),
        ("*/**", "_default/**"),
        ("*", "**"),
        ("a/**/c", "a/**"),
        ("a/*", "a/*/*"),
    ],
)
def test_a_pattern_that_names_more_is_not_covered(pattern: str, other: str) -> None:
    assert not parse_rule(f"subscribe:{pattern}").covers_pattern(parse_pattern(other.encode()))


def test_a_listing_of_a_bucket_is_for_who_can_read_something_in_it() -> None:
    assert parse_rule("read:docs/a").reaches_into(b"docs")
    assert parse_rule("read:d*/a").reaches_into(b"docs")
    assert parse_rule("read:**/a").reaches_into(b"docs")
    assert parse_rule("read:hello").reaches_into(b"_default")
    assert not parse_rule("read:docs/a").reaches_into(b"docs2")


@pytest.mark.parametrize(
    "text",
    [
        *("", "read", "read:", "write:**", "admin:**", "READ:**", " admin", "read :**", "append"),
        *("read:/a", "read:a//b", "read:a/", "read:a/../b", "read:.", "read:a\0", "read:\ud800"),
        *("read:a%20b", "read:a%", "read:%2f", "read:" + "a" * 1025, "read:" + "a/" * 32 + "a"),
    ],
)
def test_what_is_no_scope_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_rule(text)


def test_admin_is_over_everything() -> None:
    rule = parse_rule("admin")
    assert rule.scope is Scope.ADMIN
    assert rule.covers(b"any/thing")


segments = st.text("ab", min_size=1, max_size=4)
pieces = st.one_of(st.sampled_from(["*", "**"]), st.text("ab*", min_size=1, max_size=5), segments)


@given(st.lists(pieces, min_size=1, max_size=6), st.lists(segments, min_size=2, max_size=7))
def test_patterns_match_like_the_plain_expression_of_what_they_mean(
    pattern: list[str], path: list[str]
) -> None:
    def expression(piece: str) -> str:
        if piece == "**":
            return "(?:/[^/]+)*"
        return "/" + ("[^/]+" if piece == "*" else re.sub(r"\*+", "[^/]*", piece))

    meaning = re.compile("".join(map(expression, pattern)))
    expected = meaning.fullmatch("/" + "/".join(path)) is not None
    assert covers("/".join(pattern), "/".join(path)) is expected


@pytest.mark.parametrize(
    ("pattern", "key"),
    [
        ("b/" + "*a" * 500 + "*b", "b/" + "a" * 1000),
        ("b/" + "a*" * 500 + "b", "b/" + "a" * 1000),
        ("/".join(["**", "a"] * 16), "a/" * 500 + "b"),
        ("**/" + "a/" * 30 + "b", "a/" * 510 + "a"),
        ("**/*a*a*a*a*b/**/*a*a*b", "aaa/" * 250 + "aaaa"),
    ],
)
def test_hostile_patterns_cost_no_more_than_pattern_times_path(pattern: str, key: str) -> None:
    rule = parse_rule(f"read:{pattern}")
    began = time.thread_time()
    assert not rule.covers(key.encode())
    assert time.thread_time() - began < 0.5  # what tries everything takes years
