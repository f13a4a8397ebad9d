"""Decides for every request whether its key may do this. Looks at no stream: what it answers is
the same for those that exist and those that do not.
"""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from millstream.access.key_text import NewKey, read_header
from millstream.access.scopes import EVERYTHING, Rule, Scope, parse_rule
from millstream.clock import Clock
from millstream.errors import Forbidden, InvalidRequest, Unauthorized
from millstream.limits import ACCESS_GRANTS_CACHED, ACCESS_VERDICTS_CACHED
from millstream.protocol.patterns import Segment
from millstream.state.access_keys import AccessKey, AccessKeys

_NO_DIGEST = bytes(32)


class LiveRead(Protocol):
    """A read that stays open: it ends with the key that opened it."""

    def revoked(self) -> None: ...


class Asking(Protocol):
    """What the gate needs of a request."""

    headers: dict[bytes, bytes]
    grant: Any


class Grant:
    """What one key may do. Handlers that meet further streams ask it; without access control there
    is none."""

    def __init__(self, key_id: str, rules: Sequence[Rule], expires_ms: int | None = None) -> None:
        self.key_id = key_id
        self.expires_ms = expires_ms
        self._rules = rules
        self._is_admin = any(rule.scope is Scope.ADMIN for rule in rules)
        self._live: set[LiveRead] | None = set()  # None: the key is revoked

    def seconds_within(self, seconds: float, now_ms: int) -> float:
        """So many, or fewer when the key ends before."""
        if self.expires_ms is None:
            return seconds
        return min(seconds, max((self.expires_ms - now_ms) / 1000, 0.0))

    def allows(self, scope: Scope, key: bytes | None) -> bool:
        """`key` of a stream, `bucket/` for all of a bucket, None for anything at all."""
        if self._is_admin:
            return True
        return any(
            rule.scope is scope and (key is None or rule.covers(key)) for rule in self._rules
        )

    def allows_pattern(self, scope: Scope, pattern: Sequence[Segment]) -> bool:
        """Every stream that the pattern names, now and ever."""
        return self._is_admin or any(
            rule.scope is scope and rule.covers_pattern(pattern) for rule in self._rules
        )

    def allows_everything(self, scope: Scope) -> bool:
        return self._is_admin or any(
            rule.scope is scope and rule.pattern == EVERYTHING for rule in self._rules
        )

    def allows_some_in(self, scope: Scope, bucket: bytes) -> bool:
        return self._is_admin or any(
            rule.scope is scope and rule.reaches_into(bucket) for rule in self._rules
        )

    def require(self, scope: Scope, key: bytes | None) -> None:
        """Raises Forbidden."""
        if not self.allows(scope, key):
            raise refusal(scope)

    def join(self, read: LiveRead) -> None:
        """It is told when the key is revoked, until it leaves; at once when it is already."""
        if self._live is None:
            read.revoked()
        else:
            self._live.add(read)

    def leave(self, read: LiveRead) -> None:
        if self._live is not None:
            self._live.discard(read)

    def revoke(self) -> set[LiveRead]:
        """The reads that have to be told."""
        live, self._live = self._live, None
        return live or set()


def refusal(scope: Scope) -> Forbidden:
    over = "" if scope is Scope.ADMIN else " over what the request is about"
    return Forbidden(f"the key of this request lacks the scope {scope.value}{over}")


def unauthorized() -> Unauthorized:
    """The same for no key, a wrong one, an expired and a revoked one."""
    return Unauthorized("send a key of this server in the header Authorization: Bearer")


class Gate:
    """A request of the usual kind costs one look into a dict. Only what is allowed is remembered,
    so that guesses do not drive out what is in use.
    """

    def __init__(
        self,
        keys: AccessKeys,
        clock: Clock,
        own: NewKey,
        call_soon: Callable[[Callable[[], None]], object],
        setting: str | None = None,
    ) -> None:
        """`own` is the key of processes that the server starts itself; it is in no store.

        `setting` is `keys` or `off` as the operator says; None: on once there is a key.
        """
        self._keys = keys
        self._clock = clock
        self._own = AccessKey(own.key_id, own.digest, (Scope.ADMIN.value,), 0)
        self._call_soon = call_soon
        self._setting = setting
        self._grants: dict[str, Grant] = {}  # by id of the key
        self._by_header: dict[bytes, Grant] = {}
        self._verdicts: dict[tuple[bytes | None, bytes | None, Scope], Grant] = {}
        self.on_change: Callable[[], None] = _nothing  # `is_on` may be another
        keys.on_change = self._keys_changed

    @property
    def is_on(self) -> bool:
        return self._keys.is_used if self._setting is None else self._setting == "keys"

    @property
    def has_keys(self) -> bool:
        return bool(self._keys.by_id)

    def check(self, request: Asking, scope: Scope, key: bytes | None) -> None:
        """`key` as in Grant.allows. The request has its grant then. Raises Unauthorized, Forbidden.

        A dict compares secrets in no constant time, but only where their hashes are the same, and
        those depend on a number that only this process knows.
        """
        header = request.headers.get(b"authorization")
        grant = self._verdicts.get((header, key, scope))
        if grant is None or (
            grant.expires_ms is not None and grant.expires_ms <= self._clock.now_ms()
        ):
            grant = self._decide(header, scope, key)
        request.grant = grant

    def _decide(self, header: bytes | None, scope: Scope, key: bytes | None) -> Grant:
        grant = None if header is None else self._by_header.get(header) or self._find(header)
        if grant is None:
            raise unauthorized()
        if grant.expires_ms is not None and grant.expires_ms <= self._clock.now_ms():
            raise unauthorized()
        grant.require(scope, key)
        if len(self._verdicts) >= ACCESS_VERDICTS_CACHED:
            self._verdicts.clear()
        self._verdicts[header, key, scope] = grant
        return grant

    def _find(self, header: bytes) -> Grant | None:
        """Whose key this is."""
        sent = read_header(header)
        if sent is None:
            return None
        is_own = sent.key_id == self._own.key_id
        stored = self._own if is_own else self._keys.by_id.get(sent.key_id)
        is_right = hmac.compare_digest(sent.digest, stored.digest if stored else _NO_DIGEST)
        if stored is None or not is_right:
            return None
        grant = self._grants.get(stored.key_id)
        if grant is None:
            grant = self._grants[stored.key_id] = grant_of(stored)
        if len(self._by_header) >= ACCESS_GRANTS_CACHED:
            self._by_header.clear()
        self._by_header[header] = grant
        return grant

    def _keys_changed(self) -> None:
        """Within `apply`: who asks next is answered by the keys there are now. Reads that are open
        hear of it right afterwards, each for itself: what goes wrong there must not stop `apply`.
        """
        self._by_header.clear()
        self._verdicts.clear()
        gone = [
            key_id
            for key_id in self._grants
            if key_id not in self._keys.by_id and key_id != self._own.key_id
        ]
        for key_id in gone:
            for read in self._grants.pop(key_id).revoke():
                self._call_soon(read.revoked)
        self.on_change()


def grant_of(key: AccessKey) -> Grant:
    """A scope that makes no sense allows nothing."""
    rules = []
    for text in key.scopes:
        with contextlib.suppress(InvalidRequest):
            rules.append(parse_rule(text))
    return Grant(key.key_id, rules, key.expires_ms)


def _nothing() -> None:
    pass
