"""Signatures of webhooks, so that a receiver knows who calls.

`Webhook-Signature: t=<unix seconds>,kid=<key>,ed25519=<base64url>` over `<t>.<body>`. The public
key is served as a JWK (RFC 8037); its name is the key's thumbprint (RFC 7638).
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from functools import lru_cache
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SEED_BYTES = 32


class WebhookSigner:
    """Safe to use from any thread."""

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self._x = _base64url(self._key.public_key().public_bytes_raw())
        thumbprint = f'{{"crv":"Ed25519","kty":"OKP","x":"{self._x}"}}'
        self.kid = "ds_" + _base64url(sha256(thumbprint.encode()).digest())

    def sign(self, body: bytes, unix_seconds: int) -> str:
        """The value of the Webhook-Signature header."""
        signature = self._key.sign(b"%d.%b" % (unix_seconds, body))
        return f"t={unix_seconds},kid={self.kid},ed25519={_base64url(signature)}"

    def jwk(self) -> dict[str, str]:
        return {
            "kty": "OKP",
            "crv": "Ed25519",
            "x": self._x,
            "kid": self.kid,
            "use": "sig",
            "alg": "EdDSA",
        }


@lru_cache(maxsize=4)
def signer_of(seed: bytes) -> WebhookSigner:
    return WebhookSigner(seed)


def _base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
