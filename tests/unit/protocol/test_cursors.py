from __future__ import annotations

import random

import pytest

from millstream.protocol.cursors import (
    CURSOR_EPOCH_MS,
    INTERVAL_MS,
    current_cursor,
    decode_cursor,
    next_cursor,
)

NOW_MS = CURSOR_EPOCH_MS + 1000 * INTERVAL_MS + 7


def test_intervals_are_twenty_seconds_since_the_ninth_of_october_2024() -> None:
    midnight_ms = 1_728_432_000_000
    assert current_cursor(midnight_ms) == 0
    assert current_cursor(midnight_ms + 19_999) == 0
    assert current_cursor(midnight_ms + 20_000) == 1
    assert current_cursor(midnight_ms + 86_400_000) == 4320


@pytest.mark.parametrize("client_cursor", [-1, 0, 998, 999])
def test_a_client_behind_gets_the_current_interval(client_cursor: int) -> None:
    assert next_cursor(client_cursor, NOW_MS) == 1000


@pytest.mark.parametrize("client_cursor", [1000, 1001, 5000, 10**17])
def test_a_client_that_is_not_behind_gets_a_strictly_greater_cursor(client_cursor: int) -> None:
    for _ in range(300):
        assert next_cursor(client_cursor, NOW_MS) > client_cursor


def test_the_jitter_stays_within_an_hour() -> None:
    for _ in range(300):
        assert next_cursor(1000, NOW_MS) - 1000 <= 3600_000 // INTERVAL_MS


def test_clients_with_the_same_cursor_are_spread_apart() -> None:
    assert len({next_cursor(1000, NOW_MS) for _ in range(300)}) > 20


def test_the_smallest_jitter_still_moves_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "randint", lambda low, high: low)
    assert next_cursor(1000, NOW_MS) == 1001


def test_following_the_servers_cursors_never_stands_still() -> None:
    cursor, seen = -1, set()
    for _ in range(50):
        cursor = next_cursor(cursor, NOW_MS)
        assert cursor not in seen
        seen.add(cursor)


def test_a_cursor_decodes_to_its_number() -> None:
    assert decode_cursor(b"1234") == 1234
    assert decode_cursor(b"9" * 18) == 10**18 - 1


@pytest.mark.parametrize(
    "token",
    [
        None,
        b"",
        b"-5",
        b"+5",
        b"1.5",
        b"1e3",
        b" 5",
        b"5\n",
        b"abc",
        b"0x10",
        b"9" * 19,
        b"1" * 5000,
        "٣".encode(),
        "²".encode(),
        b"\xff",
    ],
)
def test_no_cursor_and_a_nonsense_cursor_count_as_behind_everything(token: bytes | None) -> None:
    assert decode_cursor(token) == -1
