"""Headers that many answers share, as complete lines."""

from __future__ import annotations

NO_STORE = b"cache-control: no-store\r\n"
JSON = b"content-type: application/json\r\n" + NO_STORE
TEXT = b"content-type: text/plain\r\n" + NO_STORE
