"""Server-Sent Events frames: exact bytes, because clients look at them exactly.

`event: ` has a space, `data:` has none, a control event follows every data event in the same
write. Text is split at CR, LF and CRLF, so that a payload can never forge an event.
"""

from __future__ import annotations

import base64

HEARTBEAT = b": heartbeat\n\n"


def encode_json_data(data: bytes) -> bytes:
    """A run of comma-terminated JSON messages as one complete array."""
    return _encode_lines(b"[" + data[:-1] + b"]")


def encode_text_data(data: bytes) -> bytes:
    """An event stream is UTF-8 by definition: bytes that are not become U+FFFD here."""
    if not data.isascii():
        data = data.decode("utf-8", "replace").encode()
    return _encode_lines(data)


def encode_binary_data(data: bytes) -> bytes:
    return b"event: data\ndata:" + base64.b64encode(data) + b"\n\n"


def _encode_lines(data: bytes) -> bytes:
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\n" in data:
        # A client drops one space after the colon: a line that begins with one gets another.
        data = data.replace(b"\n ", b"\n  ").replace(b"\n", b"\ndata:")
    lead = b"event: data\ndata: " if data[:1] == b" " else b"event: data\ndata:"
    return lead + data + b"\n\n"


def encode_control(next_offset: str, cursor: int | None, up_to_date: bool, closed: bool) -> bytes:
    """Exactly one control object on one line; the cursor is left out once the stream is closed."""
    fields = [f'"streamNextOffset":"{next_offset}"']
    if cursor is not None and not closed:
        fields.append(f'"streamCursor":"{cursor}"')
    if up_to_date:
        fields.append('"upToDate":true')
    if closed:
        fields.append('"streamClosed":true')
    return b"event: control\ndata:{" + ",".join(fields).encode() + b"}\n\n"


def incomplete_utf8_bytes(tail: bytes) -> int:
    """How many of the last bytes begin a character whose rest is still to come (0 to 3)."""
    for back in range(1, min(3, len(tail)) + 1):
        byte = tail[-back]
        if byte & 0xC0 == 0x80:
            continue
        if 0xC2 <= byte <= 0xF4:
            needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2
        else:
            needed = 1
        return back if needed > back else 0
    return 0
