"""A search config with a field of every kind, for the tests of this folder."""

from __future__ import annotations

from typing import Any


def field(kind: str, pointer: str, *flags: str, **settings: str) -> dict[str, Any]:
    bindings = [{"version": 1, "jsonPointer": pointer}]
    return {"kind": kind, "bindings": bindings} | settings | dict.fromkeys(flags, True)


def search_with(**changes: Any) -> dict[str, Any]:
    """The config, with these keys instead of its own; None leaves a key out."""
    search: dict[str, Any] = {
        "primaryTimestampField": "at",
        "fields": {
            "at": field("date", "/at", "exact", "column", "exists"),
            "level": field("keyword", "/level", "exact", normalizer="lowercase_v1"),
            "id": field("keyword", "/id", "exact", "prefix"),
            "note": field("keyword", "/note"),
            "n": field("integer", "/n", "exact", "column", "aggregatable"),
            "exact_n": field("integer", "/n", "exact"),
            "ratio": field("float", "/ratio", "column", "aggregatable"),
            "ok": field("bool", "/ok", "exact", "column"),
            "message": field("text", "/message", "exists", analyzer="unicode_word_v1"),
        },
        "aliases": {"ts": "at", "msg": "message"},
    } | changes
    return {key: value for key, value in search.items() if value is not None}


def search_with_field(name: str, settings: Any) -> dict[str, Any]:
    search = search_with()
    search["fields"][name] = settings
    return search
