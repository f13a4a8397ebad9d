from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidSchema
from millstream.limits import DOCUMENT_DEPTH_MAX, DOCUMENT_NODES_MAX, SCHEMA_UPDATE_BYTES_MAX
from millstream.schemas.documents import (
    MISSING,
    clone,
    decode_document,
    encode_document,
    find,
    parse_pointer,
    pointer_text,
)
from tests.unit.effort import brief

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@brief
@given(documents)
def test_a_document_comes_back_as_it_was_encoded(document: Any) -> None:
    assert decode_document(encode_document(document), "it") == document
    assert clone(document) == document


def test_keys_keep_their_order_and_numbers_their_digits() -> None:
    body = b'{"z":1,"a":123456789012345678901234567890,"m":[1.5,true,null]}'
    assert encode_document(decode_document(body, "it")) == body


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "it is not JSON"),
        (b"{", "it is not JSON"),
        (b"NaN", "it is not JSON"),
        (b"1e999", "it is not JSON"),
        (b'"\xff"', "it is not JSON"),
        (b"1" * 6000, "it is not JSON"),
        (b"[" * 5000 + b"]" * 5000, "it is nested more than"),
        (b"[" * (DOCUMENT_DEPTH_MAX + 1) + b"]" * (DOCUMENT_DEPTH_MAX + 1), "it is nested"),
        (b"[" + b"1," * DOCUMENT_NODES_MAX + b"1]", "it has more than"),
        (b'"' + b"x" * SCHEMA_UPDATE_BYTES_MAX + b'"', "it may have at most"),
    ],
    ids=range(10),
)
def test_what_cannot_be_walked_safely_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(InvalidSchema, match=text):
        decode_document(body, "it")


def test_the_deepest_document_that_is_taken() -> None:
    body = b"[" * DOCUMENT_DEPTH_MAX + b"]" * DOCUMENT_DEPTH_MAX
    assert encode_document(decode_document(body, "it")) == body


@brief
@given(st.lists(texts, max_size=5))
def test_pointers_are_read_as_they_are_written(names: list[str]) -> None:
    assert parse_pointer(pointer_text(tuple(names))) == tuple(names)


@pytest.mark.parametrize("text", ["a", "#/a", "/~", "/a~2", "/~01~", None, 1, ["/a"]])
def test_text_that_is_no_pointer_is_refused(text: Any) -> None:
    with pytest.raises(InvalidSchema, match="routingKey must be a JSON pointer"):
        parse_pointer(text, "routingKey")


def test_a_pointer_unescapes_in_the_right_order() -> None:
    assert parse_pointer("/~01/~1//x") == ("~1", "/", "", "x")


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("", {"a": [1, {"": None}], "0": "zero"}),
        ("/a/0", 1),
        ("/a/1/", None),
        ("/0", "zero"),
        ("/a/2", MISSING),
        ("/a/-", MISSING),
        ("/a/00", MISSING),
        ("/a/-1", MISSING),
        ("/a/٣", MISSING),
        ("/a/99999999999999999999", MISSING),
        ("/a/0/x", MISSING),
        ("/b", MISSING),
    ],
)
def test_a_pointer_finds_a_value_or_tells_that_none_is_there(pointer: str, found: Any) -> None:
    document = {"a": [1, {"": None}], "0": "zero"}
    assert find(document, parse_pointer(pointer)) == found
