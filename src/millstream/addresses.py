"""Names of hosts and origins, as settings and requests spell them."""

from __future__ import annotations

import re
from ipaddress import ip_address

_NAME = re.compile(r"\[[0-9a-f:.]+\]|[a-z0-9._-]+")
_HOST = re.compile(rf"({_NAME.pattern})(?::[0-9]{{0,5}})?")
_ORIGIN = re.compile(rf"([a-z][a-z0-9+.-]*)://({_HOST.pattern})")
_PORTS = {"http": ":80", "https": ":443"}  # that a browser leaves out

ANY = "*"


def host_name(authority: str) -> str:
    """The host of `host:port` in lower case, without a dot at its end; "" for what is none."""
    match = _HOST.fullmatch(authority.lower())
    return match[1].removesuffix(".") if match else ""


def split_origin(origin: str) -> tuple[str, str]:
    """Scheme and `host:port` of an origin in lower case; ("", "") for what is none, as `null`."""
    match = _ORIGIN.fullmatch(origin.lower())
    return (match[1], match[2]) if match else ("", "")


def is_loopback(name: str) -> bool:
    """Whether this host is the machine itself, for every browser and every resolver."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def parse_hosts(text: str) -> tuple[str, ...]:
    """Names separated by commas; `*.` before one stands for all below it, `*` for any."""
    return tuple(_parse_host(part.strip()) for part in text.split(",") if part.strip())


def _parse_host(text: str) -> str:
    name = text.lower().removesuffix(".")
    if name != ANY and not _NAME.fullmatch(name.removeprefix("*.")):
        raise ValueError(
            f"{text!r} is not a host such as streams.example.org, *.example.org or [fd00::1]; "
            "leave out scheme and port"
        )
    return name


def parse_origins(text: str) -> tuple[str, ...]:
    """Origins separated by commas, spelled as browsers do."""
    return tuple(_parse_origin(part.strip()) for part in text.split(",") if part.strip())


def _parse_origin(text: str) -> str:
    scheme, authority = split_origin(text.rstrip("/"))
    if text == ANY:
        return ANY
    if not scheme:
        raise ValueError(f"{text!r} is not an origin such as https://app.example.org, nor *")
    return f"{scheme}://{authority.removesuffix(_PORTS.get(scheme, ' '))}"
