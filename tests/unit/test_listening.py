"""Which address has which routes. The server here binds nothing: it notes what it is asked."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

import pytest

from millstream.access.gate import Gate
from millstream.clock import ManualClock
from millstream.config import Config
from millstream.errors import StartupError
from millstream.http.refusals import Refusal
from millstream.http.server import Listener, Server
from millstream.listening import Doors, Urls, _is_on_loopback
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


class FakeGate:
    """Lets every request pass."""

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = self.has_keys = is_on
        self.on_change: Callable[[], None] = lambda: None
        self.heard = 0

    def check(self, request: object, scope: object, key: object) -> None:
        self.heard += 1


def opened(
    server: FakeServer, *, gate: FakeGate | None = None, tls: object = None, **settings: Any
) -> Urls:
    settings.setdefault("insecure_open", True)
    gate = gate or FakeGate(is_on=False)
    doors = Doors(cast(Server, server), TABLE, Config(**settings), ManualClock(), cast(Gate, gate))
    return asyncio.run(doors.open(cast("ssl.SSLContext | None", tls)))


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
    urls = opened(server, gate=FakeGate(is_on=True), insecure_open=False, listen="0.0.0.0:1")
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


@pytest.mark.parametrize(
    ("listen", "is_loopback"),
    [
        ("127.0.0.1:0", True),
        ("127.8.8.8:0", True),
        ("[::1]:0", True),
        ("localhost:0", True),
        ("0.0.0.0:0", False),
        ("[::]:0", False),
        ("10.0.0.5:0", False),
        ("example.org:0", False),
    ],
)
def test_only_addresses_of_this_machine_are_loopback(listen: str, is_loopback: bool) -> None:
    assert asyncio.run(_is_on_loopback(listen)) is is_loopback


@pytest.mark.parametrize(
    "settings",
    [
        {"listen": "0.0.0.0:1"},
        {"listen": "10.0.0.7:1"},
        {"listen": "127.0.0.1:1", "admin_listen": "0.0.0.0:9"},
    ],
)
def test_a_server_for_other_machines_without_keys_does_not_start(
    settings: dict[str, Any],
) -> None:
    server = FakeServer()
    with pytest.raises(StartupError, match="--insecure-open"):
        opened(server, insecure_open=False, **settings)
    assert not server.opened
    opened(server, gate=FakeGate(is_on=True), insecure_open=False, **settings)
    assert server.opened


def test_the_first_key_closes_the_doors_while_the_server_runs() -> None:
    server, gate = FakeServer(), FakeGate(is_on=False)
    opened(server, gate=gate, listen="127.0.0.1:1")
    assert server.answers("127.0.0.1:1", b"/metrics") == "yes"
    assert gate.heard == 0
    gate.is_on = True
    gate.on_change()
    assert server.answers("127.0.0.1:1", b"/metrics") == "yes"
    assert gate.heard == 1
