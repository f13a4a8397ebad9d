from __future__ import annotations

import pytest

from millstream.protocol.offsets import Offset
from tests.unit.state.store import JSON, Store


def stream_of_three() -> Store:
    store = Store()
    store.create(b"a", b"1,", b"22,", b"333,", content_type=JSON)
    return store


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (Offset(0, 0), (0, 0)),
        (Offset(2, 5), (2, 5)),
        (Offset(3, 9), (3, 9)),
        (Offset(2, None), (2, 5)),
        (Offset(3, None), (3, 9)),
        (Offset(None, 0), (0, 0)),
        (Offset(None, 5), (2, 5)),
        (Offset(None, 9), (3, 9)),
    ],
)
def test_an_offset_resolves_to_the_boundary_it_names(
    offset: Offset, expected: tuple[int, int]
) -> None:
    assert stream_of_three()[b"a"].resolve(offset) == expected


@pytest.mark.parametrize(
    "offset",
    [
        Offset(2, 4),
        Offset(1, 5),
        Offset(4, 9),
        Offset(4, None),
        Offset(2**64 - 1, None),
        Offset(3, 10),
        Offset(None, 1),
        Offset(None, 10),
        Offset(None, 10**19),
    ],
)
def test_an_offset_that_is_no_boundary_resolves_to_nothing(offset: Offset) -> None:
    assert stream_of_three()[b"a"].resolve(offset) is None


def test_only_the_start_resolves_on_an_empty_stream() -> None:
    store = Store()
    store.create(b"a")
    assert store[b"a"].resolve(Offset(0, 0)) == (0, 0)
    assert store[b"a"].resolve(Offset(None, 0)) == (0, 0)
    assert store[b"a"].resolve(Offset(1, 1)) is None
