"""Access keys for tests: made in a cold folder or by a running server, and shown to one."""

from __future__ import annotations

import json
from pathlib import Path

from millstream.access.key_text import new_key
from millstream.api.keys import KeyBody, create_command
from millstream.clock import SystemClock
from millstream.config import Config
from millstream.offline.first_key import store_key
from tests.support.http import Client

KEYS = "/__millstream/keys"


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def key_id(key: str) -> str:
    return key.split("_")[1]


def make_key_offline(data_dir: Path, *scopes: str, shards: int | None = None) -> str:
    """As `millstream key create --data-dir` does, without the start of a process."""
    key = new_key()
    command = create_command(KeyBody(list(scopes)), key, SystemClock().now_ms())
    store_key(Config(data_dir=data_dir, shards=shards), command)
    return key.text


def make_key(
    client: Client, admin: str | None, *scopes: str, expires_seconds: int | None = None
) -> str:
    body = {"scopes": scopes, "expires_seconds": expires_seconds}
    reply = client.post(KEYS, json.dumps(body), headers=bearer(admin))
    assert reply.status == 201, reply
    return str(reply.json()["key"])


def revoke_key(client: Client, admin: str, key: str) -> int:
    return client.delete(f"{KEYS}/{key_id(key)}", headers=bearer(admin)).status
