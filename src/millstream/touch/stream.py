"""One stream as touches see it: its templates, its journal, how far its records are looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from millstream.limits import (
    TOUCH_COALESCE_SECONDS,
    TOUCH_LAGGING_COALESCE_SECONDS,
    TOUCH_RECORD_BYTES_MAX,
    TOUCH_WORK_PER_TURN,
)
from millstream.schemas.touch_settings import TouchSettings
from millstream.state.log import Log
from millstream.touch.changes import Change, NotTold, fine_keys, read_change
from millstream.touch.filter import FilterBudget
from millstream.touch.journal import Cursor, Journal, Reach, Wait
from millstream.touch.keys import KEY_ID_MASK, table_key, template_key
from millstream.touch.templates import Activation, Declared, Template, Templates

KIB = 1024


class Mode(Enum):
    IDLE = "idle"  # no client is interested
    FINE = "fine"  # keys of rows are touched
    RESTRICTED = "restricted"  # too far behind: those of templates stand for all of their rows
    COARSE_ONLY = "coarseOnly"  # as the settings say: only those of tables


class Kind(Enum):
    """What a wait is about in the end."""

    FINE = "fineKey"
    TEMPLATE = "templateKey"
    TABLE = "tableKey"


class Asked(NamedTuple):
    """What a client wants to wait for."""

    key_ids: frozenset[int]
    template_ids: frozenset[int] = frozenset()
    is_coarse: bool = False
    exact_keys: frozenset[int] = frozenset()


class Watch(NamedTuple):
    """The same, as the journal understands it."""

    kind: Kind
    key_ids: tuple[int, ...] | frozenset[int]
    reach: Reach
    exact: frozenset[int]


@dataclass
class Totals:
    """Since the stream's journal began."""

    rows: int = 0
    batches: int = 0
    empty_batches: int = 0
    table_touches: int = 0
    fine_touches: int = 0
    fine_dropped: int = 0
    not_told: int = 0
    touched_waits: int = 0
    timed_out_waits: int = 0
    stale_waits: int = 0
    flushes: int = 0
    wakes: int = 0
    wake_ms: float = 0.0
    wake_ms_max: float = 0.0


class Tokens:
    """How many fine touches a second are worth their while."""

    def __init__(self, settings: TouchSettings, now: float) -> None:
        self._left = float(settings.fine_burst_tokens)
        self._as_of = now

    def has_any(self, settings: TouchSettings, now: float) -> bool:
        gained = max(now - self._as_of, 0) * settings.fine_tokens_per_second
        self._left = min(self._left + gained, float(settings.fine_burst_tokens))
        self._as_of = now
        return self._left >= 1

    def spend(self, count: int) -> None:
        self._left -= count


class StreamTouches:
    """Begins at the stream's tail: no cursor is older. `now` is on the service's clock."""

    def __init__(
        self, settings: TouchSettings, tail: int, budget: FilterBudget, now: float, now_ms: int
    ) -> None:
        self.settings = settings
        memory = settings.memory
        self.journal = Journal(
            memory.k,
            1 << memory.filter_pow2,
            memory.pending_max_keys,
            memory.key_index_max_keys,
            budget,
        )
        self.templates = Templates(settings.templates, now_ms)
        self.totals = Totals()
        self.scanned = tail  # records before this one are looked at
        self.target = tail  # and all before this one have to be
        self.asked_at = now  # when a client was last interested
        self.settling: set[Wait] = set()  # clients that want to know when nothing is pending
        self._tokens = Tokens(settings, now)
        self._is_behind = False

    def change_settings(self, settings: TouchSettings) -> None:
        self.settings = settings
        self.templates.limits = settings.templates
        self.journal.pending_max = settings.memory.pending_max_keys

    @property
    def lag(self) -> int:
        return self.target - self.scanned

    @property
    def is_settled(self) -> bool:
        return not self.lag and not self.journal.is_dirty

    @property
    def mode(self) -> Mode:
        if self.settings.fine_touch_budget_per_batch == 0:
            return Mode.COARSE_ONLY
        if self._is_behind:
            return Mode.RESTRICTED
        return Mode.FINE if self.journal.waits or self.templates else Mode.IDLE

    # Records

    def heard(self, first: int, end: int, now_ms: int) -> None:
        """There are new records, from `first` on."""
        if first > self.target:  # some came while touch was off
            self.give_up(first, now_ms)
        self.target = max(self.target, end)

    def give_up(self, end: int, now_ms: int) -> None:
        """Records before this one are not looked at: everything counts as touched."""
        if end > self.scanned:
            self.journal.skip(Reach.TABLE, end - 1, now_ms)
            self.scanned = end
            self.target = max(self.target, end)

    def look_at_some(self, log: Log | None, now: float, now_ms: int) -> int:
        """Takes in the next records, as many as fit into one turn; how much work it was."""
        if log is None or self.scanned < log.held_ordinal:
            self.give_up(self.target, now_ms)
            return 1
        self._judge_lag()
        touched_before = self.totals.table_touches
        fine_max = self.totals.fine_touches + max(self.settings.fine_touch_budget_per_batch, 1)
        work = 0
        end = min(self.target, log.tail_ordinal, self.scanned + TOUCH_WORK_PER_TURN)
        for message in _messages(log, self.scanned, end):
            work += self._look_at(message, self.scanned, now, now_ms)
            self.scanned += 1
            self.totals.rows += 1
            if work >= TOUCH_WORK_PER_TURN or self.totals.fine_touches >= fine_max:
                break
        self._judge_lag()
        self.totals.batches += 1
        self.totals.empty_batches += self.totals.table_touches == touched_before
        return work

    def _judge_lag(self) -> None:
        settings = self.settings
        degrade = settings.lag_degrade_fine_touches_at_source_offsets
        if degrade and self.lag >= degrade:
            self._is_behind = True
        elif self.lag <= settings.lag_recover_fine_touches_at_source_offsets:
            self._is_behind = False

    def _look_at(self, message: memoryview, ordinal: int, now: float, now_ms: int) -> int:
        """How much work it was."""
        if len(message) > TOUCH_RECORD_BYTES_MAX:
            self.journal.skip(Reach.TABLE, ordinal, now_ms)
            return 1
        work = 1 + len(message) // KIB
        templates: Sequence[Template] = ()
        try:
            change = read_change(message)
            if change is None:
                return work
            self.totals.table_touches += 1
            self.journal.touch((table_key(change.entity),), ordinal, now_ms)
            templates = [
                template
                for template in self.templates.of_entity(change.entity)
                if ordinal >= template.active_from
            ]
            if not templates:
                return work
            keys = self._keys_of_rows(change, templates, ordinal, now, now_ms)
        except NotTold:
            self.totals.not_told += 1
            self.journal.skip(Reach.TABLE, ordinal, now_ms)
            return work + len(templates)
        self.totals.fine_touches += len(keys)
        self.journal.touch(keys, ordinal, now_ms)
        return work + len(templates) + len(keys)

    def _keys_of_rows(
        self,
        change: Change,
        templates: Sequence[Template],
        ordinal: int,
        now: float,
        now_ms: int,
    ) -> Sequence[int]:
        if self.settings.fine_touch_budget_per_batch == 0:
            return self._skip_fine(templates, ordinal, now_ms, 0)
        if self._is_behind:
            reserved = self.settings.lag_reserved_fine_touch_budget_per_batch
            return self._skip_fine(templates, ordinal, now_ms, reserved)
        if not self._tokens.has_any(self.settings, now):
            return self._skip_fine(templates, ordinal, now_ms, len(templates))
        keys = self._fine_keys(change, templates)
        self._tokens.spend(len(keys))
        return keys

    def _fine_keys(self, change: Change, templates: Iterable[Template]) -> Sequence[int]:
        keys: list[int] = []
        on_missing_before = self.settings.on_missing_before
        for template in templates:
            found = fine_keys(change, template.shape, template.keys, on_missing_before)
            # Not known which row: the waits that name the template are told.
            keys.extend((template.keys.template,) if found is None else found)
        return keys

    def _skip_fine(
        self, templates: Sequence[Template], ordinal: int, now_ms: int, template_keys_max: int
    ) -> Sequence[int]:
        """Keys of templates instead, unless those are too many as well."""
        self.totals.fine_dropped += len(templates)
        if len(templates) > template_keys_max:
            self.journal.skip(Reach.TEMPLATE, ordinal, now_ms)
            return ()
        self.journal.skip(Reach.FINE, ordinal, now_ms)
        return [template.keys.template for template in templates]

    # Templates

    def activate(
        self, declared: Iterable[Declared], tail: int, now_ms: int, ttl_ms: float
    ) -> tuple[list[Activation], list[Wait]]:
        """What became of each, and the waits that have to be told because their template went."""
        activations: dict[int, Activation] = {}
        gone: list[Template] = []
        for each in declared:
            if each.template_id in activations:
                continue
            activation, made_room = self.templates.activate(each, tail, now_ms, ttl_ms)
            activations[each.template_id] = activation
            gone += made_room
            template = self.templates.get(each.template_id)
            if activation.is_recovered and template is not None:
                # Nothing was noted since it went: cursors are good from the next flush on.
                template.recovered_generation = self.journal.generation + 1
                self.journal.skip(Reach.FINE, tail - 1, now_ms)
        return list(activations.values()), self._went(gone, now_ms)

    def retire_unseen(self, now_ms: int) -> None:
        """Those that no client has named for long, and none waits for now."""
        unseen = self.templates.unseen(now_ms)
        if not unseen:
            return
        named = frozenset().union(*(wait.template_ids for wait in self.journal.waits))
        for template in unseen:
            if template.template_id in named:
                self.templates.see(template.template_id, now_ms)
            else:
                self.templates.retire(template)
                self.journal.skip(Reach.FINE, self.scanned - 1, now_ms)

    def _went(self, templates: Sequence[Template], now_ms: int) -> list[Wait]:
        """The waits that name one of these, which leave; those that name none are told later."""
        if not templates:
            return []
        self.journal.skip(Reach.FINE, self.scanned - 1, now_ms)
        told = self.journal.waits_for([template.template_id for template in templates])
        for wait in told:
            self.journal.leave(wait)
        return told

    # Waits

    def watch_for(self, asked: Asked) -> Watch:
        """What the journal has to look out for."""
        kind = self._kind_of(asked)
        if kind is Kind.TABLE and asked.template_ids:
            tables = self._tables_of(asked.template_ids)
            if tables and not self.inactive(asked.template_ids):
                return Watch(kind, _compact(tables), Reach.TABLE, frozenset())
            if tables:  # of some the table is not known
                return Watch(kind, _compact(tables | asked.key_ids), Reach.FINE, frozenset())
            kind = Kind.FINE
        if kind is Kind.TABLE:
            return Watch(kind, _compact(asked.key_ids), Reach.TABLE, frozenset())
        if not asked.template_ids:
            return Watch(kind, _compact(asked.key_ids), Reach.FINE, asked.exact_keys)
        template_keys = frozenset(map(template_key, asked.template_ids))
        exact = asked.exact_keys | template_keys if asked.exact_keys else frozenset()
        ids = asked.key_ids.union(key & KEY_ID_MASK for key in template_keys)
        return Watch(kind, _compact(ids), Reach.TEMPLATE, exact)

    def _kind_of(self, asked: Asked) -> Kind:
        if asked.is_coarse:
            return Kind.TABLE
        if asked.template_ids and self.mode is Mode.RESTRICTED:
            return Kind.TEMPLATE
        if asked.template_ids and self.mode is Mode.COARSE_ONLY:
            return Kind.TABLE
        return Kind.FINE

    def _tables_of(self, template_ids: Iterable[int]) -> frozenset[int]:
        """The ids of their tables' keys, as far as they are active."""
        active = filter(None, map(self.templates.get, template_ids))
        return frozenset(table_key(template.entity) & KEY_ID_MASK for template in active)

    def inactive(self, template_ids: Iterable[int]) -> list[int]:
        return [each for each in template_ids if self.templates.get(each) is None]

    def is_stale(self, cursor: Cursor) -> bool:
        """It is of another journal: of an earlier run of the server, or an earlier stream."""
        return cursor.epoch != self.journal.epoch or cursor.generation > self.journal.generation

    def was_touched(self, wait: Wait, generation: int) -> bool:
        """Whether the wait has its answer already."""
        for each in wait.template_ids:
            template = self.templates.get(each)
            if template is not None and generation < template.recovered_generation:
                return True
        return self.journal.was_touched(wait, generation)

    # When to flush

    def flush_at(self, now: float) -> float:
        """The time for what is pending: at once after a rest, so that the first is told quickly,
        and together with what follows it after that."""
        bucket_seconds = self.settings.memory.bucket_ms / 1000
        if self.settling and not self.lag:
            return now
        if not self.journal.waits:
            return now + bucket_seconds
        return self.journal.flushed + min(self.coalesce_seconds, bucket_seconds)

    @property
    def coalesce_seconds(self) -> float:
        if not self.journal.waits:
            return self.settings.memory.bucket_ms / 1000
        if not self.lag:
            return TOUCH_COALESCE_SECONDS
        if self.lag <= self.settings.lag_degrade_fine_touches_at_source_offsets:
            return TOUCH_LAGGING_COALESCE_SECONDS
        return self.settings.memory.bucket_ms / 1000


def _compact(ids: frozenset[int]) -> tuple[int, ...] | frozenset[int]:
    """A set of few numbers takes four times as much."""
    return tuple(ids) if len(ids) <= 32 else ids


def _messages(log: Log, first: int, end: int) -> Iterator[memoryview]:
    """The records from `first` to `end`, without the comma that follows each."""
    if first >= end:
        return
    start, blocks = log.blocks_between(log.byte_at(first), log.byte_at(end))
    ordinal = start.ordinal
    for block in blocks:
        ends, data = block.message_ends, memoryview(block.data)
        skipped = max(first - ordinal, 0)
        begin = block.end_of(skipped)
        for index in range(skipped, min(block.count, end - ordinal)):
            yield data[begin : ends[index] - 1]
            begin = ends[index]
        ordinal += block.count
