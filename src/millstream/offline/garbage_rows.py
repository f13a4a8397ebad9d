"""What the catalog says of garbage, held against the cold store."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.formats.runs import parse_segment_name
from millstream.tier.catalog import Catalog
from millstream.tier.objects import ObjectStore


def garbage_problems(catalog: Catalog, objects: ObjectStore) -> Iterator[tuple[str, str]]:
    """Names in the list and what is wrong with them.

    The object may be gone already; one that is there must be what the catalog means.
    """
    for garbage in catalog.garbage():
        name = garbage.name
        if parse_segment_name(name) is None:
            yield name, f"garbage {name!r}: expected the name of a segment"
            continue
        size = objects.size(name)
        if size not in (None, garbage.size):
            yield name, f"garbage {name}: expected {garbage.size} bytes, found {size} bytes"
        if garbage.since_lsn > catalog.lsn:
            yield name, f"garbage {name} since {garbage.since_lsn}, behind the log's end"
