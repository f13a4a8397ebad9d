from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream.errors import InvalidSchema
from millstream.schemas.promotion import Promotion, promotion_of
from millstream.state.rules import Rules
from tests.unit.schemas.made import add, copy, lens_document, rename, wrap


def rules(*steps: dict[str, Any], revision: int = 1) -> Rules:
    lenses = (lens_document(step, version=version) for version, step in enumerate(steps, 1))
    return Rules(
        revision=revision,
        schemas=(b"{}",) * (len(steps) + 1),
        lenses=(b"", *map(msgspec.json.encode, lenses)),
    )


CHAIN = rules(rename("/a", "/b"), wrap("/b"), add("/c", None))


@pytest.mark.parametrize(
    ("version", "before", "after"),
    [
        (0, {"a": 1}, {"b": [1], "c": None}),
        (1, {"a": 1}, {"b": [1], "c": None}),
        (2, {"b": 1}, {"b": [1], "c": None}),
        (3, {"b": [1]}, {"b": [1], "c": None}),
        (4, {"b": [1], "c": 2}, {"b": [1], "c": 2}),
    ],
)
def test_an_entry_goes_through_the_lenses_behind_its_version(
    version: int, before: Any, after: Any
) -> None:
    message = msgspec.json.encode(before)
    assert promotion_of(CHAIN).promote_bytes(version, message) == msgspec.json.encode(after)
    assert promotion_of(CHAIN).promote(version, before) == after


def test_a_message_of_the_current_version_stays_as_it_came() -> None:
    message = b' {"b" : 1.0e0, "b": 2} '
    assert promotion_of(CHAIN).promote_bytes(4, message) is message
    assert promotion_of(Rules(revision=1, schemas=(b"{}",))).promote_bytes(1, message) is message


def test_numbers_keep_their_digits() -> None:
    message = b'{"a":123456789012345678901234567890}'
    assert promotion_of(rules(rename("/a", "/b"))).promote_bytes(1, message) == (
        b'{"b":123456789012345678901234567890}'
    )


def test_lenses_are_known_by_what_they_say() -> None:
    first = promotion_of(rules(rename("/a", "/b")))
    assert promotion_of(rules(rename("/a", "/b"), revision=9)) is first
    assert promotion_of(rules(rename("/a", "/c"))).promote(1, {"a": 1}) == {"c": 1}


def test_an_entry_that_no_lens_can_be_applied_to_is_refused() -> None:
    promotion = Promotion(CHAIN)
    for message in (b"{}", b"5", b"[]", b"not json", b'"\xff"', b"[" * 5000, b'{"a":1e999}'):
        with pytest.raises(InvalidSchema):
            promotion.promote_bytes(1, message)


def test_what_lenses_add_is_bounded_over_all_versions() -> None:
    doubling = Promotion(rules(*[copy("", f"/{number}") for number in range(60)]))
    with pytest.raises(InvalidSchema, match="too much"):
        doubling.promote(1, {"a": "x" * 1000})
