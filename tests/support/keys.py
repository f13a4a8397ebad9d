"""Access keys for tests: made in a cold folder or by a running server, and shown to one."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cold.backup_world import run_command
from tests.support.http import Client

KEYS = "/__millstream/keys"


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def key_id(key: str) -> str:
    return key.split("_")[1]


def make_key_offline(data_dir: Path, *scopes: str) -> str:
    flags = [flag for scope in scopes for flag in ("--scope", scope)]
    code, output = run_command("key", "create", "--data-dir", str(data_dir), *flags)
    assert code == 0, output
    return output.strip()


def make_key(
    client: Client, admin: str | None, *scopes: str, expires_seconds: int | None = None
) -> str:
    body = {"scopes": scopes, "expires_seconds": expires_seconds}
    reply = client.post(KEYS, json.dumps(body), headers=bearer(admin))
    assert reply.status == 201, reply
    return str(reply.json()["key"])


def revoke_key(client: Client, admin: str, key: str) -> int:
    return client.delete(f"{KEYS}/{key_id(key)}", headers=bearer(admin)).status
