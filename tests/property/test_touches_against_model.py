"""No touch is ever missed: a table of rows, queries over it, and the waits that watch them.

The model is the table itself. A query is an entity with an equality; its answer is known before and
after every change, so it is known which waits have to be told, whatever keys, filters, modes and
overflows there are in between. The reverse is not asked for: a wait may be told for nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import pytest

from millstream.errors import StreamError
from millstream.schemas.touch_settings import TouchMemory, TouchSettings, TouchTemplates
from millstream.state.log import Log
from millstream.touch import stream as touch_stream
from millstream.touch.filter import FilterBudget
from millstream.touch.journal import Told, Wait
from millstream.touch.keys import KEY_ID_MASK, KeyMaker, join_arguments, table_key
from millstream.touch.stream import Asked, StreamTouches
from millstream.touch.templates import Declared

ENTITIES = ("users", "todos")
FIELDS = ("a", "b")
VALUES = ("x", "y")
STEPS = 1000
SHAPES = ((FIELDS[0],), (FIELDS[1],), FIELDS)

Row = dict[str, Any]
Watched = Literal["table", "rows", "members", "note"]


@dataclass(frozen=True)
class Query:
    """Which rows a client looks at, and what of them."""

    entity: str
    fields: tuple[str, ...]
    values: tuple[str, ...]
    watched: Watched

    @property
    def declared(self) -> Declared:
        return Declared(self.entity, tuple((name, "string") for name in self.fields))

    def shows(self, row: Row | None) -> bool:
        return row is not None and all(
            row[name] == value for name, value in zip(self.fields, self.values, strict=True)
        )

    def is_changed(self, before: Row | None, after: Row | None) -> bool:
        """Whether its answer is another."""
        if self.watched == "table":
            return True
        was, is_now = self.shows(before), self.shows(after)
        if self.watched == "members" or was != is_now:
            return was != is_now
        if not was:
            return False
        assert before is not None
        assert after is not None
        return self.watched == "rows" or before["note"] != after["note"]

    def keys(self) -> list[int]:
        if self.watched == "table":
            return [table_key(self.entity)]
        maker, arguments = KeyMaker(self.declared.template_id), join_arguments(self.values)
        if self.watched == "rows":
            return [maker.watch(arguments)]
        members = maker.membership(arguments)
        return [members] if self.watched == "members" else [members, maker.field("note", arguments)]


class Client(Wait):
    """Remembers whether it was told, and whether it had to be."""

    def __init__(self, query: Query, touches: StreamTouches, asked: Asked) -> None:
        watch = touches.watch_for(asked)
        super().__init__(watch.key_ids, watch.reach, watch.exact, asked.template_ids)
        self.query = query
        self.names_template = bool(asked.template_ids)
        self.must_be_told = False
        self.is_told = False

    def tell(self, outcome: Told | StreamError) -> None:
        self.is_told = True


class Table:
    """A database, its changes in a stream, and clients with queries."""

    def __init__(self, touch: TouchSettings) -> None:
        self.log = Log()
        self.touches = StreamTouches(touch, 0, FilterBudget(), 0.0, 0)
        self.rows: dict[tuple[str, str], Row] = {}
        self.now_ms = 1000
        self.told = 0  # clients that had to be
        self.left_alone = 0
        self.clients: list[Client] = []
        # For each query that a client asked: the cursor before it asked, and whether it changed.
        self.asked: list[tuple[Query, int, bool, bool]] = []

    def change(self, entity: str, key: str, row: Row | None, tells_before: bool) -> None:
        before = self.rows.pop((entity, key), None)
        if before is None and row is None:
            return
        operation = "insert" if before is None else "delete" if row is None else "update"
        record: dict[str, Any] = {"type": entity, "key": key, "headers": {"operation": operation}}
        if row is not None:
            self.rows[entity, key] = record["value"] = row
        if before is not None and tells_before:
            record["old_value"] = before
        first = self.log.tail_ordinal
        self.log.append(json.dumps(record).encode() + b",", None, self.now_ms)
        self.touches.heard(first, first + 1, self.now_ms)
        is_told = before is None or tells_before
        self._note(entity, before, row, is_told)

    def _note(self, entity: str, before: Row | None, after: Row | None, tells_before: bool) -> None:
        def concerns(query: Query, names_template: bool) -> bool:
            # Without the row before, only those who name their template are promised a touch.
            is_promised = query.watched == "table" or tells_before or names_template
            return is_promised and query.entity == entity and query.is_changed(before, after)

        for client in self.clients:
            client.must_be_told |= concerns(client.query, client.names_template)
        self.asked = [
            (query, cursor, names, is_changed or concerns(query, names))
            for query, cursor, names, is_changed in self.asked
        ]

    def ask(self, query: Query, names_template: bool) -> None:
        """As clients do: activate, take a cursor, ask the database; the wait comes later."""
        if query.watched != "table":
            _, told = self.touches.activate(
                [query.declared], self.log.tail_ordinal, self.now_ms, 60_000
            )
            for wait in told:
                wait.tell(Told(True, self.touches.journal.moment()))
        names = names_template and query.watched != "table"
        self.asked.append((query, self.touches.journal.generation, names, False))

    def wait(self, number: int, is_exact: bool) -> None:
        if not self.asked:
            return
        query, cursor, names, is_changed = self.asked.pop(number % len(self.asked))
        template_ids = {query.declared.template_id} if names else set()
        if names and self.touches.templates.get(query.declared.template_id) is None:
            return  # the answer would say that it has to be activated again
        keys = query.keys()
        asked = Asked(
            frozenset(key & KEY_ID_MASK for key in keys),
            frozenset(template_ids),
            query.watched == "table",
            frozenset(keys) if is_exact else frozenset(),
        )
        client = Client(query, self.touches, asked)
        client.must_be_told = is_changed
        self.clients.append(client)
        if self.touches.was_touched(client, cursor):
            client.tell(Told(True, self.touches.journal.moment()))
        else:
            self.touches.journal.join(client)

    def look(self) -> None:
        self.now_ms += 1
        self.touches.look_at_some(self.log, self.now_ms / 1000, self.now_ms)

    def flush(self) -> None:
        self.now_ms += 10
        if self.touches.journal.is_dirty:
            for wait in self.touches.journal.flush(self.now_ms / 1000, self.now_ms):
                self.touches.journal.leave(wait)
                wait.tell(Told(True, self.touches.journal.moment()))

    def evict(self) -> None:
        self.log.trim(self.log.tail)
        self.log.drop(self.log.tail_byte)

    def tidy(self) -> None:
        self.now_ms += 10_000
        self.touches.journal.tidy(self.now_ms / 1000)

    def settle(self) -> None:
        while self.touches.lag:
            self.look()
        self.flush()

    def check(self) -> None:
        for client in self.clients:
            assert client.is_told or not client.must_be_told, client.query
        self.told += sum(client.must_be_told for client in self.clients)
        self.clients = [client for client in self.clients if not client.is_told]
        self.left_alone += len(self.clients)


QUERIES = [
    Query(entity, fields, (value,) * len(fields), watched)
    for entity in ENTITIES
    for fields in SHAPES
    for value in VALUES
    for watched in ("table", "rows", "members", "note")
]


def play(table: Table, random: Random) -> None:
    """One step of a story; changes and questions come most often."""
    what = random.random()
    if what < 0.3:
        row = {name: random.choice((*VALUES, None)) for name in FIELDS}
        is_deleted, tells_before = random.random() < 0.2, random.random() < 0.8
        new = None if is_deleted else {**row, "note": random.randint(0, 1)}
        table.change(random.choice(ENTITIES), random.choice("12"), new, tells_before)
    elif what < 0.5:
        table.ask(random.choice(QUERIES), random.random() < 0.5)
    elif what < 0.7:
        table.wait(random.randrange(100), random.random() < 0.3)
    elif what < 0.8:
        table.look()
    elif what < 0.9:
        table.flush()
    elif what < 0.97:
        table.settle()
        table.check()
    else:
        random.choice((table.evict, table.tidy))()


SETTINGS = {
    "roomy": TouchSettings(enabled=True),
    "strict": TouchSettings(enabled=True, on_missing_before="error"),
    "few templates": TouchSettings(
        enabled=True,
        templates=TouchTemplates(
            max_active_templates_per_stream=2, activation_rate_limit_per_minute=0
        ),
    ),
    "often behind": TouchSettings(
        enabled=True,
        lag_degrade_fine_touches_at_source_offsets=3,
        lag_recover_fine_touches_at_source_offsets=1,
        lag_reserved_fine_touch_budget_per_batch=2,
    ),
    "few tokens": TouchSettings(enabled=True, fine_burst_tokens=2, fine_tokens_per_second=1),
    "tables only": TouchSettings(enabled=True, fine_touch_budget_per_batch=0),
    "little memory": TouchSettings(
        enabled=True,
        memory=TouchMemory(pending_max_keys=3, key_index_max_keys=1, filter_pow2=10, k=1),
    ),
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("touch", SETTINGS.values(), ids=list(SETTINGS))
def test_a_query_whose_answer_changed_is_told(
    touch: TouchSettings, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"seed {seed}")
    random, table = Random(seed), Table(touch)
    monkeypatch.setattr(touch_stream, "TOUCH_WORK_PER_TURN", random.choice([1, 2, 1000]))
    for _ in range(STEPS):
        play(table, random)
    table.settle()
    table.check()
    assert table.told
    if touch == SETTINGS["roomy"]:
        assert table.left_alone, "waits are not told for everything"
