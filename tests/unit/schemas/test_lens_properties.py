"""What proofs promise, tried with schemas, lenses and entries that no author thought of."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from millstream.errors import InvalidSchema
from millstream.schemas.dialect import simplified
from millstream.schemas.documents import clone
from millstream.schemas.fitting import Fitting
from millstream.schemas.lenses import parse_lens
from millstream.schemas.promotion import promotion_of
from millstream.schemas.proofs import prove
from millstream.schemas.validation import Validator
from millstream.state.rules import Rules
from tests.unit.effort import brief
from tests.unit.schemas.made import lens_document
from tests.unit.schemas.worlds import (
    entries,
    free_values,
    lenses,
    neighbours,
    schemas,
    tampered,
)


@brief
@given(st.data())
def test_a_promoted_entry_keeps_to_the_new_schema_when_the_lens_was_proved(
    data: st.DataObject,
) -> None:
    old = data.draw(schemas)
    ops, after = data.draw(lenses(old))
    assume(ops)
    new = data.draw(tampered(after))
    lens = parse_lens(lens_document(*ops))
    try:
        stored = parse_lens(prove(lens, old, new))
    except InvalidSchema:
        event("refused")
        return
    event("proved")
    validator = Validator(simplified(new))
    for _ in range(3):
        entry = data.draw(entries(old))
        assert Validator(simplified(old)).problem(entry) is None
        promoted = stored.promote(clone(entry))
        assert validator.problem(promoted) is None, (entry, promoted)


@brief
@given(st.data())
def test_what_is_left_after_a_lens_describes_every_entry(data: st.DataObject) -> None:
    old = data.draw(schemas)
    ops, after = data.draw(lenses(old))
    assume(ops)
    entry = data.draw(entries(old))
    promoted = parse_lens(lens_document(*ops)).promote(entry)
    assert Validator(after).problem(promoted) is None


@brief
@given(schemas)
def test_every_schema_fits_itself(schema: Any) -> None:
    form = simplified(schema)
    assert Fitting().misfit(form, clone(form)) is None


@brief
@given(st.data())
def test_entries_of_a_schema_that_fits_another_keep_to_it(data: st.DataObject) -> None:
    old = data.draw(schemas)
    new = data.draw(tampered(old))
    if Fitting().misfit(simplified(old), simplified(new)) is None:
        event("fits")
        assert Validator(simplified(new)).problem(data.draw(entries(old))) is None


@brief
@given(st.data())
def test_promotion_through_many_versions_is_promotion_step_by_step(data: st.DataObject) -> None:
    schema = data.draw(schemas)
    first, steps = schema, []
    for version in range(1, data.draw(st.integers(2, 5))):
        ops, schema = data.draw(lenses(schema))
        assume(ops)
        steps.append(lens_document(*ops, version=version))
    rules = Rules(revision=1, lenses=(b"", *map(msgspec.json.encode, steps)))
    entry = data.draw(entries(first))
    expected = clone(entry)
    for version, step in enumerate(steps, 1):
        got = promotion_of(rules).promote(version, clone(expected))
        expected = parse_lens(step).promote(expected)
        assert promotion_of(rules).promote(version + 1, clone(expected)) == got
    promotion = promotion_of(rules)
    assert promotion.promote(1, clone(entry)) == expected
    message = msgspec.json.encode(entry)
    assert msgspec.json.decode(promotion.promote_bytes(1, message)) == expected


@brief
@given(st.data())
def test_entries_share_nothing_with_the_lens_or_each_other(data: st.DataObject) -> None:
    old = data.draw(schemas)
    ops, _ = data.draw(lenses(old))
    assume(ops)
    lens = parse_lens(lens_document(*ops))
    entry = data.draw(entries(old))
    promoted = lens.promote(clone(entry))
    before = clone(promoted)
    containers = list(_containers(promoted))
    assert len({id(each) for each in containers}) == len(containers)
    for each in containers:
        each.clear()
    assert lens.promote(clone(entry)) == before
    assert lens.document == lens_document(*ops)


def _containers(value: Any) -> Any:
    if isinstance(value, dict | list):
        yield value
        for child in value.values() if isinstance(value, dict) else value:
            yield from _containers(child)


@settings(brief, max_examples=100)
@given(neighbours(), st.lists(free_values(), min_size=5, max_size=30))
def test_any_value_that_keeps_to_a_schema_keeps_to_all_that_it_fits(
    pair: tuple[Any, Any], values: list[Any]
) -> None:
    old, new = map(simplified, pair)
    try:
        before, after = Validator(old), Validator(new)
    except InvalidSchema:
        return
    if Fitting().misfit(old, new) is None:
        event("fits")
        for value in values:
            assert before.problem(value) is not None or after.problem(value) is None, value
