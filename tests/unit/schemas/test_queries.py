from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidRequest
from millstream.limits import QUERY_CHARACTERS_MAX, QUERY_CLAUSES_MAX, QUERY_DEPTH_MAX
from millstream.schemas.queries import And, Bare, Fielded, Has, Not, Or, Query, parse_query
from millstream.schemas.words import END, FILTER, QUERY, Kind, Language, Token, split_words
from tests.unit.effort import brief


def clause(text: str) -> Fielded:
    field, value = text.split(":")
    return Fielded(field, "=", value, False)


def test_words_strings_operators_and_marks() -> None:
    assert split_words('a-b:>="x \\"y\\\\" -(c)', QUERY) == [
        Token(Kind.WORD, "a-b"),
        Token(Kind.MARK, ":"),
        Token(Kind.OPERATOR, ">="),
        Token(Kind.STRING, 'x "y\\'),
        Token(Kind.MARK, "-"),
        Token(Kind.MARK, "("),
        Token(Kind.WORD, "c"),
        Token(Kind.MARK, ")"),
        END,
    ]


def test_a_quote_inside_a_word_is_a_character_of_it() -> None:
    assert split_words('a"b c', QUERY)[:2] == [Token(Kind.WORD, 'a"b'), Token(Kind.WORD, "c")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1", clause("a:1")),
        ("a:1 b:2", And((clause("a:1"), clause("b:2")))),
        ("a:1 and b:2 AND c:3", And((clause("a:1"), clause("b:2"), clause("c:3")))),
        ("a:1 or b:2 c:3", Or((clause("a:1"), And((clause("b:2"), clause("c:3")))))),
        ("(a:1 OR b:2) c:3", And((Or((clause("a:1"), clause("b:2"))), clause("c:3")))),
        ("NOT a:1", Not(clause("a:1"))),
        ("-a:1", Not(clause("a:1"))),
        ("- not a:1", Not(Not(clause("a:1")))),
        ("---a:1", Not(clause("a:1"))),
        ("NOT (NOT a:1 AND b:2)", Not(And((Not(clause("a:1")), clause("b:2"))))),
        ("has:a", Has("a")),
        ("a:>=5", Fielded("a", ">=", "5", False)),
        ("a:=5", Fielded("a", "=", "5", False)),
        ('a:<"-5"', Fielded("a", "<", "-5", True)),
        ("a:or", clause("a:or")),
        ("or:1 and:2 not:3", And((clause("or:1"), clause("and:2"), clause("not:3")))),
        ("a:x*", clause("a:x*")),
        ("a : 1", clause("a:1")),
    ],
)
def test_both_languages_parse_fields(text: str, expected: Query) -> None:
    assert parse_query(text, FILTER) == expected
    assert parse_query(text, QUERY) == expected


def test_the_query_language_has_bare_terms() -> None:
    assert parse_query('card "was declined" -x', QUERY) == And(
        (Bare("card", False), Bare("was declined", True), Not(Bare("x", False)))
    )
    assert parse_query("AND a:1", QUERY) == And((Bare("AND", False), clause("a:1")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "filter must not be empty"),
        (" \n", "filter must not be empty"),
        ("a:(", "expected value in filter clause"),
        ("a:-5", "expected value in filter clause"),
        ("a:", "expected value in filter clause"),
        ("has:", "has: requires a field name"),
        ('has:"a"', "has: requires a field name"),
        ("(a:1", "missing ')' in filter"),
        ("a:1)", "unexpected token in filter"),
        ("a:1 OR", "expected clause in filter"),
        ("NOT", "expected clause in filter"),
        ("()", "expected clause in filter"),
        ("a:1 =", "expected clause in filter"),
        ("a", "expected ':' in filter clause"),
        ("AND a:1", "expected ':' in filter clause"),
        ('"a"', "expected field name in filter"),
        ('a:"x', "unterminated quoted string in filter"),
        ('a:"x\\\\', "unterminated quoted string in filter"),
        ('a:"x\\', "unterminated escape in filter string"),
        ("a:1 " * 2000, f"filter must not exceed {QUERY_CHARACTERS_MAX} characters"),
        ("a:1 " * 129, f"filter must not have more than {QUERY_CLAUSES_MAX} clauses"),
        ("(" * 33 + "a:1", f"filter must not have more than {QUERY_DEPTH_MAX} open brackets"),
    ],
)
def test_what_is_wrong_with_a_filter(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_query(text, FILTER)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "q must not be empty"),
        ('"x', "unterminated quoted string in search query"),
        ('"x\\', "unterminated escape in query string"),
        ("(a", "missing ')' in search query"),
        ("a AND", "expected clause in search query"),
        ("a:", "expected value in fielded search clause"),
        ("has:(", "has: requires a field name"),
        ("contains:x", "contains: is not supported on _search yet"),
    ],
)
def test_what_is_wrong_with_a_query(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_query(text, QUERY)
    assert caught.value.message == message


def test_brackets_and_negations_within_the_bounds_are_taken() -> None:
    depth = QUERY_DEPTH_MAX
    assert parse_query("(" * depth + "a:1" + ")" * depth, FILTER) == clause("a:1")
    assert parse_query("(a:1) " * 100, FILTER) == And((clause("a:1"),) * 100)
    assert parse_query("-" * (QUERY_CHARACTERS_MAX - 3) + "a:1", FILTER) == Not(clause("a:1"))


ANY_TEXT = st.text() | st.lists(
    st.sampled_from(
        ["a", "b:", "has:", "NOT ", " OR ", " AND ", "-", "(", ")", ":", ">=", "<", "=", '"', "\\"]
    ),
    max_size=60,
).map("".join)


@brief
@given(ANY_TEXT, st.sampled_from([FILTER, QUERY]))
def test_any_text_is_parsed_or_refused(text: str, language: Language) -> None:
    with suppress(InvalidRequest):
        assert parse_query(text, language) is not None
