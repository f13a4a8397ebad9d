"""Cursors keep shared caches from answering live requests with the same old answer for ever."""

from __future__ import annotations

import random

CURSOR_EPOCH_MS = 1_728_432_000_000  # 2024-10-09T00:00:00Z
INTERVAL_MS = 20_000
JITTER_SECONDS_MAX = 3600
_CURSOR_DIGITS_MAX = 18


def current_cursor(now_ms: int) -> int:
    return (now_ms - CURSOR_EPOCH_MS) // INTERVAL_MS


def decode_cursor(token: bytes | None) -> int:
    """The client's cursor, or -1 when it sent none or nonsense."""
    if token is None or not token.isdigit() or len(token) > _CURSOR_DIGITS_MAX:
        return -1
    return int(token)


def next_cursor(client_cursor: int, now_ms: int) -> int:
    """The current interval, or a little above the client's cursor when that is not behind it."""
    current = current_cursor(now_ms)
    if client_cursor < current:
        return current
    jitter_ms = random.randint(1, JITTER_SECONDS_MAX) * 1000
    return client_cursor + max(1, jitter_ms // INTERVAL_MS)
