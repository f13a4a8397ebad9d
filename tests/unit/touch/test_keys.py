from __future__ import annotations

import pytest
from xxhash import xxh32_intdigest

from millstream.touch.keys import (
    KEY_ID_MASK,
    KeyMaker,
    join_arguments,
    key_id_of,
    key_text,
    parse_key,
    table_key,
    template_id,
)

TEMPLATE = 0x03D5826F0BF1E3E7
ARGUMENTS = join_arguments(["open", "t1"])


def test_the_published_keys_come_out() -> None:
    assert key_text(table_key("public.todos")) == "feadeb84d447fd63"
    assert table_key("public.todos") & KEY_ID_MASK == 3561487715
    assert template_id("public.todos", ["status", "tenantId"]) == TEMPLATE
    maker = KeyMaker(TEMPLATE)
    assert key_text(maker.template) == "a440dcf9d1c07171"
    assert key_text(maker.watch(ARGUMENTS)) == "0af6023939b30f26"
    assert key_text(maker.membership(ARGUMENTS)) == "a7b1b1fd3cfa6ed1"
    assert key_text(maker.field("title", ARGUMENTS)) == "0848fb073b348b65"


def test_a_key_keeps_its_leading_zeros() -> None:
    assert key_text(parse_key("0848fb073b348b65") or 0) == "0848fb073b348b65"


def test_the_id_of_a_key_is_its_low_half_in_any_case() -> None:
    assert key_id_of("feadeb84d447fd63") == key_id_of(" FEADEB84D447FD63 ") == 3561487715


@pytest.mark.parametrize("text", ["todos", "Todos ", "feadeb84d447fd6", "feadeb84d447fd63a", "é"])
def test_any_other_text_has_an_id_too(text: str) -> None:
    assert key_id_of(text) == xxh32_intdigest(text.strip().lower().encode())


def test_half_a_surrogate_pair_has_a_key() -> None:
    assert table_key("a\ud800") == table_key("a\ufffd")
