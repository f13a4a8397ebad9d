from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import InvalidRequest
from millstream.schemas.filters import parse_filter
from millstream.schemas.search_config import parse_search
from tests.unit.schemas.search_documents import search_with

SEARCH = parse_search(search_with())


def matches(text: str, document: Any, version: int = 1) -> bool:
    return parse_filter(text, SEARCH).matches(document, version)


@pytest.mark.parametrize(
    ("text", "document", "expected"),
    [
        ("level:ERROR", {"level": "Error"}, True),
        ("id:ERROR", {"id": "Error"}, False),
        ("id:a*", {"id": "a*"}, True),
        ("id:a*", {"id": "abc"}, False),
        ("n:5", {"n": "5"}, True),
        ("n:5", {"n": 5.0}, True),
        ("n:5", {"n": True}, False),
        ("n:18446744073709551617", {"n": 2**64 + 1}, True),
        ("n:18446744073709551617", {"n": 2**64}, False),
        ("n:>18446744073709551616", {"n": 2**64 + 1}, True),
        ('n:>"-5"', {"n": -4}, True),
        ("n:>=5", {"n": [1, [5]]}, True),
        ("n:>5", {"n": [1, 5]}, False),
        ("n:<5", {}, False),
        ("n:<5", {"n": None}, False),
        ("NOT n:<5", {"n": None}, True),
        ("ratio:0.50", {"ratio": "5e-1"}, True),
        ("ratio:<=0.5", {"ratio": 0.5}, True),
        ("ok:True", {"ok": "true"}, True),
        ("ok:true", {"ok": False}, False),
        ('ts:>="2026-01-01T00:00:00Z"', {"at": "2026-01-01T01:00:00+01:00"}, True),
        ("at:<2026-01-01", {"at": 1_767_225_600_000}, False),
        ("at:1767225600000", {"at": "2026-01-01"}, True),
        ("has:at", {"at": "soon"}, False),
        ("has:at", {"at": 0}, True),
        ("has:msg", {"message": "hello"}, True),
        ("has:msg", {"message": None}, False),
        ("has:msg", {"message": [[], ["hello"]]}, True),
        ("has:level", {"level": None}, False),
    ],
)
def test_clauses(text: str, document: Any, expected: bool) -> None:
    assert matches(text, document) is expected


@pytest.mark.parametrize("a", [1, 0])
@pytest.mark.parametrize("b", [1, 0])
def test_a_negation_inside_a_negation_is_not_lost(a: int, b: int) -> None:
    document = {"n": a, "ok": bool(b)}
    assert matches("NOT (NOT n:1 AND ok:true)", document) is (a == 1 or b == 0)
    assert matches("NOT (NOT n:1)", document) is (a == 1)
    assert matches("-(n:1 ok:true)", document) is not (a == 1 and b == 1)


def test_records_that_are_no_objects_match_what_is_true_of_nothing() -> None:
    for document in (None, 5, "x", [1], [{"n": 5}]):
        assert not matches("n:5", document)
        assert matches("NOT has:n", document)


def test_a_record_from_before_the_first_binding_has_no_values() -> None:
    assert not matches("n:5", {"n": 5}, version=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("other:1", "filter field other is not indexed"),
        ("has:other", "filter field other is not indexed"),
        ("contains:1", "filter field contains is not indexed"),
        ("has:note", "filter field note does not support has:"),
        ("note:x", "filter field note does not support equality filters"),
        ("exact_n:>1", "filter field exact_n does not support comparisons"),
        ("level:>a", "comparison operator not supported for filter field level"),
        ("ok:>false", "comparison operator not supported for filter field ok"),
        ("n:x", "invalid value for filter field n"),
        ("n:1.5", "invalid value for filter field n"),
        ("at:soon", "invalid value for filter field at"),
        ("ok:1", "invalid value for filter field ok"),
        ("msg:hello", "invalid value for filter field msg"),
        ("n:1 OR (n:2 AND NOT other:1)", "filter field other is not indexed"),
        (f"{'x' * 99}:1", f"filter field {'x' * 64}… is not indexed"),
    ],
)
def test_filters_that_cannot_be_answered(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_filter(text, SEARCH)
    assert caught.value.message == message
