"""The documents of `_index_status` and `_details`: everything there is to tell of one stream.

Sizes and times in milliseconds are strings of digits, as JavaScript's numbers end at 2^53; counts
are numbers. Each document has a tag that changes with the stream and with nothing else: what is
true of the server as a whole, or moves with the clock, is in the document but not in the tag.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from millstream.inspection.holdings import Holdings
from millstream.inspection.index_report import IndexReport, IndexRuns, SearchFamily
from millstream.protocol.durations import encode_timestamp
from millstream.protocol.offsets import BEGINNING_TOKEN, START
from millstream.protocol.patterns import text_of
from millstream.schemas.profiles import profile_document
from millstream.schemas.registry import registry_document
from millstream.state.rules import GENERIC, Rules
from millstream.state.stream import Snapshot, Stream

Document = dict[str, Any]

ARTIFACTS = (
    *("manifest", "schema_registry", "routing_index", "routing_key_lexicon"),
    *("exact_index", "segment", "bundled_companion", "meta"),
)
FAMILIES = ("exact", "col", "fts", "agg", "mblk")


class Described(NamedTuple):
    document: Document
    tag: bytes  # opaque, in quotes; weak


class Facts(NamedTuple):
    """What a report is made of, all of one moment."""

    stream: Stream
    held: Holdings
    indexes: IndexReport
    has_log: bool  # content that is in no segment lies in a log on disk
    catalog_bytes: Callable[[], int]  # of the whole server


def profile_kind(stream: Stream) -> str:
    return GENERIC if stream.rules is None else stream.rules.kind


def describe_index_status(facts: Facts) -> Described:
    document = _index_status(facts)
    return Described(document, _tag("index_status", facts.stream, document))


def describe_details(facts: Facts) -> Described:
    stream, rules = facts.stream, facts.stream.rules
    storage = _storage(facts)
    document: Document = {
        "stream": _summary(facts),
        "profile": profile_document(rules),
        "schema": registry_document(text_of(stream.path), rules),
        "index_status": _index_status(facts),
        "storage": storage,
        "object_store_requests": _object_store_requests(),
    }
    tag = _tag("details", stream, document)
    document["stream"]["expires_at"] = _time(
        stream.deadline_ms(max(stream.touched_ms, stream.accessed_ms))
    )
    storage["local_storage"]["sqlite_shared_total_bytes"] = str(facts.catalog_bytes())
    return Described(document, tag)


def _tag(kind: str, stream: Stream, document: Document) -> bytes:
    """The name may belong to another stream tomorrow, which looks the same: its id does not."""
    content = b"%d " % stream.stream_id + msgspec.json.encode(document)
    digest = hashlib.blake2b(content, digest_size=20).hexdigest()
    return f'"{kind}:{digest}"'.encode()


def _time(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else encode_timestamp(milliseconds)


def _digits(number: int | None) -> str | None:
    return None if number is None else str(number)


# stream


def _summary(facts: Facts) -> Document:
    stream, held = facts.stream, facts.held
    log, seq = stream.log, stream.stream_seq
    pending = log.tail_ordinal - log.cold_ordinal
    shown, shown_bytes = log.tail_ordinal - log.first_ordinal, log.tail_byte - log.first_byte
    sealed = sealed_through(stream)
    logged = pending if facts.has_log else 0
    return {
        "name": text_of(stream.path),
        "content_type": stream.content_type.decode("latin-1"),
        "profile": profile_kind(stream),
        "created_at": _time(stream.created_ms),
        "updated_at": _time(stream.last_write_ms),
        # An idle window moves with every read: not a change, so it comes when the tag is made.
        "expires_at": None if stream.ttl_ms is not None else _time(stream.expires_at_ms),
        "ttl_seconds": None if stream.ttl_ms is None else stream.ttl_ms // 1000,
        "stream_seq": None if seq is None else seq.decode("latin-1"),
        "closed": stream.closed,
        "epoch": 0,
        "next_offset": stream.tail,
        "earliest_offset": stream.earliest,
        "sealed_through": sealed,
        "uploaded_through": sealed,  # a segment is in the store before the state hears of it
        "message_count": str(shown),
        "snapshot": None if stream.snapshot is None else _snapshot(stream.snapshot),
        "segment_count": held.segments,
        "uploaded_segment_count": held.segments,
        "run_count": held.runs,
        "pending_rows": str(pending),
        "pending_bytes": str(_pending_bytes(stream)),
        "total_size_bytes": str(_payload(stream, shown, shown_bytes)),
        "wal_rows": str(logged),
        "wal_bytes": str(_logged_bytes(facts)),
        "last_append_at": _time(stream.last_entry_ms) if log.tail_ordinal else None,
        "last_segment_cut_at": _time(held.newest_ms),
    }


def sealed_through(stream: Stream) -> str:
    """Up to where the stream's own content lies in segments, `-1` when nothing does.

    What a fork inherited is its source's to tell. What was trimmed counts: it is nowhere else.
    """
    log = stream.log
    place = max(log.cold if log.cold_byte > log.own_byte else START, log.first)
    return BEGINNING_TOKEN.decode() if place == START else place.token


def _snapshot(snapshot: Snapshot) -> Document:
    return {
        "offset": snapshot.offset,
        "content_type": snapshot.content_type.decode("latin-1"),
        "size_bytes": str(snapshot.size),
    }


def _pending_bytes(stream: Stream) -> int:
    """In no segment yet."""
    log = stream.log
    return _payload(stream, log.tail_ordinal - log.cold_ordinal, log.tail_byte - log.cold_byte)


def _logged_bytes(facts: Facts) -> int:
    """Only the log, or the checkpoint in its place, has these on disk."""
    return _pending_bytes(facts.stream) if facts.has_log else 0


def _payload(stream: Stream, messages: int, size: int) -> int:
    """In JSON mode every message has a comma behind it, in memory and where bytes are counted."""
    return size - messages if stream.is_json else size


# index_status


def _index_status(facts: Facts) -> Document:
    stream, indexes, segments = facts.stream, facts.indexes, facts.held.segments
    has_key = stream.rules is not None and bool(stream.rules.routing_key)
    return {
        "stream": text_of(stream.path),
        "profile": profile_kind(stream),
        "desired_index_plan_generation": indexes.plan_generation,
        "segments": {"total_count": segments, "uploaded_count": segments},
        "manifest": {  # where segments lie is in the catalog: a stream has no manifest of its own
            "generation": 0,
            "uploaded_generation": 0,
            "last_uploaded_at": None,
            "last_uploaded_etag": None,
            "last_uploaded_size_bytes": None,
        },
        "routing_key_index": _key_index(indexes.routing_key, segments, has_key),
        "routing_key_lexicon": _key_index(indexes.lexicon, segments, has_key),
        "exact_indexes": [
            {
                "name": index.name,
                "kind": index.kind,
                **_index_runs(index.runs, segments),
                "stale_configuration": index.is_stale,
            }
            for index in indexes.exact
        ],
        "bundled_companions": {
            "object_count": indexes.companion_objects,
            "bytes_at_rest": str(indexes.companion_size),
            "fully_indexed_uploaded_segments": all(
                family.covered_segments >= segments for family in indexes.families
            ),
        },
        "search_families": [_family(family, segments) for family in indexes.families],
    }


def _key_index(runs: IndexRuns, segments: int, is_configured: bool) -> Document:
    document = {"configured": is_configured, **_index_runs(runs, segments)}
    if not is_configured:
        document.update(lag_segments=0, fully_indexed_uploaded_segments=True)
    return document


def _index_runs(runs: IndexRuns, segments: int) -> Document:
    return {
        "indexed_segment_count": runs.covered_segments,
        "lag_segments": max(0, segments - runs.covered_segments),
        "lag_ms": _digits(runs.lag_ms),
        "bytes_at_rest": str(runs.size),
        "object_count": runs.objects,
        "active_run_count": runs.active_runs,
        "retired_run_count": runs.retired_runs,
        "fully_indexed_uploaded_segments": runs.covered_segments >= segments,
        "updated_at": _time(runs.updated_ms),
    }


def _family(family: SearchFamily, segments: int) -> Document:
    return {
        "family": family.family,
        "fields": list(family.fields),
        "plan_generation": family.plan_generation,
        "covered_segment_count": family.covered_segments,
        "contiguous_covered_segment_count": family.contiguous_segments,
        "lag_segments": max(0, segments - family.covered_segments),
        "lag_ms": _digits(family.lag_ms),
        "bytes_at_rest": str(family.size),
        "object_count": family.objects,
        "stale_segment_count": family.stale_segments,
        "fully_indexed_uploaded_segments": family.covered_segments >= segments,
        "updated_at": _time(family.updated_ms),
    }


# storage


def _storage(facts: Facts) -> Document:
    pending, logged = str(_pending_bytes(facts.stream)), str(_logged_bytes(facts))
    sizes = {
        family: sum(each.size for each in facts.indexes.families if each.family == family)
        for family in FAMILIES
    }
    return {
        "object_storage": _object_storage(facts),
        "local_storage": {
            "total_bytes": logged,
            "wal_retained_bytes": logged,
            "pending_tail_bytes": pending,
            "pending_sealed_segment_bytes": "0",  # a segment is made and uploaded in one go
            "segment_cache_bytes": "0",  # caches are in memory, and all streams share them
            "routing_index_cache_bytes": "0",
            "exact_index_cache_bytes": "0",
            "lexicon_index_cache_bytes": "0",
            "companion_cache_bytes": "0",
            "sqlite_shared_total_bytes": "0",
        },
        "companion_families": {f"{family}_bytes": str(size) for family, size in sizes.items()},
    }


def _object_storage(facts: Facts) -> Document:
    indexes, snapshot = facts.indexes, facts.stream.snapshot
    exact = [index.runs for index in indexes.exact]
    index_bytes = indexes.companion_size + sum(
        runs.size for runs in (indexes.routing_key, indexes.lexicon, *exact)
    )
    rules_bytes = _rules_bytes(facts.stream.rules)
    snapshot_bytes = 0 if snapshot is None else snapshot.size
    segment_bytes = _payload(facts.stream, facts.held.messages, facts.held.size)
    total = segment_bytes + index_bytes + rules_bytes + snapshot_bytes
    return {
        "total_bytes": str(total),
        "segments_bytes": str(segment_bytes),
        "indexes_bytes": str(index_bytes),
        "manifest_and_meta_bytes": str(rules_bytes),
        "manifest_bytes": "0",
        "schema_registry_bytes": str(rules_bytes),
        "snapshot_bytes": str(snapshot_bytes),
        "segment_object_count": facts.held.segments,
        "routing_index_object_count": indexes.routing_key.objects,
        "routing_lexicon_object_count": indexes.lexicon.objects,
        "exact_index_object_count": sum(runs.objects for runs in exact),
        "bundled_companion_object_count": indexes.companion_objects,
        "snapshot_object_count": int(snapshot is not None),
    }


def _rules_bytes(rules: Rules | None) -> int:
    """Of the documents; copies of the catalog in the store hold them."""
    if rules is None:
        return 0
    documents = (rules.profile, *rules.schemas, *rules.lenses, rules.routing_key, rules.search)
    return sum(map(len, documents))


def _object_store_requests() -> Document:
    """Objects are shared by streams, so requests are counted for all of them together."""
    counts = dict.fromkeys(("puts", "reads", "gets", "heads", "lists", "deletes"), "0")
    by_artifact = [{"artifact": artifact, **counts} for artifact in ARTIFACTS]
    return {**counts, "by_artifact": by_artifact}
