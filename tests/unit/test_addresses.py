from __future__ import annotations

import pytest

from millstream.addresses import parse_hosts, parse_origins


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("a.example", ("a.example",)),
        (
            " A.example , *.b.example,[FD00::1],10.0.0.1, *,",
            ("a.example", "*.b.example", "[fd00::1]", "10.0.0.1", "*"),
        ),
        ("a.example.", ("a.example",)),
    ],
)
def test_hosts(text: str, hosts: tuple[str, ...]) -> None:
    assert parse_hosts(text) == hosts


@pytest.mark.parametrize(
    "text", ["a:80", "http://a", "a/b", "a.*", "**", "*a", "a b", "fd00::1", "!"]
)
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a host"):
        parse_hosts(text)


@pytest.mark.parametrize(
    ("text", "origins"),
    [
        ("", ()),
        ("*", ("*",)),
        (
            "HTTPS://App.example:443/, http://b:80,http://c:8080",
            ("https://app.example", "http://b", "http://c:8080"),
        ),
        (
            "chrome-extension://abc,tauri://localhost",
            ("chrome-extension://abc", "tauri://localhost"),
        ),
    ],
)
def test_origins(text: str, origins: tuple[str, ...]) -> None:
    assert parse_origins(text) == origins


@pytest.mark.parametrize(
    "text", ["null", "app.example", "https://", "https://a/b", "https://*.a", "//a", "!"]
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an origin"):
        parse_origins(text)
