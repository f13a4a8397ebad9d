"""The catalog as the state machine sees it: where streams rest that are not in memory."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.tier.catalog import Catalog


class CatalogStore:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.find = catalog.find
        self.find_by_id = catalog.find_by_id

    def names(self, first: bytes, *, inclusive: bool = True) -> Iterator[bytes]:
        return (path for path, _ in self._catalog.names(first, inclusive=inclusive))
