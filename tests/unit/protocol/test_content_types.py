from __future__ import annotations

import pytest

from millstream.protocol.content_types import essence, is_json, is_text, is_valid


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (b"text/plain", b"text/plain"),
        (b"Application/JSON", b"application/json"),
        (b"application/json; charset=utf-8", b"application/json"),
        (b"application/json;charset=utf-8;x=y", b"application/json"),
        (b"  text/plain ;x", b"text/plain"),
        (b";charset=utf-8", b""),
    ],
)
def test_the_essence_drops_parameters_and_case(content_type: bytes, expected: bytes) -> None:
    assert essence(content_type) == expected


def test_only_application_json_is_json() -> None:
    assert is_json(b"application/json")
    others = [b"application/ld+json", b"application/jsonl", b"text/json", b"application/x-ndjson"]
    assert not any(map(is_json, others))


def test_json_and_every_text_type_go_over_sse_as_they_are() -> None:
    assert all(map(is_text, [b"application/json", b"text/plain", b"text/csv"]))


def test_everything_else_goes_over_sse_as_base64() -> None:
    binary = [b"application/octet-stream", b"image/png", b"application/x-text", b"texts/plain"]
    assert not any(map(is_text, binary))


@pytest.mark.parametrize(
    "content_type", [b"a/b", b"text/plain; charset=utf-8", b"Application/Vnd.X+json", b" a/b "]
)
def test_a_media_type_is_valid(content_type: bytes) -> None:
    assert is_valid(content_type)


@pytest.mark.parametrize(
    "content_type",
    [b"", b"text", b"/", b"text/", b"/plain", b"te xt/plain", b"text/pl ain", b";a/b"],
)
def test_what_has_no_type_and_subtype_is_not_valid(content_type: bytes) -> None:
    assert not is_valid(content_type)


@pytest.mark.parametrize("content_type", ["text/plaïn".encode(), b'text/plain; x="\xff"'])
def test_what_could_not_be_echoed_in_a_header_is_not_valid(content_type: bytes) -> None:
    assert not is_valid(content_type)
