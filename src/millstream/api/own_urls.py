"""How clients and workers reach this server, and whether a URL leads back to it."""

from __future__ import annotations

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

from millstream.http.message import Request
from millstream.protocol.webhook_urls import WebhookTarget

_HOST = re.compile(rb"[A-Za-z0-9._~-]+(:[0-9]+)?|\[[0-9A-Fa-f:.]+\](:[0-9]+)?")
_PORTS = {"http": 80, "https": 443}
_EVERYWHERE = ("0.0.0.0", "::")


class OwnUrls:
    """Absolute URLs begin with `public_url`; where that is empty, with what the request says."""

    def __init__(self, scheme: str, public_url: str = "") -> None:
        self.public_url = public_url
        self.listening: tuple[str, int] | None = None  # host and port, once they are known
        self._scheme = scheme

    def root(self, request: Request) -> str | None:
        """As the client reached us; None: it did not say how, or not in a way we repeat."""
        if self.public_url:
            return self.public_url
        host = request.headers.get(b"host", b"")
        return f"{self._scheme}://{host.decode()}" if _HOST.fullmatch(host) else None

    def leads_here(self, target: WebhookTarget, root: str) -> bool:
        """Whether a webhook to this target would come back to this server."""
        own = urlsplit(root)
        prefix = own.path.rstrip("/") + "/"
        if (own.hostname, own.port or _PORTS[own.scheme]) == (target.host, target.port):
            return target.path.startswith(prefix)
        return self._is_where_we_listen(target)

    def _is_where_we_listen(self, target: WebhookTarget) -> bool:
        if self.listening is None or target.port != self.listening[1]:
            return False
        host = self.listening[0]
        if target.host == "localhost" or _is_loopback(target.host):
            return host in _EVERYWHERE or _is_loopback(host)
        return host == target.host


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
