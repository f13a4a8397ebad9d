"""/__millstream/keys: make, list and revoke access keys. A key is shown once, to its maker."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from millstream.access.key_text import NewKey, new_key
from millstream.access.scopes import Scope, parse_rule
from millstream.api.control import respond_json
from millstream.api.errors import respond_error
from millstream.api.headers import NO_STORE
from millstream.engine.engine import Engine
from millstream.errors import (
    BodyTooLarge,
    InvalidRequest,
    RouteNotFound,
    StreamError,
)
from millstream.http.message import Request
from millstream.limits import (
    ACCESS_NAME_BYTES_MAX,
    ACCESS_SCOPES_MAX,
    CONTROL_BODY_BYTES_MAX,
    TTL_SECONDS_MAX,
)
from millstream.protocol.durations import encode_timestamp
from millstream.state.access_keys import AccessKey
from millstream.state.commands import CreateKey, RevokeKey
from millstream.state.outcomes import Outcome

_ID = re.compile(rb"[0-9a-f]{1,32}")


class KeyBody(msgspec.Struct):
    scopes: list[str]
    expires_seconds: int | None = None  # from now; None: never
    name: str = ""


def create_command(body: KeyBody, key: NewKey, now_ms: int) -> CreateKey:
    """Raises InvalidRequest."""
    if not 1 <= len(body.scopes) <= ACCESS_SCOPES_MAX:
        raise InvalidRequest(f"a key has 1 to {ACCESS_SCOPES_MAX} scopes")
    for scope in body.scopes:
        parse_rule(scope)
    seconds = body.expires_seconds
    if seconds is not None and not 1 <= seconds <= TTL_SECONDS_MAX:
        raise InvalidRequest("a key expires after at least a second and at most a hundred years")
    if not body.name.isprintable() or len(body.name.encode()) > ACCESS_NAME_BYTES_MAX:
        raise InvalidRequest(f"a key's name is printable, {ACCESS_NAME_BYTES_MAX} bytes at most")
    expires_ms = None if seconds is None else now_ms + seconds * 1000
    scopes = tuple(dict.fromkeys(body.scopes))
    return CreateKey(now_ms, key.key_id, key.digest, scopes, expires_ms, body.name)


class KeyRoutes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._keys = engine.machine.access

    def revoke(self, request: Request, raw_id: bytes) -> None:
        if not _ID.fullmatch(raw_id):
            raise RouteNotFound("use /__millstream/keys and /__millstream/keys/{id}")
        command = RevokeKey(self._engine.clock.now_ms(), raw_id.decode())
        self._engine.submit(command, _respond_revoked, request)

    def create(self, request: Request) -> None:
        key = new_key()
        command = create_command(_parse(request.body), key, self._engine.clock.now_ms())
        if not self._keys.is_used and Scope.ADMIN.value not in command.scopes:
            raise InvalidRequest(
                "the first key turns access control on, so it must have the scope admin: without "
                "one that has it no other could be made"
            )

        def created(context: Request, outcome: Outcome) -> None:
            if isinstance(outcome, StreamError):
                respond_error(context, outcome)
            else:
                stored = self._keys.by_id[key.key_id]
                respond_json(context, 201, {**_describe(stored), "key": key.text})

        self._engine.submit(command, created, request)

    def list(self, request: Request) -> None:
        """Expired ones too: they are there until they are revoked."""
        keys = sorted(self._keys.by_id.values(), key=lambda key: (key.created_ms, key.key_id))
        respond_json(request, 200, {"keys": [_describe(key) for key in keys]})


def _respond_revoked(request: Request, outcome: Outcome) -> None:
    if isinstance(outcome, StreamError):
        respond_error(request, outcome)
    else:
        request.respond(204, NO_STORE)


def _describe(key: AccessKey) -> dict[str, Any]:
    expires_ms = key.expires_ms
    return {
        "id": key.key_id,
        "name": key.name,
        "scopes": key.scopes,
        "created_at": encode_timestamp(key.created_ms),
        "expires_at": None if expires_ms is None else encode_timestamp(expires_ms),
    }


def _parse(body: bytes) -> KeyBody:
    if len(body) > CONTROL_BODY_BYTES_MAX:
        raise BodyTooLarge(f"the body must not exceed {CONTROL_BODY_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(body, type=KeyBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(
            f'send a body such as {{"scopes": ["read:**"], "expires_seconds": 86400}}: {error}'
        ) from None
