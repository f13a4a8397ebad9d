"""Which address has which routes. The server here binds nothing: it notes what it is asked."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, cast

import pytest

from millstream.api.app import Gate
from millstream.clock import ManualClock
from millstream.config import Config
from millstream.errors import StartupError
from millstream.http.refusals import Refusal
from millstream.http.server import Listener, Server
from millstream.listening import Doors, Urls
from tests.unit.api.test_routes import CALLS, TABLE, asked


class FakeServer:
    def __init__(self, taken: tuple[str, int] | None = None) -> None:
        self.opened: dict[str, tuple[Listener, bool]] = {}
        self.taken = taken

    async def listen(
        self, host: str, port: int, tls: ssl.SSLContext | None, listener: Listener
    ) -> tuple[str, int]:
        if (host, port) == self.taken:
            raise OSError(98, "Address already in use")
        self.opened[f"{host}:{port}"] = (listener, tls is not None)
        return host, port

    def answers(self, address: str, path: bytes) -> str:
        """`yes`, or why not."""
        CALLS.clear()
        request = asked(b"GET", path)
        self.opened[address][0].handler(request.request)
        return "yes" if CALLS else request.answer[2].decode()

    def lets_in(self, address: str, host: bytes) -> bool:
        try:
            self.opened[address][0].pages.judge(b"GET", host, None)
        except Refusal:
            return False
        return True


def opened(
    server: FakeServer, *, gate: Gate | None = None, tls: object = None, **settings: Any
) -> Urls:
    doors = Doors(cast(Server, server), TABLE, Config(**settings), ManualClock(), gate)
    return asyncio.run(doors.open(cast("ssl.SSLContext | None", tls)))


def keys_guard(request: object, scope: object, key: object, /) -> None:
    """Lets every request pass."""


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "[::1]:1", "localhost:1", "127.9.9.9:1"])
def test_on_loopback_one_address_has_everything(listen: str) -> None:
    server = FakeServer()
    urls = opened(server, listen=listen)
    ((address, (_, has_tls)),) = server.opened.items()
    assert urls == (f"http://{listen}", f"http://{listen}")
    assert not has_tls
    for path in (b"/metrics", b"/v1/stream/a", b"/__ursula/metrics", b"/bucket"):
        assert server.answers(address, path) == "yes"
    assert server.lets_in(address, b"localhost")
    assert not server.lets_in(address, b"evil.example")


def test_off_loopback_operators_have_an_address_on_loopback() -> None:
    server = FakeServer()
    urls = opened(server, listen="0.0.0.0:4437")
    assert urls == ("http://0.0.0.0:4437", "http://127.0.0.1:4438")
    for path in (b"/metrics", b"/__millstream/garbage", b"/__ursula/x", b"/__anything"):
        assert "http://127.0.0.1:4438" in server.answers("0.0.0.0:4437", path)
        assert "--admin-listen" in server.answers("0.0.0.0:4437", path)
    assert server.answers("127.0.0.1:4438", b"/metrics") == "yes"
    assert server.answers("0.0.0.0:4437", b"/v1/stream/a") == "yes"
    assert "0.0.0.0:4437" in server.answers("127.0.0.1:4438", b"/v1/stream/a")
    for address in server.opened:
        assert server.answers(address, b"/readyz") == "yes"


def test_off_loopback_any_host_is_let_in_until_some_are_given() -> None:
    server = FakeServer()
    opened(server, listen="0.0.0.0:1")
    assert server.lets_in("0.0.0.0:1", b"evil.example")
    assert not server.lets_in("127.0.0.1:4438", b"evil.example")
    opened(server, listen="10.0.0.7:1", allowed_host=("streams.example.org",))
    for host in (b"streams.example.org", b"10.0.0.7:1", b"localhost"):
        assert server.lets_in("10.0.0.7:1", host)
    assert not server.lets_in("10.0.0.7:1", b"evil.example")


def test_heads_that_one_address_let_in_are_not_known_at_the_other() -> None:
    server = FakeServer()
    opened(server, listen="0.0.0.0:1")
    one, other = (listener for listener, _ in server.opened.values())
    assert one.known_heads is not other.known_heads
    assert one.pages.known_hosts is not other.pages.known_hosts


def test_an_address_for_operators_can_be_chosen() -> None:
    server = FakeServer()
    urls = opened(server, listen="0.0.0.0:1", admin_listen="0.0.0.0:9")
    assert urls.operators == "http://127.0.0.1:9"
    assert server.answers("0.0.0.0:9", b"/metrics") == "yes"


def test_the_address_for_operators_has_the_certificate_only_where_others_can_connect() -> None:
    server = FakeServer()
    urls = opened(server, tls=object(), listen="0.0.0.0:1")
    assert urls == ("https://0.0.0.0:1", "http://127.0.0.1:4438")
    assert [has_tls for _, has_tls in server.opened.values()] == [False, True]
    urls = opened(server, tls=object(), listen="0.0.0.0:1", admin_listen="10.0.0.7:9")
    assert urls.operators == "https://10.0.0.7:9"


def test_with_keys_operators_use_the_address_of_the_clients() -> None:
    server = FakeServer()
    urls = opened(server, gate=keys_guard, listen="0.0.0.0:1")
    assert urls.operators == "http://127.0.0.1:1"
    assert list(server.opened) == ["0.0.0.0:1"]
    assert server.answers("0.0.0.0:1", b"/metrics") == "yes"


@pytest.mark.parametrize(
    ("taken", "setting"), [(("127.0.0.1", 4438), "--admin-listen"), (("0.0.0.0", 1), "--listen")]
)
def test_an_address_that_is_taken_is_told_with_its_setting(
    taken: tuple[str, int], setting: str
) -> None:
    with pytest.raises(StartupError, match=f"in use by another program; choose another {setting}"):
        opened(FakeServer(taken), listen="0.0.0.0:1")
