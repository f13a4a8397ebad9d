"""How the touches of one stream are doing, as clients and operators see it: one flat object."""

from __future__ import annotations

from typing import Any

from millstream.protocol.offsets import encode_offset
from millstream.state.stream import Stream
from millstream.touch.journal import Journal, Reach
from millstream.touch.keys import key_text
from millstream.touch.stream import StreamTouches


def touch_meta(touches: StreamTouches, stream: Stream, now_ms: int) -> dict[str, Any]:
    """Every row is journaled, waited for or not, so nothing is ever skipped as too cold."""
    settings = touches.settings
    return {
        **_journal_part(touches, now_ms),
        "settled": touches.is_settled,
        "coarseIntervalMs": settings.coarse_interval_ms,
        "touchCoalesceWindowMs": settings.touch_coalesce_window_ms,
        "activeTemplates": len(touches.templates),
        "lagSourceOffsets": touches.lag,
        "touchMode": touches.mode.value,
        "walScannedThrough": _offset_of(stream, touches.scanned),
        **_interest_part(touches.journal, len(touches.templates)),
        **_totals_part(touches),
    }


def _journal_part(touches: StreamTouches, now_ms: int) -> dict[str, Any]:
    journal, memory = touches.journal, touches.settings.memory
    moment, intervals = journal.moment(), journal.flush_intervals_ms(now_ms) or [0]
    return {
        "mode": "memory",
        "cursor": moment.cursor,
        "epoch": key_text(moment.epoch),
        "generation": moment.generation,
        "bucketMs": memory.bucket_ms,
        "coalesceMs": round(touches.coalesce_seconds * 1000),
        "filterSize": 1 << memory.filter_pow2,
        "k": memory.k,
        "pendingKeys": len(journal.pending),
        "overflowBuckets": journal.overflows,
        "activeWaiters": len(journal.waits),
        "bucketMaxSourceOffsetSeq": str(moment.ordinal),
        "lastFlushAtMs": moment.flushed_ms,
        "flushIntervalMsMaxLast10s": intervals[-1],
        "flushIntervalMsP95Last10s": intervals[(len(intervals) - 1) * 95 // 100],
    }


def _offset_of(stream: Stream, ordinal: int) -> str | None:
    """None: that place is not in memory any more."""
    log = stream.log
    if not log.held_ordinal <= ordinal <= log.tail_ordinal:
        return None
    return encode_offset(ordinal, log.byte_at(ordinal))


def _interest_part(journal: Journal, templates: int) -> dict[str, Any]:
    fine = journal.waits_by_reach[Reach.FINE] + journal.waits_by_reach[Reach.TEMPLATE]
    return {
        "hotFineKeys": journal.watched_ids,
        "hotTemplates": templates,
        "hotFineKeysActive": journal.watched_ids,
        "hotFineKeysGrace": 0,
        "hotTemplatesActive": templates,
        "hotTemplatesGrace": 0,
        "fineWaitersActive": fine,
        "coarseWaitersActive": journal.waits_by_reach[Reach.TABLE],
        "broadFineWaitersActive": journal.broad_waits,
        "hotKeyFilteringEnabled": False,
        "hotTemplateFilteringEnabled": False,
    }


def _totals_part(touches: StreamTouches) -> dict[str, Any]:
    totals = touches.totals
    return {
        "scanRowsTotal": totals.rows,
        "scanBatchesTotal": totals.batches,
        "scannedButEmitted0BatchesTotal": totals.empty_batches,
        "processedThroughDeltaTotal": totals.rows,
        "touchesEmittedTotal": totals.table_touches + totals.fine_touches,
        "touchesTableTotal": totals.table_touches,
        "touchesTemplateTotal": totals.fine_touches,
        "fineTouchesDroppedDueToBudgetTotal": totals.fine_dropped,
        "fineTouchesSkippedColdTemplateTotal": 0,
        "fineTouchesSkippedColdKeyTotal": 0,
        "fineTouchesSkippedTemplateBucketTotal": 0,
        "waitTouchedTotal": totals.touched_waits,
        "waitTimeoutTotal": totals.timed_out_waits,
        "waitStaleTotal": totals.stale_waits,
        "journalFlushesTotal": totals.flushes,
        "journalNotifyWakeupsTotal": totals.wakes,
        "journalNotifyWakeMsTotal": round(totals.wake_ms, 3),
        "journalNotifyWakeMsMax": round(totals.wake_ms_max, 3),
        "journalTimeoutsFiredTotal": totals.timed_out_waits,
        "journalTimeoutSweepMsTotal": 0,
    }
