"""Whose cold store this is: one object says it, so that two servers never share a place."""

from __future__ import annotations

import json

import structlog

from millstream.errors import StartupError, StoreRefused, StoreUnavailable
from millstream.tier.object_kinds import STORE_IDENTITY
from millstream.tier.objects import ObjectStore

logger = structlog.get_logger("millstream.cold")

FORMAT = 1


def claim_store(objects: ObjectStore, store_id: str) -> None:
    """Raises StartupError when the place belongs to another store, or will never let us in.

    A store that does not answer now is no reason not to start: appends go on without it.
    """
    try:
        if objects.put_if_absent(STORE_IDENTITY, _encode(store_id)):
            return
        owner = load_owner(objects)
    except StoreRefused as error:
        raise StartupError(f"cannot use the cold store: {error.message}") from error
    except StoreUnavailable as error:
        logger.warning("the cold store does not answer; starting without it", error=error.message)
        return
    if owner != store_id:
        raise StartupError(
            f"{objects.settings.url} holds the cold data of store {owner}, this data folder is "
            f"store {store_id}; choose another --cold, or run `millstream restore` to go on "
            "from what the cold store has"
        )


def load_owner(objects: ObjectStore) -> str:
    """Raises StartupError for something that is no cold store of a version we know."""
    try:
        identity = json.loads(objects.get(STORE_IDENTITY))
        written_format, owner = int(identity["format"]), str(identity["store_id"])
    except (ValueError, KeyError, TypeError) as error:
        place = objects.settings.url
        raise StartupError(f"{STORE_IDENTITY} in {place} is not Millstream's: {error}") from error
    if written_format > FORMAT:
        raise StartupError(
            f"{objects.settings.url} has format {written_format}; run a newer Millstream"
        )
    return owner


def _encode(store_id: str) -> bytes:
    return json.dumps({"format": FORMAT, "store_id": store_id}).encode() + b"\n"
