"""What settings may say: a parser takes the text of a flag, and its error says what to change."""

from __future__ import annotations

import re
from collections.abc import Callable

_PORT = re.compile(r"[0-9]{1,5}")
_COUNT = re.compile(r"[0-9]{1,12}")
_SIZE = re.compile(r"([0-9]{1,15})\s*(|B|K|KB|KIB|M|MB|MIB|G|GB|GIB)", re.IGNORECASE)
_SIZE_FACTOR = {"": 1, "B": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_SECONDS = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(|ms|s|m|h)")
_STORE_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "https")
_KEYED_SCHEMES = ("s3", "s3a", "gs", "https")  # in others an @ separates container and account
_ENDPOINT = re.compile(r"https?://(?:[\w.-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?(?:/[^\s@?#]*)?")
_RECEIVER = re.compile(r"[\w.:/\[\]-]+")
_SECONDS_FACTOR = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "h": 3600.0}


class InvalidSetting(ValueError):
    """The message names the setting and what it should look like."""


def parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidSetting(f"{text!r} is not a size such as 65536, 512KiB or 64MiB")
    return int(match[1]) * _SIZE_FACTOR[match[2][:1].upper()]


def parse_seconds(text: str) -> float:
    match = _SECONDS.fullmatch(text.strip())
    if match is None:
        raise InvalidSetting(f"{text!r} is not a time such as 20, 0.5, 30s or 2m")
    return float(match[1]) * _SECONDS_FACTOR[match[2]]


def parse_promise(text: str) -> float:
    """0: there is none."""
    return 0.0 if text == "off" else parse_seconds(text)


def parse_listen(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not _PORT.fullmatch(port) or int(port) > 65535:
        raise InvalidSetting(f"{text!r} is not an address such as 127.0.0.1:4437 or [::1]:4437")
    return text


def parse_optional_listen(text: str) -> str:
    return parse_listen(text) if text else ""


def parse_flag(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("", "0", "false", "no", "off"):
        return False
    raise InvalidSetting(f"{text!r} is not true or false")


def parse_count(text: str) -> int:
    if not _COUNT.fullmatch(text) or int(text) == 0:
        raise InvalidSetting(f"{text!r} is not a whole number from 1")
    return int(text)


def parse_record_places(text: str) -> tuple[tuple[str, int], ...]:
    """Places in the log, separated by commas."""
    found = []
    for place in filter(None, text.split(",")):
        file, _, position = place.strip().rpartition(":")
        if not file or not _COUNT.fullmatch(position):
            raise InvalidSetting(f"{place!r} is not a place such as 0000000000000001.wal:64")
        found.append((file, int(position)))
    return tuple(found)


def parse_choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise InvalidSetting(f"{text!r} is not one of {', '.join(allowed)}")
        return text

    parse.__doc__ = "|".join(allowed)
    return parse


def parse_cold(text: str) -> str:
    """A place for objects. What stands behind the scheme is checked when it is opened."""
    if text == "" or text.startswith("file:///"):
        return text
    scheme, _, rest = text.partition(":")
    if scheme == "fs" and rest and (rest.startswith("///") or not rest.startswith("//")):
        return text
    if "@" in rest and scheme in _KEYED_SCHEMES:
        raise InvalidSetting("no keys in the URL; give --cold-access-key-id and its secret")
    if scheme not in _STORE_SCHEMES or not rest.startswith("//") or not rest.strip("/"):
        raise InvalidSetting(
            f"{text!r} is not a place for objects such as fs:/var/lib/cold, s3://bucket/prefix, "
            "gs://bucket/prefix or az://container/prefix"
        )
    return text


def parse_endpoint(text: str) -> str:
    match = _ENDPOINT.fullmatch(text)
    if text and (match is None or int(match[1] or 0) > 65535):
        raise InvalidSetting(f"{text!r} is not an address such as https://s3.example.org:9000")
    return text.rstrip("/")


def parse_public_url(text: str) -> str:
    match = _ENDPOINT.fullmatch(text)
    if text and (match is None or int(match[1] or 0) > 65535):
        raise InvalidSetting(f"{text!r} is not an address such as https://streams.example.org")
    return text.rstrip("/")


def parse_receivers(text: str) -> tuple[str, ...]:
    """Separated by commas. What each of them means is for protocol/webhook_urls.py to say."""
    receivers = tuple(part.strip() for part in text.split(",") if part.strip())
    for receiver in receivers:
        if not _RECEIVER.fullmatch(receiver):
            raise InvalidSetting(
                f"{receiver!r} is no host, host:port or network such as 10.0.0.7:8080 or 10.0.0.0/8"
            )
    return receivers
