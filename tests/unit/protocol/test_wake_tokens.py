from __future__ import annotations

import pytest

from millstream.errors import TokenExpired, TokenInvalid
from millstream.protocol.wake_tokens import TOKEN_SECONDS, check_token, issue_token

KEY, NOW_MS = b"k" * 32, 1_750_000_000_000


def test_a_token_says_what_it_was_issued_for() -> None:
    token = issue_token(KEY, "sub/ü", "w_1", 7, NOW_MS)
    claims = check_token(KEY, token.encode(), "sub/ü", NOW_MS)
    assert (claims.wake_id, claims.generation) == ("w_1", 7)
    assert not claims.is_ageing(NOW_MS)
    assert claims.is_ageing(NOW_MS + TOKEN_SECONDS * 600)


def test_a_token_is_good_for_an_hour() -> None:
    token = issue_token(KEY, "s", "w", 1, NOW_MS).encode()
    check_token(KEY, token, "s", NOW_MS + TOKEN_SECONDS * 1000 - 1000)
    with pytest.raises(TokenExpired):
        check_token(KEY, token, "s", NOW_MS + TOKEN_SECONDS * 1000)


def test_a_token_of_another_subscription_or_server_is_refused() -> None:
    token = issue_token(KEY, "s", "w", 1, NOW_MS).encode()
    with pytest.raises(TokenInvalid):
        check_token(KEY, token, "t", NOW_MS)
    with pytest.raises(TokenInvalid):
        check_token(b"x" * 32, token, "s", NOW_MS)


def test_a_token_with_any_byte_changed_is_refused() -> None:
    token = issue_token(KEY, "s", "w", 1, NOW_MS).encode()
    for place in range(len(token)):
        forged = bytearray(token)
        forged[place] ^= 1
        with pytest.raises(TokenInvalid):
            check_token(KEY, bytes(forged), "s", NOW_MS)


@pytest.mark.parametrize("token", [b"", b".", b"a.b", b"\xff.\xff", b"a" * 9000, b"..."])
def test_anything_else_is_refused(token: bytes) -> None:
    with pytest.raises(TokenInvalid):
        check_token(KEY, token, "s", NOW_MS)
