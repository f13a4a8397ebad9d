"""JSON that people send to describe their streams: decoded within limits, and pointers into it."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, Final, Literal

import msgspec

from millstream.errors import InvalidSchema
from millstream.limits import DOCUMENT_DEPTH_MAX, DOCUMENT_NODES_MAX, SCHEMA_UPDATE_BYTES_MAX

Pointer = tuple[str, ...]


class _Missing(Enum):
    MISSING = "missing"


MISSING: Final = _Missing.MISSING  # where `None` is a value: it is JSON's null

_STRAY_TILDE = re.compile("~(?![01])")
_INDEX = re.compile("0|[1-9][0-9]{0,18}")


def decode_document(body: bytes, what: str) -> Any:
    """The value of this JSON. `what` names it in the `InvalidSchema` that anything else becomes."""
    if len(body) > SCHEMA_UPDATE_BYTES_MAX:
        raise InvalidSchema(f"{what} may have at most {SCHEMA_UPDATE_BYTES_MAX} bytes")
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep(what) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidSchema(f"{what} is not JSON: {error}") from error
    check_shape(value, what)
    return value


def check_shape(value: Any, what: str) -> None:
    """Raises `InvalidSchema` for a document that is deeper or larger than we want to walk."""
    count, level = 0, [value]
    for _ in range(DOCUMENT_DEPTH_MAX):
        count += len(level)
        if count > DOCUMENT_NODES_MAX:
            raise InvalidSchema(f"{what} has more than {DOCUMENT_NODES_MAX} values")
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    raise _too_deep(what)


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _too_deep(what: str) -> InvalidSchema:
    return InvalidSchema(f"{what} is nested more than {DOCUMENT_DEPTH_MAX} levels deep")


def encode_document(value: Any) -> bytes:
    """Compact JSON with the keys in the order they have."""
    return msgspec.json.encode(value)


def clone(value: Any) -> Any:
    """The same document, sharing nothing that can be changed."""
    return msgspec.json.decode(msgspec.json.encode(value))


def parse_pointer(text: Any, what: str = "jsonPointer") -> Pointer:
    """The segments of an RFC 6901 pointer; none: the whole document."""
    if not isinstance(text, str):
        raise InvalidSchema(f"{what} must be a JSON pointer")
    if not text:
        return ()
    if not text.startswith("/") or _STRAY_TILDE.search(text):
        raise InvalidSchema(f"{what} must be a JSON pointer: empty, or /name/name")
    return tuple(segment.replace("~1", "/").replace("~0", "~") for segment in text[1:].split("/"))


def pointer_text(pointer: Pointer) -> str:
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in pointer)


def find(document: Any, pointer: Pointer) -> Any | Literal[_Missing.MISSING]:
    """What the pointer leads to, or `MISSING`."""
    for segment in pointer:
        if isinstance(document, dict):
            document = document.get(segment, MISSING)
        elif isinstance(document, list) and _INDEX.fullmatch(segment):
            index = int(segment)
            document = document[index] if index < len(document) else MISSING
        else:
            return MISSING
    return document
