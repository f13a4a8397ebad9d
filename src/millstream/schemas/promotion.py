"""Entries of old versions in the shape of the current one: every reader sees one kind of entry."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.errors import InvalidSchema
from millstream.limits import KIB, LENS_CACHE_BYTES
from millstream.schemas.documents import decode_document, encode_document
from millstream.schemas.lenses import Budget, Lens, parse_lens
from millstream.schemas.weighed_cache import WeighedCache
from millstream.state.rules import Rules


class Promotion:
    """The lenses of a stream, one behind the other."""

    def __init__(self, rules: Rules) -> None:
        self._lenses = _parsed(rules.lenses)

    def promote(self, version: int, document: Any) -> Any:
        """The entry, admitted under this version, as one of the current version. May change its
        argument. Raises `InvalidSchema` where a lens cannot be applied to it."""
        budget = Budget()
        for lens in self._lenses[version:]:
            if lens is not None:
                document = lens.promote(document, budget)
        return document

    def promote_bytes(self, version: int, message: bytes) -> bytes:
        """The same for a message as it is stored; one that needs no lens stays as it came."""
        if not any(self._lenses[version:]):
            return message
        try:
            return encode_document(self.promote(version, msgspec.json.decode(message)))
        except RecursionError:
            raise InvalidSchema("the entry is nested too deeply for the stream's lenses") from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidSchema(f"the entry cannot be read: {error}") from error


def _parsed(lenses: tuple[bytes, ...]) -> tuple[Lens | None, ...]:
    return tuple(parse_lens(decode_document(lens, "lens")) if lens else None for lens in lenses)


def _weight(lenses: tuple[bytes, ...], _: Promotion) -> int:
    """Bytes of memory, roughly: the text, the document and its operations."""
    return 4 * KIB + 20 * sum(map(len, lenses))


_promotions: WeighedCache[tuple[bytes, ...], Promotion] = WeighedCache(LENS_CACHE_BYTES)


def promotion_of(rules: Rules) -> Promotion:
    """By the content of the lenses: a stream that is made anew under an old name has its own."""
    return _promotions.get(rules.lenses, lambda _: Promotion(rules), _weight)
