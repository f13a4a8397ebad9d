from __future__ import annotations

from ipaddress import ip_address

import pytest

from millstream.errors import WebhookUrlRejected
from millstream.protocol.webhook_urls import is_allowed, is_public, parse_webhook_url

GOOD = [
    "https://hooks.example/in",
    "https://hooks.example.:8443/in?x=1",
    "HTTPS://Hooks.Example/",
    "https://93.184.216.34/in",
    "https://[2606:2800:220:1::1]/in",
    "http://localhost/in",
    "http://localhost:3000/in",
    "http://127.0.0.1:3000",
    "http://127.0.0.9/in",
]

BAD = [
    "",
    "hooks.example/in",
    "ftp://hooks.example/in",
    "file:///etc/passwd",
    "http://hooks.example/in",
    "http://10.0.0.1/hook",
    "http://127.1.0.1/",
    "http://127.1/",
    "http://[::1]/",
    "http://localhost.evil.example/",
    "https://localhost/",
    "https://a.localhost/",
    "https://127.0.0.1/",
    "https://10.0.0.1/",
    "https://172.16.0.1/",
    "https://192.168.1.1/",
    "https://169.254.169.254/latest/meta-data",
    "https://100.100.100.200/",
    "https://168.63.129.16/",
    "https://0.0.0.0/",
    "https://224.0.0.1/",
    "https://255.255.255.255/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0177.0.0.1/",
    "https://127.1/",
    "https://[::1]/",
    "https://[fe80::1]/",
    "https://[fe80::1%25eth0]/",
    "https://[fd00:ec2::254]/",
    "https://[::ffff:10.0.0.1]/",
    "https://[64:ff9b::a00:1]/",
    "https://[2002:a00:1::]/",
    "https://[::]/",
    "https://metadata.google.internal/",
    "https://user:secret@hooks.example/",
    "https://user@hooks.example/",
    "https:///in",
    "https://hooks.example:0/",
    "https://hooks.example:99999/",
    "https://hooks.example:x/",
    "https://hooks example/",
    "https://hooks.example/\r\nX: y",
    "https://hooks.example\\@10.0.0.1/",
    "https://h\u00f6oks.example/",
    "https://-hooks.example/",
    "https://hooks..example/",
    "https://hooks.example/" + "x" * 2048,
]


@pytest.mark.parametrize("url", GOOD)
def test_these_urls_are_taken(url: str) -> None:
    parse_webhook_url(url)


@pytest.mark.parametrize("url", BAD)
def test_these_urls_are_refused(url: str) -> None:
    with pytest.raises(WebhookUrlRejected):
        parse_webhook_url(url)


def test_a_target_is_what_the_url_says() -> None:
    assert parse_webhook_url("https://Hooks.Example:8443/a/b?c=d") == (
        True,
        "hooks.example",
        8443,
        "/a/b?c=d",
        "Hooks.Example:8443",
    )
    assert parse_webhook_url("http://127.0.0.1").port == 80
    assert parse_webhook_url("https://hooks.example").path == "/"


@pytest.mark.parametrize(
    ("url", "address", "expected"),
    [
        ("https://hooks.example/", "93.184.216.34", True),
        ("https://hooks.example/", "10.1.2.3", False),
        ("https://hooks.example/", "127.0.0.1", False),
        ("https://hooks.example/", "169.254.169.254", False),
        ("https://hooks.example/", "::1", False),
        ("https://hooks.example/", "::ffff:192.168.0.1", False),
        ("https://hooks.example/", "fe80::1%eth0", False),
        ("http://localhost/", "127.0.0.1", True),
        ("http://localhost/", "::1", True),
        ("http://localhost/", "93.184.216.34", False),
        ("http://localhost/", "10.0.0.1", False),
        ("http://localhost/", "::ffff:127.0.0.1", False),
    ],
)
def test_what_a_name_resolves_to_is_judged_too(url: str, address: str, expected: bool) -> None:
    assert is_allowed(parse_webhook_url(url), ip_address(address)) is expected


def test_a_public_address_stays_public_however_it_is_carried() -> None:
    assert is_public(ip_address("::ffff:93.184.216.34"))
    assert is_public(ip_address("64:ff9b::5db8:d822"))
    assert not is_public(ip_address("2001:0:5ef5:79fd::1"))
