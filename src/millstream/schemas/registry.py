"""What a schema update would change, and the registry as it is shown."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from millstream.errors import InvalidSchema, LensConflict, StreamNotEmpty
from millstream.limits import RULES_BYTES_MAX, SCHEMA_UPDATE_BYTES_MAX, SCHEMA_VERSIONS_MAX
from millstream.schemas.documents import (
    MISSING,
    decode_document,
    encode_document,
    parse_pointer,
)
from millstream.schemas.lenses import Lens, parse_lens
from millstream.schemas.proofs import prove
from millstream.schemas.validation import check_schema
from millstream.state.rules import Rules

REGISTRY_API_VERSION = "durable.streams/schema-registry/v1"
_UPDATE_KEYS = frozenset({"apiVersion", "schema", "lens", "routingKey", "search"})


class Change(NamedTuple):
    """New rules, and what goes with them: the fields of the command `SetRules`."""

    rules: Rules
    begins_version: bool = False
    is_fresh: bool = False
    needs_empty: bool = False


def plan_update(name: str, rules: Rules | None, body: bytes, is_empty: bool) -> Change:
    """What becomes of a stream's rules by this request. Raises `InvalidSchema`, `LensConflict`,
    or `StreamNotEmpty`; the command asks the last again when it is applied."""
    update = _decode_update(body)
    before = Rules(revision=0) if rules is None else rules
    if "schema" not in update:
        return Change(checked_size(_with_configs(before, update)))
    if update.get("routingKey", MISSING) is None:
        raise InvalidSchema("schemaUpdate.routingKey must not be null together with schema")
    check_schema(update["schema"])
    if before.version == 0 and not is_empty:
        raise StreamNotEmpty("first schema requires empty stream")
    if before.version >= SCHEMA_VERSIONS_MAX:
        raise InvalidSchema(f"a stream may have at most {SCHEMA_VERSIONS_MAX} schema versions")
    after = _with_configs(_with_version(name, before, update), update)
    return Change(checked_size(after), begins_version=True, needs_empty=before.version == 0)


def _decode_update(body: bytes) -> dict[str, Any]:
    update = decode_document(body, "schema update")
    if not isinstance(update, dict):
        raise InvalidSchema("schema update must be an object")
    for key in update:
        if key not in _UPDATE_KEYS:
            raise InvalidSchema(f"schemaUpdate.{key[:100]} is not supported")
    if update.get("apiVersion", REGISTRY_API_VERSION) != REGISTRY_API_VERSION:
        raise InvalidSchema(f"schemaUpdate.apiVersion must be {REGISTRY_API_VERSION}")
    if update.get("lens") is not None and "schema" not in update:
        raise InvalidSchema("schemaUpdate.lens requires schema")
    if not update.keys() & {"schema", "routingKey", "search"}:
        raise InvalidSchema("schema update must include schema, routingKey, or search")
    return update


def _with_version(name: str, rules: Rules, update: dict[str, Any]) -> Rules:
    version, document = rules.version, update.get("lens")
    if document is None:
        if version:
            raise InvalidSchema("lens required")
        lens = b""
    else:
        parsed = parse_lens(document)
        _check_lens(name, parsed, version)
        lens = encode_document(_stored_lens(parsed, rules, update["schema"]))
    # A profile may have installed its schema without a word about lenses.
    lenses = rules.lenses + (b"",) * (version - len(rules.lenses))
    return msgspec.structs.replace(
        rules,
        schemas=(*rules.schemas, encode_document(update["schema"])),
        lenses=(*lenses, lens),
    )


def _check_lens(name: str, lens: Lens, version: int) -> None:
    if (lens.from_version, lens.to_version) != (version, version + 1):
        raise LensConflict("lens version mismatch")
    if lens.schema != name:
        raise InvalidSchema("lens schema mismatch")


def _stored_lens(lens: Lens, rules: Rules, schema: Any) -> dict[str, Any]:
    """Before the first version there is nothing to prove it from, and no entry to go through it."""
    if not rules.version:
        return lens.document
    return prove(lens, decode_document(rules.schemas[-1], "schema"), schema)


def _with_configs(rules: Rules, update: dict[str, Any]) -> Rules:
    """Routing key and search config stay as they are unless the update speaks of them."""
    routing_key, search = rules.routing_key, rules.search
    if "routingKey" in update:
        routing_key = _routing_key(update["routingKey"])
    if "search" in update:
        if not rules.version:
            raise InvalidSchema("search config requires an installed schema version")
        search = _search(update["search"])
    return msgspec.structs.replace(rules, routing_key=routing_key, search=search)


def _routing_key(document: Any) -> bytes:
    if document is None:
        return b""
    if not isinstance(document, dict):
        raise InvalidSchema("schemaUpdate.routingKey must be an object or null")
    for key in document:
        if key not in {"jsonPointer", "required"}:
            raise InvalidSchema(f"schemaUpdate.routingKey.{key[:100]} is not supported")
    parse_pointer(document.get("jsonPointer"), "schemaUpdate.routingKey.jsonPointer")
    required = document.get("required", False)
    if not isinstance(required, bool):
        raise InvalidSchema("schemaUpdate.routingKey.required must be a boolean")
    return encode_document({"jsonPointer": document["jsonPointer"], "required": required})


def _search(document: Any) -> bytes:
    if document is None:
        return b""
    from millstream.schemas.search_config import parse_search

    parse_search(document)
    return encode_document(document)


def checked_size(rules: Rules) -> Rules:
    """Raises `InvalidSchema` for more than a stream may make every checkpoint carry."""
    texts = (rules.profile, rules.routing_key, rules.search, *rules.schemas, *rules.lenses)
    if max(map(len, texts)) > SCHEMA_UPDATE_BYTES_MAX:  # numbers may be longer than they came
        raise InvalidSchema(f"what is kept of it may have {SCHEMA_UPDATE_BYTES_MAX} bytes")
    if sum(map(len, texts)) > RULES_BYTES_MAX:
        raise InvalidSchema(
            f"the schemas, lenses and configs of a stream may have {RULES_BYTES_MAX} bytes together"
        )
    return rules


def registry_document(name: str, rules: Rules | None) -> dict[str, Any]:
    """What a GET of the registry shows."""
    rules = Rules(revision=0) if rules is None else rules
    document: dict[str, Any] = {
        "apiVersion": REGISTRY_API_VERSION,
        "schema": name,
        "currentVersion": rules.version,
    }
    decode = msgspec.json.decode
    if rules.routing_key:
        document["routingKey"] = decode(rules.routing_key)
    if rules.search:
        document["search"] = decode(rules.search)
    boundaries = [{"offset": offset, "version": version} for offset, version in rules.boundaries]
    schemas = {str(version): decode(text) for version, text in enumerate(rules.schemas, 1)}
    lenses = {str(version): decode(text) for version, text in enumerate(rules.lenses) if text}
    return {**document, "boundaries": boundaries, "schemas": schemas, "lenses": lenses}
