"""Access keys: what is kept of them. Who may do what with one is decided in access/.

Of a key's secret only the SHA-256 is here. A secret is 256 random bits, so nothing slower is needed
to keep it safe: there is no dictionary of them to try.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from millstream.errors import InvalidRequest, KeyNotFound, TooManyKeys
from millstream.formats.images import AccessKeyImage
from millstream.limits import ACCESS_KEYS_MAX
from millstream.state.commands import CreateKey, RevokeKey
from millstream.state.outcomes import Done, Outcome

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(AccessKeyImage)


class AccessKey(NamedTuple):
    key_id: str
    digest: bytes  # SHA-256 of the secret
    scopes: tuple[str, ...]  # as written
    created_ms: int
    expires_ms: int | None = None
    name: str = ""


class AccessKeys:
    def __init__(self) -> None:
        self.by_id: dict[str, AccessKey] = {}
        # There was a key once. It stays so: the last key's end must not open the store to all.
        self.is_used = False
        self.changed: set[str] = set()  # since the records were last taken
        self.on_change: Callable[[], None] = _nothing  # called while a change is applied

    def appliers(self) -> dict[type, Callable[[Any], Outcome]]:
        return {CreateKey: self._apply_create, RevokeKey: self._apply_revoke}

    def _apply_create(self, command: CreateKey) -> Outcome:
        if command.key_id in self.by_id:
            return InvalidRequest("a key of this id exists already; try again")
        if len(self.by_id) >= ACCESS_KEYS_MAX:
            return TooManyKeys(f"there are {ACCESS_KEYS_MAX} keys; revoke some first")
        self.add(
            AccessKey(
                command.key_id,
                command.digest,
                command.scopes,
                command.now_ms,
                command.expires_ms,
                command.name,
            )
        )
        return Done.CREATED

    def _apply_revoke(self, command: RevokeKey) -> Outcome:
        return Done.DELETED if self.remove(command.key_id) else KeyNotFound("key does not exist")

    def add(self, key: AccessKey) -> None:
        self.by_id[key.key_id] = key
        self.is_used = True
        self.changed.add(key.key_id)
        self.on_change()

    def remove(self, key_id: str) -> bool:
        """Whether there was such a key."""
        if self.by_id.pop(key_id, None) is None:
            return False
        self.changed.add(key_id)
        self.on_change()
        return True

    def encode(self, key_id: str) -> bytes | None:
        """None: it is gone."""
        key = self.by_id.get(key_id)
        return None if key is None else _encode(AccessKeyImage(*key))

    def restore(self, encoded: bytes) -> None:
        """Raises msgspec.DecodeError or ValidationError."""
        image = _decoder.decode(encoded)
        self.by_id[image.key_id] = AccessKey(
            image.key_id,
            image.digest,
            image.scopes,
            image.created_ms,
            image.expires_ms,
            image.name,
        )


def _nothing() -> None:
    pass
