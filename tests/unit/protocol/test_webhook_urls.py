from __future__ import annotations

from ipaddress import ip_address

import pytest

from millstream.errors import WebhookUrlRejected
from millstream.protocol.webhook_urls import (
    AllowedReceivers,
    check_address,
    is_public,
    parse_webhook_url,
)

GOOD = [
    "https://hooks.example/in",
    "https://hooks.example.:8443/in?x=1",
    "HTTPS://Hooks.Example/",
    "https://93.184.216.34/in",
    "https://[2606:2800:220:1::1]/in",
]

BAD = [
    "",
    "hooks.example/in",
    "ftp://hooks.example/in",
    "file:///etc/passwd",
    "http://hooks.example/in",
    "http://93.184.216.34/in",
    "http://localhost/in",
    "http://localhost:3000/in",
    "http://127.0.0.1:3000",
    "http://127.0.0.9/in",
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
    assert parse_webhook_url("http://127.0.0.1", AllowedReceivers(["127.0.0.1"])).port == 80
    assert parse_webhook_url("https://hooks.example").path == "/"


LOOPBACK = ("127.0.0.0/8",)
HOUSE = ("10.0.0.0/8", "fd00::/8", "hooks.internal", "db:8080", "10.9.9.9:9000", "[::1]:7000")


@pytest.mark.parametrize(
    ("allowed", "url"),
    [
        (LOOPBACK, "http://127.0.0.1:3000/"),
        (LOOPBACK, "https://127.9.9.9/"),
        (LOOPBACK, "http://localhost:3000/"),
        (LOOPBACK, "https://localhost/"),
        (("localhost",), "http://localhost:3000/"),
        (("localhost:3000",), "http://localhost:3000/"),
        (HOUSE, "http://10.1.2.3/"),
        (HOUSE, "https://10.1.2.3/"),
        (HOUSE, "http://[fd00::7]/"),
        (HOUSE, "http://hooks.internal:1234/"),
        (HOUSE, "http://Hooks.Internal./"),
        (HOUSE, "http://db:8080/"),
        (HOUSE, "http://[::1]:7000/"),
        (HOUSE, "http://else.internal/"),  # it may resolve to 10.0.0.0/8
        (("169.254.169.254",), "http://169.254.169.254/"),  # if the operator really wants that
    ],
)
def test_what_the_operator_names_is_taken(allowed: tuple[str, ...], url: str) -> None:
    parse_webhook_url(url, AllowedReceivers(allowed))


@pytest.mark.parametrize(
    ("allowed", "url"),
    [
        (LOOPBACK, "http://10.0.0.1/"),
        (LOOPBACK, "http://[::1]/"),
        (LOOPBACK, "https://a.localhost/"),
        (("localhost:3000",), "http://localhost:3001/"),
        (("10.9.9.9:9000",), "http://10.9.9.9:9001/"),
        (("10.9.9.9:9000",), "http://10.9.9.8:9000/"),
        (("hooks.internal",), "http://else.internal/"),
        (("hooks.internal",), "https://10.0.0.1/"),
        (HOUSE, "https://192.168.0.1/"),
        (HOUSE, "http://localhost/"),
        (HOUSE, "https://metadata.google.internal/"),
        (HOUSE, "https://[::ffff:10.0.0.1]/"),
        (HOUSE, "http://93.184.216.34/"),
    ],
)
def test_and_nothing_else(allowed: tuple[str, ...], url: str) -> None:
    with pytest.raises(WebhookUrlRejected):
        parse_webhook_url(url, AllowedReceivers(allowed))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        "10.0.0.1/8",
        "10.0.0",
        "http://hooks.example",
        "hooks:0",
        "hooks:70000",
        "10.0.0.7:70000",
        "*",
    ],
)
def test_what_is_no_receiver_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/8"):
        AllowedReceivers([text])


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (
            "http://127.0.0.1:3000/",
            "use https, or start the server with --webhook-allow 127.0.0.1 ",
        ),
        ("http://hooks.example/", "use https, or start the server with --webhook-allow hooks.exam"),
        ("https://10.0.0.1/", "10.0.0.1 is not public; start the server with --webhook-allow 10."),
        ("https://localhost/", "localhost is not public; start the server with --webhook-allow l"),
    ],
)
def test_a_refusal_says_what_to_change(url: str, told: str) -> None:
    with pytest.raises(WebhookUrlRejected, match=told.replace(".", "[.]")):
        parse_webhook_url(url)


@pytest.mark.parametrize(
    ("url", "address", "expected"),
    [
        ("https://hooks.example/", "93.184.216.34", True),
        ("https://hooks.example/", "10.1.2.3", False),
        ("https://hooks.example/", "127.0.0.1", True),
        ("https://hooks.example/", "169.254.169.254", False),
        ("https://hooks.example/", "::1", False),
        ("https://hooks.example/", "::ffff:192.168.0.1", False),
        ("https://hooks.example/", "fe80::1%eth0", False),
        ("http://hooks.example/", "93.184.216.34", False),
        ("http://hooks.example/", "127.0.0.1", True),
        ("http://localhost/", "127.0.0.1", True),
        ("http://localhost/", "::1", True),
        ("http://localhost/", "93.184.216.34", False),
        ("https://localhost/", "93.184.216.34", False),
        ("http://localhost/", "10.0.0.1", False),
        ("http://localhost/", "::ffff:127.0.0.1", False),
    ],
)
def test_what_a_name_resolves_to_is_judged_too(url: str, address: str, expected: bool) -> None:
    allowed = AllowedReceivers(LOOPBACK)
    target = parse_webhook_url(url, allowed)
    if expected:
        check_address(target, ip_address(address), allowed)
    else:
        with pytest.raises(WebhookUrlRejected):
            check_address(target, ip_address(address), allowed)


def test_a_public_address_stays_public_however_it_is_carried() -> None:
    assert is_public(ip_address("::ffff:93.184.216.34"))
    assert is_public(ip_address("64:ff9b::5db8:d822"))
    assert not is_public(ip_address("2001:0:5ef5:79fd::1"))
