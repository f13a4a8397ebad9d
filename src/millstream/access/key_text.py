"""What a key looks like: `ms_<id>_<secret>`, sent as `Authorization: Bearer ms_…`.

The id is public: it is in lists and in logs. The secret is 256 random bits that only the holder
has; the store keeps its SHA-256.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import NamedTuple

_ID_BYTES, _SECRET_BYTES = 6, 32
_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +ms_([0-9a-f]{1,32})_([0-9a-f]{64})")


class NewKey(NamedTuple):
    key_id: str
    text: str  # shown once, to its maker
    digest: bytes


class SentKey(NamedTuple):
    key_id: str
    digest: bytes


def new_key() -> NewKey:
    key_id, secret = secrets.token_hex(_ID_BYTES), secrets.token_hex(_SECRET_BYTES)
    return NewKey(key_id, f"ms_{key_id}_{secret}", hashlib.sha256(secret.encode()).digest())


def read_header(authorization: bytes) -> SentKey | None:
    """None: this is no key of ours."""
    match = _BEARER.fullmatch(authorization)
    if match is None:
        return None
    return SentKey(match[1].decode(), hashlib.sha256(match[2]).digest())
