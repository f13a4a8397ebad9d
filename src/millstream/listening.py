"""Which addresses the server listens on, what is answered there, and which web pages are let in.

Operators' routes are on the address for clients as long as that is on loopback, or keys guard it;
else they are on an address of their own: what they can do is not for every client that can connect.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from typing import NamedTuple
from urllib.parse import urlsplit

import structlog

from millstream.access.gate import Gate
from millstream.addresses import host_name, is_loopback
from millstream.api.app import App, Part
from millstream.api.routing import RouteTable
from millstream.api.web_pages import WebPages
from millstream.clock import Clock
from millstream.config import Config, split_listen
from millstream.errors import StartupError
from millstream.http.server import Listener, Server

ADMIN_LISTEN = "127.0.0.1:4438"  # for operators, when clients come from elsewhere

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}

logger = structlog.get_logger("millstream")


class Urls(NamedTuple):
    """Where the server is reached: by clients, and by the pipeline beside it for its jobs."""

    clients: str
    operators: str


class Doors:
    """Opens the addresses that the settings ask for."""

    def __init__(
        self,
        server: Server,
        table: RouteTable,
        config: Config,
        clock: Clock,
        gate: Gate,
    ) -> None:
        self._server = server
        self._table = table
        self._config = config
        self._clock = clock
        self._gate = gate
        self._apps: list[App] = []
        gate.on_change = self._guard

    def _guard(self) -> None:
        """The first key closes the doors: from then on every request needs one."""
        for app in self._apps:
            app.gate = self._gate if self._gate.is_on else None

    async def open(self, tls: ssl.SSLContext | None) -> Urls:
        """Raises StartupError when an address cannot be had, or is open to others by mistake."""
        config = self._config
        is_private = await _is_on_loopback(config.listen)
        has_all = is_private or self._gate.is_on
        admin_listen = config.admin_listen or ("" if has_all else ADMIN_LISTEN)
        is_admin_private = not admin_listen or await _is_on_loopback(admin_listen)
        _check_access(config, self._gate, is_private=is_private and is_admin_private)
        operators = ""
        if admin_listen:
            operators = await self._open_admin(admin_listen, tls)
            logger.info("operators' routes have an address of their own", url=operators)
        elsewhere = f"operators' routes are at {operators}, which --admin-listen chooses"
        part = Part.ALL if has_all else Part.CLIENTS
        app = self._app(part, elsewhere)
        url, reachable = await self._open(config.listen, "--listen", app, is_private, tls)
        return Urls(url, operators or reachable)

    def _app(self, part: Part, elsewhere: str) -> App:
        app = App(self._table, part, elsewhere)
        self._apps.append(app)
        self._guard()
        return app

    async def _open_admin(self, address: str, tls: ssl.SSLContext | None) -> str:
        is_private = await _is_on_loopback(address)
        elsewhere = f"this address is for operators; streams are at {self._config.listen}"
        app = self._app(Part.OPERATORS, elsewhere)
        # A certificate is for the name that clients know; what stays on this machine needs none.
        own_tls = None if is_private else tls
        _, reachable = await self._open(address, "--admin-listen", app, is_private, own_tls)
        return reachable

    async def _open(
        self, address: str, setting: str, app: App, is_private: bool, tls: ssl.SSLContext | None
    ) -> tuple[str, str]:
        """The URL of the address, and that by which this machine reaches it."""
        host, port = split_listen(address)
        listener = Listener(app.handle, self._pages(host, is_private, tls is not None))
        try:
            host, port = await self._server.listen(host, port, tls, listener)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise StartupError(
                    f"{address} is in use by another program; choose another {setting}"
                ) from error
            raise StartupError(
                f"cannot listen on {address} ({setting}): {error.strerror or error}"
            ) from error
        scheme = "http" if tls is None else "https"
        return _url(scheme, host, port), _url(scheme, _EVERYWHERE.get(host, host), port)

    def _pages(self, host: str, is_private: bool, is_https: bool) -> WebPages:
        """A network that others are in has names that we do not know, until we are told."""
        config = self._config
        hosts = None
        if is_private or config.allowed_host:
            own = f"[{host}]" if ":" in host else host.lower()
            hosts = (*(config.allowed_host or ()), own, *_names(config.public_url))
        return WebPages(self._clock, hosts=hosts, origins=config.cors_origin, is_https=is_https)


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _names(public_url: str) -> list[str]:
    """The host that a proxy passes on."""
    return [host_name(urlsplit(public_url).netloc)] if public_url else []


def _check_access(config: Config, gate: Gate, *, is_private: bool) -> None:
    """Raises StartupError rather than to be open to other machines by mistake."""
    address = " ".join(filter(None, (config.listen, config.admin_listen)))
    if gate.is_on:
        if not gate.has_keys:
            logger.warning(
                "no key is good here, so every request gets 401; stop the server and run "
                "`millstream key create --data-dir DIR --scope admin`"
            )
    elif not is_private and not config.insecure_open:
        raise StartupError(
            f"{address} can be reached from other machines and there is no access control. "
            "Make a key first (`millstream key create --data-dir DIR --scope admin`), listen on "
            "127.0.0.1 only, or say --insecure-open: then all who reach the address may read, "
            "write and delete everything"
        )
    elif not is_private:
        logger.warning(
            "--insecure-open: all who reach this address may read, write and delete everything",
            listen=address,
        )
    elif gate.has_keys:
        logger.warning("--access off: there are keys, and requests need none of them")


async def _is_on_loopback(address: str) -> bool:
    """Whether only this machine can connect: a name may stand for more than one address."""
    host, _ = split_listen(address)
    if is_loopback(host):
        return True
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None)
    except OSError:
        return False  # to listen there will fail, and say why
    return all(is_loopback(str(place[4][0])) for place in found)
