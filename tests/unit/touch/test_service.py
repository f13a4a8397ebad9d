"""What clients of the touch routes see, from the engine below to the answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from millstream.access.gate import Grant
from millstream.access.scopes import parse_rule
from millstream.touch.keys import KeyMaker, join_arguments, key_id_of, key_text, table_key
from tests.unit.touch.world import (
    PATH,
    TEMPLATE,
    TouchWorld,
    answered,
    driven,
    record,
    row,
    until,
)

TABLE = "feadeb84d447fd63"
TEMPLATE_ID = "03d5826f0bf1e3e7"
MAKER = KeyMaker(int(TEMPLATE_ID, 16))
OPEN = key_text(MAKER.watch(join_arguments(["open", "t1"])))
DONE = key_text(MAKER.watch(join_arguments(["done", "t1"])))

Story = Callable[[TouchWorld], Awaitable[None]]


def run(story: Story) -> None:
    async def told() -> None:
        async with driven() as world:
            await story(world)

    asyncio.run(told())


async def is_quiet(*requests: Any) -> bool:
    """None of them is answered, though all that happened has been told."""
    await asyncio.sleep(0.05)
    return not any(request.is_answered for request in requests)


def test_a_change_wakes_who_waits_for_its_table() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        waiting, other = world.wait(keys=[TABLE]), world.wait(keys=["0" * 16])
        assert await is_quiet(waiting)
        await world.append(stream, record(value=row()))
        answer = await answered(waiting)
        epoch, _, generation = answer["cursor"].partition(":")
        assert (answer["touched"], answer["effectiveWaitKind"]) == (True, "fineKey")
        assert (len(epoch), generation) == (16, "1")
        assert answer["bucketMaxSourceOffsetSeq"] == "0"
        assert 0 < answer["bucketStartMs"] <= answer["flushAtMs"]
        assert await is_quiet(other)

    run(story)


def test_what_was_touched_since_the_cursor_is_told_at_once() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        cursor = await world.settled(stream)
        await world.append(stream, record(value=row()))
        after = await world.settled(stream)
        waiting = world.wait(cursor=cursor, keys=[TABLE])
        assert waiting.json["touched"] is True
        assert waiting.json["cursor"] == after
        later = world.wait(cursor=after, keys=[TABLE], timeoutMs=20)
        assert (await answered(later))["touched"] is False

    run(story)


def test_a_change_that_is_not_told_yet_wakes_who_comes_meanwhile() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        cursor = await world.settled(stream)
        appended = world.perform(world.command(stream, record(value=row())))
        await asyncio.gather(appended, asyncio.sleep(0))
        waiting = world.wait(cursor=cursor, keyIds=[key_id_of(TABLE)])
        assert (await answered(waiting))["touched"] is True

    run(story)


def test_rows_are_told_apart_by_templates() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        activated = world.activate()
        assert activated.json["activated"] == [
            {
                "templateId": TEMPLATE_ID,
                "state": "active",
                "activeFromTouchOffset": world.meta().json["cursor"],
            }
        ]
        opened = world.wait(keys=[OPEN], templateIdsUsed=[TEMPLATE_ID])
        done = world.wait(keys=[DONE], templateIdsUsed=[TEMPLATE_ID])
        await world.append(stream, record(value=row("open")))
        assert (await answered(opened))["touched"] is True
        assert await is_quiet(done)
        await world.append(stream, record("update", value=row("done"), old_value=row("open")))
        assert (await answered(done))["touched"] is True

    run(story)


def test_a_template_hears_of_nothing_that_came_before_it() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        cursor = await world.settled(stream)
        await world.append(stream, record(value=row("open")))
        world.activate()
        await world.settled(stream)
        early = world.wait(cursor=cursor, keys=[OPEN], timeoutMs=10)
        assert (await answered(early))["touched"] is False

    run(story)


def test_without_the_row_before_a_wait_that_names_the_template_is_told() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        world.activate()
        waiting = world.wait(keys=[OPEN], templateIdsUsed=[TEMPLATE_ID])
        await world.append(stream, record("update", value=row("done")))
        assert (await answered(waiting))["touched"] is True

    run(story)


@pytest.mark.parametrize("policy", ["skipBefore", "error"])
def test_the_row_before_may_be_left_out_as_the_settings_say(policy: str) -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create(onMissingBefore=policy)
        world.activate()
        now, before = world.wait(keys=[DONE]), world.wait(keys=[OPEN])
        await world.append(stream, record("update", value=row("done")))
        assert (await answered(now))["touched"] is True
        assert await is_quiet(before) is (policy == "skipBefore")

    run(story)


def test_a_coarse_wait_is_about_the_tables_of_its_templates() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        world.activate()
        waiting = world.wait(keys=[OPEN], templateIdsUsed=[TEMPLATE_ID], interestMode="coarse")
        as_given = world.wait(keys=[TABLE], interestMode="coarse")
        unknown = world.wait(keys=[TABLE], interestMode="coarse", templateIdsUsed=["f" * 16])
        await world.append(stream, record(value=row("done", "t2")))
        assert (await answered(waiting))["effectiveWaitKind"] == "tableKey"
        assert (await answered(as_given))["effectiveWaitKind"] == "tableKey"
        answer = await answered(unknown)
        assert answer["effectiveWaitKind"] == "fineKey"
        assert answer["inactiveTemplateIds"] == ["f" * 16]

    run(story)


def test_an_exact_wait_is_told_of_its_whole_keys_alone() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        alike = f"{0x1234:08x}{TABLE[8:]}"  # with the same id as the table's key
        cursor = await world.settled(stream)
        exact, loose = world.wait(keys=[alike], exact=True), world.wait(keys=[alike])
        right = world.wait(keys=[TABLE], exact=True)
        await world.append(stream, record(value=row()))
        assert (await answered(loose))["touched"] is True
        assert (await answered(right))["touched"] is True
        assert await is_quiet(exact)
        missed = world.wait(cursor=cursor, keys=[alike], exact=True, timeoutMs=10)
        assert (await answered(missed))["touched"] is False
        found = world.wait(cursor=cursor, keys=[TABLE], exact=True)
        assert found.json["touched"] is True

    run(story)


def test_a_wait_ends_when_its_time_is_up() -> None:
    async def story(world: TouchWorld) -> None:
        await world.create()
        began = time.monotonic()
        waiting, at_once = world.wait(keys=["x"], timeoutMs=40), world.wait(keys=["x"], timeoutMs=0)
        assert at_once.json["touched"] is False
        assert (await answered(waiting))["touched"] is False
        assert 0.035 < time.monotonic() - began < 5
        assert world.meta().json["waitTimeoutTotal"] == 2
        assert len(world.service._timers) == 1  # the sweep of this stream

    run(story)


def test_a_client_that_leaves_is_forgotten() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        gone, half, stays = (world.wait(keys=[TABLE]) for _ in range(3))
        assert world.meta().json["activeWaiters"] == 3
        assert gone.on_disconnect is not None
        assert half.on_half_close is not None
        gone.on_disconnect()
        half.on_half_close()
        assert half.json["touched"] is False
        assert world.meta().json["activeWaiters"] == 1
        await world.append(stream, record(value=row()))
        await answered(stays)
        assert not gone.is_answered
        assert stays.on_disconnect is None

    run(story)


def test_a_wait_ends_with_the_key_that_opened_it() -> None:
    async def story(world: TouchWorld) -> None:
        await world.create()
        rules = [parse_rule("read:*")]
        revoked, expiring = Grant("a", rules), Grant("b", rules, world.clock.now_ms() + 30)
        first = world.wait(keys=["x"], grant=revoked)
        second = world.wait(keys=["x"], grant=expiring)
        for read in revoked.revoke():
            read.revoked()
        assert first.status == 401
        assert (await answered(second))["touched"] is False
        assert world.service.waits == 0

    run(story)


def test_who_waits_on_a_stream_that_ends_is_told() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        waiting = world.wait(keys=[TABLE])
        await world.delete(stream)
        await until(lambda: waiting.is_answered)
        assert (waiting.status, waiting.message) == (404, "touch not enabled")
        assert world.service.streams == 0

    run(story)


def test_who_waits_when_touch_is_turned_off_is_told() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        cursor = await world.settled(stream)
        waiting = world.wait(keys=[TABLE])
        await world.set_touch(stream, enabled=False)
        await until(lambda: waiting.is_answered)
        assert (waiting.status, waiting.message) == (404, "touch not enabled")
        for request in (world.meta(), world.activate(), world.wait(keys=[TABLE])):
            assert (request.status, request.message) == (404, "touch not enabled")
        await world.set_touch(stream)
        stale = world.wait(cursor=cursor, keys=[TABLE])
        assert stale.json["stale"] is True

    run(story)


def test_a_cursor_of_another_run_is_stale() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        cursor = await world.settled(stream)
        for foreign in ("0123456789abcdef:5", cursor.partition(":")[0] + ":77"):
            answer = world.wait(cursor=foreign, keys=[TABLE]).json
            assert answer["error"]["code"] == "stale"
            assert answer["cursor"] == cursor == f"{answer['epoch']}:{answer['generation']}"
            assert answer["effectiveWaitKind"] == "fineKey"
            assert answer["bucketMaxSourceOffsetSeq"] == "-1"
        assert world.meta().json["waitStaleTotal"] == 2

    run(story)


def test_a_stop_answers_everybody() -> None:
    async def story(world: TouchWorld) -> None:
        await world.create()
        waiting = [world.wait(keys=[str(number)]) for number in range(1200)]
        world.service.end_waits()
        assert all(request.json["touched"] is False for request in waiting)
        assert world.wait(keys=["late"]).json["touched"] is False

    run(story)


def test_too_many_keys_at_once_wake_everybody() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create(memory={"pendingMaxKeys": 10})
        cursor = await world.settled(stream)
        waiting = world.wait(keys=["x"])
        await world.append(stream, *(record(entity=f"e{number}", value=1) for number in range(20)))
        assert (await answered(waiting))["touched"] is True
        assert world.meta().json["overflowBuckets"] > 0
        assert world.wait(cursor=cursor, keys=["y"]).json["touched"] is True

    run(story)


def test_a_record_that_is_too_long_or_no_change_wakes_everybody() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        for strange in (record(value="x" * 300_000), 5, {"headers": {"operation": 1}}):
            await world.settled(stream)
            waiting = world.wait(keys=["x"])
            await world.append(stream, strange)
            assert (await answered(waiting))["touched"] is True

    run(story)


def test_a_control_record_wakes_nobody() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        waiting = world.wait(keys=[TABLE])
        await world.append(stream, {"headers": {"control": "reset"}})
        assert await is_quiet(waiting)
        assert world.meta().json["scanRowsTotal"] == 1

    run(story)


def test_a_stream_that_is_far_behind_tells_of_templates_instead_of_rows() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create(
            lagDegradeFineTouchesAtSourceOffsets=50, lagRecoverFineTouchesAtSourceOffsets=0
        )
        world.activate()
        cursor = await world.settled(stream)
        table, raw = world.wait(keys=["0" * 16], interestMode="coarse"), world.wait(keys=[DONE])
        waiting = world.wait(keys=[DONE], templateIdsUsed=[TEMPLATE_ID])
        await world.append(stream, *(record(value=row()) for _ in range(5000)))
        assert world.meta().json["touchMode"] == "restricted"
        restricted = world.wait(keys=[DONE], templateIdsUsed=[TEMPLATE_ID], timeoutMs=0)
        assert restricted.json["effectiveWaitKind"] == "templateKey"
        refused = world.wait(keys=[DONE], templateIdsUsed=[TEMPLATE_ID], exact=True)
        assert refused.message == (
            "wait.exact requires fine interest while runtime is in fine-key mode"
        )
        assert (await answered(waiting))["touched"] is True
        assert (await answered(raw))["touched"] is True  # perhaps it was
        assert await is_quiet(table)
        assert world.wait(cursor=cursor, keys=[DONE]).json["touched"] is True
        await world.settled(stream)
        meta = world.meta().json
        assert meta["touchMode"] == "fine"
        assert meta["fineTouchesDroppedDueToBudgetTotal"] > 3000

    run(story)


def test_without_a_budget_only_tables_are_told() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create(fineTouchBudgetPerBatch=0)
        world.activate()
        waiting = world.wait(keys=[DONE], templateIdsUsed=[TEMPLATE_ID])
        raw, table = world.wait(keys=[DONE]), world.wait(keys=["x"], interestMode="coarse")
        await world.append(stream, record(value=row()))
        assert (await answered(waiting))["effectiveWaitKind"] == "tableKey"
        assert (await answered(raw))["touched"] is True
        assert await is_quiet(table)

    run(story)


def test_tokens_that_are_used_up_leave_it_to_the_templates() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create(fineBurstTokens=2, fineTokensPerSecond=0)
        world.activate()
        await world.append(stream, record(value=row()))
        await world.settled(stream)
        waiting = world.wait(keys=[DONE], templateIdsUsed=[TEMPLATE_ID])
        await world.append(stream, record(value=row()))
        assert (await answered(waiting))["touched"] is True
        assert world.meta().json["fineTouchesDroppedDueToBudgetTotal"] == 1

    run(story)


def test_records_that_left_memory_before_they_were_looked_at_count_for_everything() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        waiting = world.wait(keys=["x"])
        await world.append(stream, *(record(value=row()) for _ in range(3000)))
        assert world.touches(stream).lag > 0
        stream.log.trim(stream.log.tail)
        stream.log.drop(stream.log.tail_byte)
        assert (await answered(waiting))["touched"] is True
        assert world.meta().json["lagSourceOffsets"] == 0

    run(story)


def test_what_came_while_touch_was_off_counts_for_everything() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        cursor = await world.settled(stream)
        touches = world.touches(stream)
        touches.heard(2, 3, world.clock.now_ms())
        touches.scanned = touches.target
        world.service._plan_flush(stream.stream_id, touches)
        await until(lambda: not touches.journal.is_dirty)
        assert world.wait(cursor=cursor, keys=["x"]).json["touched"] is True

    run(story)


def test_many_records_of_many_streams_are_looked_at_in_turns() -> None:
    async def story(world: TouchWorld) -> None:
        big, small = await world.create(b"_default/big"), await world.create(b"_default/small")
        world.touches(big)
        waiting = world.wait(small.path, keys=[TABLE])
        await world.append(big, *(record(value=row()) for _ in range(20_000)))
        await world.append(small, record(value=row()))
        await answered(waiting)
        assert world.touches(big).lag > 0, "the small one did not wait for the big one"
        await until(lambda: not world.touches(big).lag)
        assert world.touches(big).totals.rows == 20_000

    run(story)


def test_thousands_of_waits_are_answered_while_others_have_their_turn() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        waiting = [world.wait(keys=[TABLE, str(number)]) for number in range(3000)]
        await world.append(stream, record(value=row()))
        await until(lambda: any(request.is_answered for request in waiting))
        assert not all(request.is_answered for request in waiting)
        await until(lambda: all(request.is_answered for request in waiting))
        assert len({request.answer[2] for request in waiting}) == 1
        assert world.service.waits == 0

    run(story)


def test_a_wait_for_many_keys_is_found_too() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        broad = world.wait(keys=[TABLE, *map(str, range(1000))])
        other = world.wait(keys=list(map(str, range(1000))))
        assert world.meta().json["broadFineWaitersActive"] == 2
        await world.append(stream, record(value=row()))
        assert (await answered(broad))["touched"] is True
        assert await is_quiet(other)

    run(story)


def test_a_template_that_is_not_named_for_long_goes() -> None:
    async def story(world: TouchWorld) -> None:
        await world.create(templates={"gcIntervalMs": 10})
        world.activate(inactivityTtlMs=30)
        assert world.meta().json["activeTemplates"] == 1
        await until(lambda: world.meta().json["activeTemplates"] == 0)

    run(story)


def test_a_template_stays_while_a_client_waits_for_it() -> None:
    async def story(world: TouchWorld) -> None:
        await world.create(templates={"gcIntervalMs": 10})
        world.activate(inactivityTtlMs=1)
        waiting = world.wait(keys=[OPEN], templateIdsUsed=[TEMPLATE_ID])
        await asyncio.sleep(0.3)
        assert world.meta().json["activeTemplates"] == 1
        assert not waiting.is_answered

    run(story)


def test_what_a_retired_template_missed_is_told_when_it_comes_back() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create(templates={"maxActiveTemplatesPerStream": 1})
        world.activate()
        cursor = await world.settled(stream)
        named = world.wait(keys=[OPEN], templateIdsUsed=[TEMPLATE_ID])
        raw = world.wait(keys=[OPEN])
        world.activate({"entity": "other", "fields": [{"name": "a", "encoding": "string"}]})
        assert (await answered(named))["touched"] is True
        assert (await answered(raw))["touched"] is True
        between = await world.settled(stream)
        await world.append(stream, record(value=row("open")))
        world.activate()
        for old in (cursor, between):
            late = world.wait(cursor=old, keys=[OPEN], templateIdsUsed=[TEMPLATE_ID])
            assert late.json["touched"] is True
        fresh = world.wait(keys=[OPEN], templateIdsUsed=[TEMPLATE_ID], timeoutMs=10)
        assert (await answered(fresh))["touched"] is False

    run(story)


def test_a_template_that_came_back_is_told_once() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create(templates={"gcIntervalMs": 10})
        world.activate(inactivityTtlMs=1)
        await until(lambda: world.meta().json["activeTemplates"] == 0)
        cursor = await world.settled(stream)
        world.activate()
        first = world.wait(cursor=cursor, keys=[OPEN], templateIdsUsed=[TEMPLATE_ID])
        assert first.json["touched"] is True
        again = {"cursor": first.json["cursor"], "keys": [OPEN], "templateIdsUsed": [TEMPLATE_ID]}
        second = world.wait(**again, timeoutMs=150)
        assert (await answered(second))["touched"] is False

    run(story)


def test_templates_may_be_declared_by_a_wait() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        waiting = world.wait(keys=[OPEN], declareTemplates=[TEMPLATE], inactivityTtlMs=5000)
        await world.append(stream, record(value=row("open")))
        assert (await answered(waiting))["touched"] is True

    run(story)


def test_meta_waits_until_nothing_is_pending() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create(memory={"bucketMs": 60_000})
        assert world.meta(query=b"settle=flush").json["settled"] is True
        await world.append(stream, *(record(value=row()) for _ in range(3000)))
        before = world.meta().json
        assert (before["settled"], before["lagSourceOffsets"] > 0) == (False, True)
        hasty = world.meta(query=b"settle=flush&timeoutMs=0")
        assert hasty.json["settled"] is False
        patient = world.meta(query=b"settle=flush")
        assert (await answered(patient))["settled"] is True
        assert patient.json["pendingKeys"] == 0
        assert patient.json["generation"] >= 1
        assert patient.json["walScannedThrough"] == stream.tail

    run(story)


def test_nothing_is_looked_at_before_a_client_asks() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        await world.append(stream, record(value=row()))
        assert (world.service.streams, len(world.service._timers)) == (0, 0)
        assert world.meta().json["generation"] == 0
        assert world.meta().json["touchMode"] == "idle"

    run(story)


def test_a_stream_in_which_no_client_is_interested_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millstream.touch.service.TOUCH_IDLE_SECONDS", 0.05)

    async def story(world: TouchWorld) -> None:
        stream = await world.create(templates={"gcIntervalMs": 10})
        cursor = await world.settled(stream)
        waiting = world.wait(keys=["x"], timeoutMs=250)
        await answered(waiting)
        assert world.service.streams == 1
        await until(lambda: world.service.streams == 0)
        assert world.wait(cursor=cursor, keys=[TABLE]).json["stale"] is True

    run(story)


def test_an_error_at_one_record_counts_for_everything_and_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = TouchWorld()
        async with asyncio.TaskGroup() as group, world.service.running(group):
            stream = await world.create()
            waiting = world.wait(keys=["x"])

            def fail(*_: object) -> None:
                raise RuntimeError("broken")

            with monkeypatch.context() as broken:
                broken.setattr("millstream.touch.stream.read_change", fail)
                await world.append(stream, record(value=row()), record(value=row()))
                assert (await answered(waiting))["touched"] is True
                await until(lambda: not world.touches(stream).lag)
            assert world.engine.faults.counts["touch"] == 2
            after = world.wait(keys=[TABLE])
            await world.append(stream, record(value=row()))
            await answered(after)
            assert "touch" not in world.engine.faults.failing()

    asyncio.run(story())


def test_new_settings_count_at_once() -> None:
    async def story(world: TouchWorld) -> None:
        stream = await world.create()
        cursor = await world.settled(stream)
        await world.set_touch(stream, coarseIntervalMs=7)
        meta = world.meta().json
        assert (meta["coarseIntervalMs"], meta["cursor"]) == (7, cursor)

    run(story)


def test_other_streams_are_not_touched() -> None:
    async def story(world: TouchWorld) -> None:
        one, two = await world.create(b"_default/one"), await world.create(b"_default/two")
        waiting = world.wait(one.path, keys=[TABLE])
        await world.append(two, record(value=row()))
        assert await is_quiet(waiting)
        assert key_text(table_key("public.todos")) == TABLE
        assert PATH not in (one.path, two.path)

    run(story)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "touch",
    [
        {},
        {"memory": {"bucketMs": 5, "pendingMaxKeys": 4, "filterPow2": 10, "k": 1}},
        {"lagDegradeFineTouchesAtSourceOffsets": 5, "lagRecoverFineTouchesAtSourceOffsets": 1},
        {"fineBurstTokens": 10, "fineTokensPerSecond": 100},
    ],
)
def test_every_client_ends_up_with_the_newest(touch: dict[str, Any], seed: int) -> None:
    """Clients ask, wait and, once they are told, ask again; none is left with an old answer."""
    print(f"seed {seed}")
    tenants, random = [f"t{number}" for number in range(8)], Random(seed)

    async def story(world: TouchWorld) -> None:
        stream = await world.create(**touch)
        world.activate()
        versions = dict.fromkeys(tenants, 0)
        shown: dict[int, tuple[str, int]] = {}

        async def watch(number: int, tenant: str) -> None:
            key = key_text(MAKER.watch(join_arguments(["open", tenant])))
            cursor = world.meta().json["cursor"]
            asked: dict[str, Any] = {"keys": [key], "templateIdsUsed": [TEMPLATE_ID]}
            asked["exact"] = number % 3 == 0
            is_touched = True
            while True:
                if is_touched:
                    shown[number] = (tenant, versions[tenant])
                await asyncio.sleep(random.choice([0, 0, 0.003]))
                waiting = world.wait(cursor=cursor, **asked, timeoutMs=random.choice([1, 3000]))
                if waiting.is_answered and waiting.status == 400:  # exact, while it is behind
                    asked["exact"] = False
                    continue
                answer = await answered(waiting)
                cursor, is_touched = answer["cursor"], answer["touched"]

        async def write() -> None:
            for _ in range(100):
                some = random.choices(tenants, k=random.choice([1, 1, 2, 12]))
                for tenant in some:
                    versions[tenant] += 1
                row_of = (row("open", tenant, n=versions[tenant]) for tenant in some)
                await world.append(stream, *(record(value=each) for each in row_of))
                await asyncio.sleep(random.choice([0, 0, 0.001, 0.012]))

        clients = [asyncio.ensure_future(watch(n, random.choice(tenants))) for n in range(20)]
        await write()
        await until(lambda: all(versions[tenant] == seen for tenant, seen in shown.values()))
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    run(story)
