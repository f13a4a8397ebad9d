from __future__ import annotations

import pytest
import structlog

from millstream.api.web_pages import KNOWN_MAX, LOG_MS, WebPages
from millstream.clock import ManualClock
from millstream.http.refusals import Refusal

HOST = b"localhost:4437"
CHANGES = [b"POST", b"PUT", b"DELETE", b"PATCH", b"PROPFIND"]


def rules(*hosts: str, origins: tuple[str, ...] | None = None, is_https: bool = False) -> WebPages:
    return WebPages(ManualClock(), hosts=hosts, origins=origins, is_https=is_https)


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:4437", "LOCALHOST:1", "a.localhost:80", "a.b.localhost"),
        *("localhost.", "127.0.0.1", "127.0.0.1:4437", "127.8.9.1:1", "[::1]", "[::1]:4437"),
        *("box", "box:80", "BOX", "streams.example.org", "streams.example.org.:4437"),
        *("a.sub.example.org", "x.y.sub.example.org:1", "[fd00::1]:4437"),
    ],
)
def test_hosts_that_are_ours_are_let_in_and_remembered(host: str) -> None:
    pages = rules("box", "streams.example.org", "*.sub.example.org", "[fd00::1]")
    assert pages.judge(b"POST", host.encode(), None) == b""
    assert host.encode() in pages.known_hosts


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:4437",
            "localhost.evil.example",
            "xlocalhost",
            "localhostx",
        ),
        *("127.0.0.1.evil.example", "0.0.0.0:4437", "10.0.0.1", "[::2]", "[::]", "", ":4437"),
        *("127.0.0.1@evil.example", "evil.example#localhost", "example.org", "sub.example.org"),
        *("localhost/", "localhost:4437:1", "[::1", "box.evil.example", "a b", "\xff"),
    ],
)
def test_other_hosts_are_refused_with_the_setting_that_would_let_them_in(host: str) -> None:
    pages = rules("box", "streams.example.org", "*.sub.example.org")
    for method in (b"GET", b"POST", b"OPTIONS"):
        with pytest.raises(Refusal, match="--allowed-host") as refused:
            pages.judge(method, host.encode("latin-1"), None)
        assert (refused.value.status, refused.value.code) == (421, "host_not_allowed")
    assert not pages.known_hosts


def test_a_request_without_host_is_of_no_browser() -> None:
    assert rules().judge(b"POST", None, None) == b""


def test_any_host_will_do_where_names_are_not_known() -> None:
    pages = WebPages(ManualClock(), hosts=None, origins=None)
    assert pages.judge(b"POST", b"anything.example", None) == b""
    assert rules("*").judge(b"POST", b"anything.example", None) == b""


def test_the_memory_is_bounded() -> None:
    pages = WebPages(ManualClock(), hosts=None, origins=None)
    remembered = pages.known_hosts
    for number in range(KNOWN_MAX + 5):
        pages.judge(b"GET", b"h%d" % number, b"http://localhost:%d" % number)
        assert len(pages.known_hosts) <= KNOWN_MAX
        assert len(pages._known_origins) <= KNOWN_MAX
    assert pages.known_hosts is remembered  # readers hold on to it


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        (HOST, "http://localhost:4437"),
        (HOST, "http://localhost:3000"),
        (HOST, "https://localhost"),
        (HOST, "http://127.0.0.1:5173"),
        (HOST, "http://[::1]:5173"),
        (HOST, "http://app.localhost"),
        (b"Box:4437", "http://box:4437"),
        (b"box", "https://box"),  # a proxy has the certificate
    ],
)
def test_our_own_pages_and_those_of_loopback_may_do_everything(host: bytes, origin: str) -> None:
    pages = rules("box")
    for method in (b"GET", b"OPTIONS", *CHANGES):
        headers = pages.judge(method, host, origin.encode())
        assert headers.startswith(f"access-control-allow-origin: {origin}\r\n".encode())


@pytest.mark.parametrize(
    "origin",
    [
        *("http://evil.example", "https://evil.example:4437", "null", "", "file://", "*", "://"),
        *("http://localhost.evil.example", "http://evil.example/localhost", "localhost:4437"),
        *("http://localhost:4437, http://localhost:4437", "http://localhost@evil.example"),
        *("ftp://localhost", "chrome-extension://localhost", "http://box:4438"),
    ],
)
def test_pages_of_other_origins_read_nothing_and_change_nothing(origin: str) -> None:
    pages = rules("box")
    for method in (b"GET", b"HEAD", b"OPTIONS"):
        assert pages.judge(method, b"box:4437", origin.encode()) == b""
    for method in CHANGES:
        with pytest.raises(Refusal, match="--cors-origin") as refused:
            pages.judge(method, b"box:4437", origin.encode())
        assert (refused.value.status, refused.value.code) == (403, "origin_not_allowed")


def test_origins_that_are_given_stand_in_for_those_of_loopback() -> None:
    pages = rules("box", origins=("https://app.example.org",))
    assert pages.judge(b"POST", HOST, b"https://app.example.org")
    assert pages.judge(b"POST", HOST, b"http://localhost:4437")  # its own
    for origin in (
        b"http://localhost:3000",
        b"http://app.example.org",
        b"https://app.example.org:1",
    ):
        with pytest.raises(Refusal):
            pages.judge(b"POST", HOST, origin)


def test_no_origin_at_all_leaves_our_own_pages() -> None:
    pages = rules(origins=())
    assert pages.judge(b"POST", HOST, b"http://localhost:4437")
    with pytest.raises(Refusal):
        pages.judge(b"POST", HOST, b"http://localhost:3000")


def test_a_star_lets_all_pages_in_and_their_answers_are_like_all_others() -> None:
    pages = rules(origins=("*",))
    assert pages.is_open
    for origin in (b"https://evil.example", b"null"):
        assert pages.judge(b"POST", HOST, origin) == b""
    with pytest.raises(Refusal):
        pages.judge(b"POST", b"evil.example", b"http://evil.example")  # another matter


def test_with_a_certificate_of_our_own_a_page_without_one_is_not_ours() -> None:
    pages = rules("box", is_https=True)
    assert pages.judge(b"POST", b"box", b"https://box")
    with pytest.raises(Refusal):
        pages.judge(b"POST", b"box", b"http://box")


def test_the_log_tells_once_a_minute_how_to_let_a_page_in() -> None:
    clock = ManualClock()
    pages = WebPages(clock, hosts=(), origins=None)
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            pages.judge(b"GET", HOST, b"https://a.example")
        clock.advance(LOG_MS)
        with pytest.raises(Refusal):
            pages.judge(b"GET", b"b.example", None)
    assert [(line["asked_by"], line["log_level"]) for line in lines] == [
        ("https://a.example", "warning"),
        ("b.example", "warning"),
    ]
    assert "--cors-origin" in lines[0]["event"]
    assert "--allowed-host" in lines[1]["event"]
