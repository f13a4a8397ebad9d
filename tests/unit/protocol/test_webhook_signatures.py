from __future__ import annotations

import re
from base64 import urlsafe_b64decode

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from millstream.protocol.webhook_signatures import WebhookSigner

# RFC 8037, appendix A: the key, its public half and its thumbprint.
SEED = urlsafe_b64decode("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=")
PUBLIC = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
THUMBPRINT = "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


def test_the_public_key_and_its_name_are_those_of_the_rfc() -> None:
    signer = WebhookSigner(SEED)
    assert signer.jwk() == {
        "kty": "OKP",
        "crv": "Ed25519",
        "x": PUBLIC,
        "kid": "ds_" + THUMBPRINT,
        "use": "sig",
        "alg": "EdDSA",
    }


def test_a_signature_is_over_the_time_and_the_body() -> None:
    header = WebhookSigner(SEED).sign(b'{"a":1}', 1_750_000_000)
    found = re.fullmatch(r"t=(\d+),kid=(ds_[\w-]+),ed25519=([\w-]+)", header)
    assert found is not None
    assert found[1] == "1750000000"
    key = Ed25519PublicKey.from_public_bytes(urlsafe_b64decode(PUBLIC + "="))
    key.verify(urlsafe_b64decode(found[3] + "=="), b'1750000000.{"a":1}')
