"""A bootstrap answer taken apart twice: by Python's email package, and by hand byte for byte."""

from __future__ import annotations

import email
import email.message
import re
from dataclasses import dataclass

from tests.conformance.api import Api
from tests.support.http import Client, Reply


@dataclass(frozen=True)
class Part:
    content_type: str
    body: bytes


@dataclass(frozen=True)
class Bootstrap:
    snapshot: Part
    updates: list[Part]
    reply: Reply

    @property
    def snapshot_offset(self) -> str:
        return self.reply.headers["stream-snapshot-offset"]

    @property
    def next_offset(self) -> str:
        return self.reply.next_offset

    @property
    def messages(self) -> list[bytes]:
        return [part.body for part in self.updates]


def boundary_of(reply: Reply) -> str:
    content_type = reply.headers["content-type"]
    found = re.fullmatch(r"multipart/mixed; boundary=([0-9A-Za-z'()+_,./:=?-]{1,70})", content_type)
    assert found is not None, content_type
    return found[1]


def split_by_hand(reply: Reply) -> list[Part]:
    """Nothing before the first delimiter, one header per part, nothing behind the last."""
    delimiter = b"--" + boundary_of(reply).encode()
    body = reply.body
    assert body.startswith(delimiter + b"\r\n"), body[:200]
    assert body.endswith(b"\r\n" + delimiter + b"--\r\n"), body[-200:]
    inner = body[len(delimiter) + 2 : -len(delimiter) - 6]
    parts = list[Part]()
    for raw in inner.split(b"\r\n" + delimiter + b"\r\n"):
        head, blank, content = raw.partition(b"\r\n\r\n")
        assert blank, raw[:200]
        name, _, value = head.partition(b": ")
        assert name.lower() == b"content-type"
        assert b"\r\n" not in value
        parts.append(Part(value.decode("latin-1"), content))
    return parts


def split_by_email(reply: Reply) -> list[Part]:
    head = f"Content-Type: {reply.headers['content-type']}\r\n\r\n"
    message = email.message_from_bytes(head.encode() + reply.body)
    assert message.is_multipart()
    assert message.defects == []
    assert not message.preamble
    assert message.epilogue in (None, "")
    return [part_of(each) for each in message.get_payload()]


def part_of(message: email.message.Message | str) -> Part:
    assert isinstance(message, email.message.Message)
    content = message.get_payload(decode=True)
    assert isinstance(content, bytes)
    return Part(str(message["Content-Type"]), content)


def parse_bootstrap(reply: Reply) -> Bootstrap:
    assert reply.status == 200, reply
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["stream-up-to-date"] == "true"
    first, *updates = split_by_hand(reply)
    return Bootstrap(first, updates, reply)


def bootstrap(api: Api | Client, path: str) -> Bootstrap:
    return parse_bootstrap(api.get(f"{path}/bootstrap"))
