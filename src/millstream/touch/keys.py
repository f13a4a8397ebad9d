"""The keys that clients wait for: XXH3-64 of what a query depends on.

    table       H("tbl" 0 entity)
    template id H("tpl" 0 entity 0 field 0 field …)       fields sorted by name
    template    H("tpl" 0 id)                             the id as 8 bytes, big end first
    watch       H("key" 0 id (0 argument)*)               arguments in the order of the fields
    membership  H("mem" 0 id (0 argument)*)
    field       H("fld" 0 id 0 field (0 argument)*)

Within the server a key is a number; on the wire it is 16 hexadecimal digits. Its id is its low 32
bits: ids may collide, so a match of ids says "perhaps".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from xxhash import xxh3_64_intdigest, xxh32_intdigest

KEY_ID_MASK = 0xFFFF_FFFF

_HEX_KEY = re.compile(r"[0-9a-f]{16}")


@lru_cache(maxsize=4096)
def table_key(entity: str) -> int:
    return xxh3_64_intdigest(b"tbl\0" + _utf8(entity))


def template_id(entity: str, field_names: Iterable[str]) -> int:
    """`field_names` are sorted."""
    return xxh3_64_intdigest(b"tpl\0" + b"\0".join(map(_utf8, (entity, *field_names))))


def template_key(id_of_template: int) -> int:
    return xxh3_64_intdigest(b"tpl\0" + id_of_template.to_bytes(8, "big"))


class KeyMaker:
    """The keys of one template."""

    __slots__ = ("_field", "_membership", "_watch", "template")

    def __init__(self, id_of_template: int) -> None:
        packed = id_of_template.to_bytes(8, "big")
        self.template = template_key(id_of_template)
        self._watch = b"key\0" + packed
        self._membership = b"mem\0" + packed
        self._field = b"fld\0" + packed + b"\0"

    def watch(self, arguments: bytes) -> int:
        """`arguments` as `join_arguments` makes them."""
        return xxh3_64_intdigest(self._watch + arguments)

    def membership(self, arguments: bytes) -> int:
        return xxh3_64_intdigest(self._membership + arguments)

    def field(self, name: str, arguments: bytes) -> int:
        return xxh3_64_intdigest(self._field + _utf8(name) + arguments)


def join_arguments(arguments: Iterable[str]) -> bytes:
    """A zero byte before each of them."""
    return b"".join(b"\0" + _utf8(argument) for argument in arguments)


def parse_key(text: str) -> int | None:
    """The key that these 16 digits are; None for any other text."""
    return int(text, 16) if _HEX_KEY.fullmatch(text) else None


def key_text(key: int) -> str:
    return f"{key:016x}"


def key_id_of(text: str) -> int:
    """Any text may be waited for; what is no key has an id of its own kind."""
    text = text.strip().lower()
    key = parse_key(text)
    return xxh32_intdigest(_utf8(text)) if key is None else key & KEY_ID_MASK


def _utf8(text: str) -> bytes:
    """Half a surrogate pair, which JSON can spell, becomes a replacement character."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
