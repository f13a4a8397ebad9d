"""The server's own streams, as clients may use them: they read, and do nothing else.

The names are reserved whether or not the server keeps such a stream.
"""

from __future__ import annotations

from millstream.access.gate import Grant, refusal
from millstream.access.scopes import Scope
from millstream.api.routing import Action
from millstream.errors import SystemStream
from millstream.http.message import Request
from millstream.protocol.patterns import text_of
from millstream.state.system_streams import SYSTEM_KEYS


def check_use(request: Request, action: Action, key: bytes) -> None:
    """For a request about a system stream. Raises SystemStream, or Forbidden for a key that may
    not read all streams: these tell of all of them."""
    if action.scope is not Scope.READ:
        raise read_only(key)
    grant: Grant | None = request.grant
    if grant is not None and not grant.allows_everything(Scope.READ):
        raise refusal(Scope.READ)


def refuse_system(key: bytes | None) -> None:
    """For other streams that a request means to write to, or to fork. Raises SystemStream."""
    if key in SYSTEM_KEYS:
        assert key is not None
        raise read_only(key)


def read_only(key: bytes) -> SystemStream:
    return SystemStream(f"{text_of(key)} is the server's own stream: it can only be read")
