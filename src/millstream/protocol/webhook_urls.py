"""Which webhook URLs are acceptable, and which addresses a webhook may be sent to.

A webhook makes the server call an address that a client chose, so it must not reach what only the
server can reach: https to public addresses, and nothing else. Receivers on the same machine or in
a private network, and plain http, are for those that the operator names (`--webhook-allow`). Names
are judged twice: here, as they are written, and again by every address they resolve to.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import NamedTuple
from urllib.parse import urlsplit

from millstream.errors import WebhookUrlRejected

URL_BYTES_MAX = 2048

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_PRINTABLE = re.compile(r"[!-~]+")
_HOST_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_ALLOWED = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]/]+):([0-9]{1,5})")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LOOPBACKS: tuple[Network, ...] = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))
_TRANSLATED = IPv6Network("64:ff9b::/96")  # NAT64: the last four bytes are an IPv4 address
_METADATA = frozenset((IPv4Address("168.63.129.16"),))  # a cloud's, in public space
_METADATA_NAMES = frozenset(("metadata.google.internal", "metadata"))


class WebhookTarget(NamedTuple):
    is_tls: bool
    host: str  # in lower case, without brackets and the root's dot
    port: int
    path: str  # with the query
    authority: str  # what the Host header says


class _Allowed(NamedTuple):
    """A name or a network, at one port or at any."""

    name: str | None
    network: Network | None
    port: int | None

    def fits_port(self, port: int) -> bool:
        return self.port is None or self.port == port


class AllowedReceivers:
    """Receivers that the operator trusts wherever they are, over plain http too."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        """Hosts, host:port and networks such as 10.0.0.0/8. Raises ValueError for anything else."""
        self._allowed = tuple(_parse_allowed(text.strip().lower()) for text in texts)

    def has_name(self, target: WebhookTarget) -> bool:
        """The name itself is trusted: whatever it resolves to."""
        return any(
            allowed.name == target.host and allowed.fits_port(target.port)
            for allowed in self._allowed
        )

    def has_address(self, target: WebhookTarget, address: Address) -> bool:
        return any(_is_within(address, network) for network in self._networks(target))

    def may_have(self, target: WebhookTarget) -> bool:
        """Whether a name could resolve to an address that is in."""
        if target.host == "localhost":
            return any(
                network.overlaps(other)
                for network in self._networks(target)
                for other in _LOOPBACKS
                if network.version == other.version
            )
        return bool(self._networks(target))

    def _networks(self, target: WebhookTarget) -> list[Network]:
        return [
            allowed.network
            for allowed in self._allowed
            if allowed.network is not None and allowed.fits_port(target.port)
        ]


def _parse_allowed(text: str) -> _Allowed:
    with_port = _ALLOWED.fullmatch(text)
    host, port = (with_port[1], int(with_port[2])) if with_port else (text, None)
    host = host.strip("[]").removesuffix(".")
    if port is None or 0 < port < 65536:
        with contextlib.suppress(ValueError):
            return _Allowed(None, ip_network(host), port)
        if _HOST_NAME.fullmatch(host) and not _NUMBER.fullmatch(host.rpartition(".")[2]):
            return _Allowed(host, None, port)
    raise ValueError(
        f"{text!r} is no host, host:port or network such as localhost, 10.0.0.7:8080 or 10.0.0.0/8"
    )


def _is_within(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network


NONE_ALLOWED = AllowedReceivers()


def parse_webhook_url(url: str, allowed: AllowedReceivers = NONE_ALLOWED) -> WebhookTarget:
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
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    target = WebhookTarget(is_tls, host, port or (443 if is_tls else 80), path, parts.netloc)
    _judge_host(target, allowed)
    return target


def _judge_host(target: WebhookTarget, allowed: AllowedReceivers) -> None:
    host, address = target.host, _parse_address(target.host)
    if address is not None:
        check_address(target, address, allowed)
        return
    if not _HOST_NAME.fullmatch(host):
        raise WebhookUrlRejected("webhook.url has no valid host name")
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        raise WebhookUrlRejected("webhook.url must spell an address as four decimal numbers")
    if allowed.has_name(target):
        return
    if host in _METADATA_NAMES or host.endswith(".localhost"):
        raise WebhookUrlRejected(f"webhook.url must not name {host}")
    is_private = host == "localhost" or not target.is_tls
    if is_private and not allowed.may_have(target):
        raise WebhookUrlRejected(_advice(target, host))


def _parse_address(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def check_address(target: WebhookTarget, address: Address, allowed: AllowedReceivers) -> None:
    """One that its host is, or resolved to. Raises WebhookUrlRejected if it may not be called."""
    if allowed.has_name(target) or allowed.has_address(target, address):
        return
    if target.host == "localhost" and allowed.may_have(target):
        # It often resolves to 127.0.0.1 and to ::1, and the operator spoke of one of them.
        if any(_is_within(address, network) for network in _LOOPBACKS):
            return
    elif target.is_tls and is_public(address):
        return
    raise WebhookUrlRejected(_advice(target, address))


def _advice(target: WebhookTarget, place: str | Address) -> str:
    if not target.is_tls:
        problem = f"plain http to {place} is not allowed; use https, or"
    elif str(place) == target.host:
        problem = f"{place} is not public;"
    else:
        problem = f"{target.host} resolves to {place}, which is not public;"
    return f"{problem} start the server with --webhook-allow {place} to let webhooks go there"


def is_public(address: Address) -> bool:
    """Whether it can be reached from all of the internet, whatever way it is written."""
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
