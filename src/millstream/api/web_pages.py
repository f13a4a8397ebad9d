"""Which web pages may use the server. A page is code of strangers that runs on our users' machines,
and its browser reaches what they reach.

Host: a page whose name was made to point here (DNS rebinding) counts as our own page for its
browser, but its requests name its own host, so only names that are ours are let in. Origin: a page
of an origin that is not allowed gets no CORS headers, so that its browser keeps answers from it,
and its requests change nothing: a browser sends simple ones without asking first.
docs/decisions/0025-web-pages-and-hosts.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from millstream.addresses import ANY, host_name, is_loopback, split_origin
from millstream.api.cors import page_headers
from millstream.clock import Clock
from millstream.http.refusals import Refusal

KNOWN_MAX = 1024  # hosts, and origins, that are remembered
LOG_MS = 60_000  # between two log lines
SHOWN_CHARACTERS_MAX = 200

_CHANGES_NOTHING = (b"GET", b"HEAD", b"OPTIONS")

logger = structlog.get_logger("millstream")


class WebPages:
    """The rules of one listening address. They are asked once for every host and origin that is
    let in, and remembered: see `known_hosts` and http/known_heads.py."""

    def __init__(
        self,
        clock: Clock,
        *,
        hosts: Sequence[str] | None,
        origins: Sequence[str] | None,
        is_https: bool = False,
    ) -> None:
        """`hosts` beside loopback; None: any. `origins` beside our own; None: those of loopback."""
        self._clock = clock
        self._names = frozenset(hosts or ())
        self._takes_any_host = hosts is None or ANY in hosts
        self._origins = None if origins is None else frozenset(origins)
        self._own_schemes = ("https",) if is_https else ("http", "https")  # a proxy may have TLS
        self.is_open = origins is not None and ANY in origins
        self.known_hosts: set[bytes] = set()
        self._known_origins: dict[tuple[bytes, bytes | None], bytes] = {}
        self._next_log_ms = 0

    def judge(self, method: bytes, host: bytes | None, origin: bytes | None) -> bytes:
        """Headers that the answer needs for the page that asks. Raises Refusal."""
        if host is not None and host not in self.known_hosts:
            self._admit_host(host)
        if origin is None or self.is_open:
            return b""
        known = self._known_origins.get((origin, host))
        return self._judge_origin(method, host, origin) if known is None else known

    def _admit_host(self, host: bytes) -> None:
        name = host_name(host.decode("latin-1"))
        if not (self._takes_any_host or is_loopback(name) or self._is_ours(name)):
            shown = _shown(host)
            self._log("a request for another host was refused; --allowed-host allows it", shown)
            raise Refusal(
                421,
                "host_not_allowed",
                f"this server is not {shown}: use one of its own names, or start it with "
                f"--allowed-host {name or 'NAME'}",
            )
        if len(self.known_hosts) >= KNOWN_MAX:
            self.known_hosts.clear()
        self.known_hosts.add(host)

    def _is_ours(self, name: str) -> bool:
        while name:
            if name in self._names:
                return True
            name = name.removeprefix("*.").partition(".")[2]
            name = f"*.{name}" if name else ""
        return False

    def _judge_origin(self, method: bytes, host: bytes | None, origin: bytes) -> bytes:
        if self._is_allowed(origin, host):
            if len(self._known_origins) >= KNOWN_MAX:
                self._known_origins.clear()
            headers = self._known_origins[origin, host] = page_headers(origin)
            return headers
        shown = _shown(origin)
        self._log("a web page of another origin was kept out; --cors-origin lets it in", shown)
        if method not in _CHANGES_NOTHING:
            raise Refusal(
                403,
                "origin_not_allowed",
                f"web pages of {shown} may change nothing here; --cors-origin names those that may",
            )
        return b""

    def _is_allowed(self, origin: bytes, host: bytes | None) -> bool:
        text = origin.decode("latin-1").lower()
        scheme, authority = split_origin(text)
        own = None if host is None else host.decode("latin-1").lower()
        if authority == own and scheme in self._own_schemes:
            return True
        if self._origins is not None:
            return text in self._origins
        return scheme in ("http", "https") and is_loopback(host_name(authority))

    def _log(self, message: str, shown: str) -> None:
        now_ms = self._clock.now_ms()
        if now_ms >= self._next_log_ms:
            self._next_log_ms = now_ms + LOG_MS
            logger.warning(message, asked_by=shown)


def _shown(value: bytes) -> str:
    return value[:SHOWN_CHARACTERS_MAX].decode("latin-1")
