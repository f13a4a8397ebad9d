"""Tokens that say who holds a wake: `base64url(claims).base64url(HMAC-SHA256 of the first part)`.

A token is good for one wake of one subscription and for an hour. It is only ever taken from the
Authorization header.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256

import msgspec

from millstream.errors import TokenExpired, TokenInvalid

TOKEN_SECONDS = 3600
KEY_BYTES = 32


class TokenClaims(msgspec.Struct, array_like=True):
    subscription_id: str
    wake_id: str
    generation: int
    expires_s: int

    def is_ageing(self, now_ms: int) -> bool:
        """More than half its time is over: a worker that goes on should get a new one."""
        return self.expires_s - now_ms // 1000 < TOKEN_SECONDS // 2


_decoder = msgspec.json.Decoder(TokenClaims)


def issue_token(
    key: bytes, subscription_id: str, wake_id: str, generation: int, now_ms: int
) -> str:
    claims = TokenClaims(subscription_id, wake_id, generation, now_ms // 1000 + TOKEN_SECONDS)
    payload = urlsafe_b64encode(msgspec.json.encode(claims)).rstrip(b"=")
    return (payload + b"." + _mac(key, payload)).decode()


def check_token(key: bytes, token: bytes, subscription_id: str, now_ms: int) -> TokenClaims:
    """Raises TokenInvalid for anything we did not issue for this subscription, TokenExpired."""
    payload, _, mac = token.partition(b".")
    if not hmac.compare_digest(_mac(key, payload), mac):
        raise TokenInvalid("this is no token of this server")
    claims = _decoder.decode(urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
    if claims.subscription_id != subscription_id:
        raise TokenInvalid("the token is for another subscription")
    if now_ms // 1000 >= claims.expires_s:
        raise TokenExpired("the token is too old; wait for the next wake")
    return claims


def _mac(key: bytes, payload: bytes) -> bytes:
    return urlsafe_b64encode(hmac.digest(key, payload, sha256)).rstrip(b"=")
