"""Which webhook URLs are acceptable, and which addresses a webhook may be sent to.

A webhook makes the server call an address of somebody else's choice, so it must not reach what
only the server can reach. Plain http is for a receiver on the same machine; everything else is
https to a public address. Names are judged twice: here, as they are written, and again by every
address they resolve to.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from millstream.errors import WebhookUrlRejected

URL_BYTES_MAX = 2048

Address = IPv4Address | IPv6Address

_PRINTABLE = re.compile(r"[!-~]+")
_HOST_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LOCAL = IPv4Network("127.0.0.0/24")
_LOOPBACK = IPv4Network("127.0.0.0/8")
_TRANSLATED = IPv6Network("64:ff9b::/96")  # NAT64: the last four bytes are an IPv4 address
_METADATA = frozenset((IPv4Address("168.63.129.16"),))  # a cloud's, in public space
_METADATA_NAMES = frozenset(("metadata.google.internal", "metadata"))


class WebhookTarget(NamedTuple):
    is_tls: bool
    host: str  # in lower case, without brackets and the root's dot
    port: int
    path: str  # with the query
    authority: str  # what the Host header says

    @property
    def is_local(self) -> bool:
        """A receiver on the same machine, the one use of plain http."""
        return not self.is_tls


def parse_webhook_url(url: str) -> WebhookTarget:
    """Raises WebhookUrlRejected, also for a host that is an address not to be reached."""
    if len(url) > URL_BYTES_MAX or not _PRINTABLE.fullmatch(url) or "\\" in url:
        raise WebhookUrlRejected(
            f"webhook.url must be at most {URL_BYTES_MAX} plain ASCII characters"
        )
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").removesuffix("."), parts.port
    except ValueError:
        raise WebhookUrlRejected("webhook.url is not a valid URL") from None
    if parts.username is not None or parts.password is not None:
        raise WebhookUrlRejected("webhook.url must not carry a user name or password")
    if not host or port == 0:
        raise WebhookUrlRejected("webhook.url must name a host")
    if parts.scheme not in ("http", "https"):
        raise WebhookUrlRejected("webhook.url must use https")
    is_tls = parts.scheme == "https"
    _judge_host(host, is_tls)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebhookTarget(is_tls, host, port or (443 if is_tls else 80), path, parts.netloc)


def _judge_host(host: str, is_tls: bool) -> None:
    address = _parse_address(host)
    if not is_tls:
        if host != "localhost" and not (isinstance(address, IPv4Address) and address in _LOCAL):
            raise WebhookUrlRejected("plain http is only for localhost and 127.0.0.x; use https")
    elif address is not None:
        if not is_public(address):
            raise WebhookUrlRejected("webhook.url must not be a private or local address")
    elif not _HOST_NAME.fullmatch(host):
        raise WebhookUrlRejected("webhook.url has no valid host name")
    elif _NUMBER.fullmatch(host.rpartition(".")[2]):
        raise WebhookUrlRejected("webhook.url must spell an address as four decimal numbers")
    elif host == "localhost" or host.endswith(".localhost") or host in _METADATA_NAMES:
        raise WebhookUrlRejected("webhook.url must not name this machine; use http for localhost")


def _parse_address(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_allowed(target: WebhookTarget, address: Address) -> bool:
    """Whether a webhook may be sent to this address, one of those its host resolved to."""
    if target.is_local:
        return address == IPv6Address("::1") or (
            isinstance(address, IPv4Address) and address in _LOOPBACK
        )
    return is_public(address)


def is_public(address: Address) -> bool:
    """Whether anybody on the internet could reach it, whatever way it is written."""
    if isinstance(address, IPv6Address):
        if getattr(address, "scope_id", None):
            return False
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _TRANSLATED:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.teredo is not None or address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and address not in _METADATA
