from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import (
    AlreadyClaimed,
    InvalidAck,
    InvalidSubscriptionRequest,
    NoPendingWork,
    SubscriptionExists,
    SubscriptionNotFound,
    WakeFenced,
)
from millstream.state.commands import InstallKeys
from millstream.state.outcomes import Done
from millstream.state.subscription import Step, retry_delay_ms
from tests.unit.effort import brief
from tests.unit.state.followers import (
    LEASE_MS,
    WAKE_STREAM,
    Followers,
    check_bookkeeping,
    describe_subscriptions,
)
from tests.unit.state.store import JSON, describe, image_bytes
from tests.unit.state.tiered import restarted

# What is followed


def test_a_new_pattern_follows_existing_streams_from_their_tail() -> None:
    store = Followers()
    store.create(b"events/a", b"old")
    store.create(b"other/a", b"old")
    assert store.webhook("s", b"events/*") is Done.CREATED
    assert store.followed("s") == {b"events/a"}
    assert store.acked("s", b"events/a") == (1, 3)
    assert store.pending("s") == []


def test_a_pattern_over_many_streams_is_born_and_ends_without_a_look_at_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Followers()
    for number in range(100):
        store.create(b"events/%d" % number, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(store.machine.names, "keys_from", None)
        patch.setattr(store.machine, "find", None)
        assert store.webhook("s", b"events/*") is Done.CREATED
        assert not store("s").links
    store.append(b"events/7", b"new")
    assert store.acked("s", b"events/7") == (1, 3)
    assert list(store("s").links) == store.pending("s") == [b"events/7"]
    with monkeypatch.context() as patch:
        patch.setattr(store.machine.names, "keys_from", None)
        patch.setattr(store.machine, "find", None)
        assert store.unsubscribe("s") is Done.DELETED
    store.append(b"events/7", b"newer")
    check_bookkeeping(store.machine)


def test_a_stream_that_only_the_pattern_names_keeps_no_link_once_it_is_processed() -> None:
    store = Followers()
    store.webhook("s", b"events/*", b"events/named")
    store.create(b"events/a", b"1")
    store.create(b"events/named", b"1")
    store.issue("s")
    assert store.done("s") is Done.ACCEPTED
    assert list(store("s").links) == [b"events/named"]
    assert store.acked("s", b"events/a") == (1, 1)
    store.append(b"events/a", b"2")
    assert store.acked("s", b"events/a") == (1, 1)
    check_bookkeeping(store.machine)


def test_what_is_told_of_a_pattern_is_bounded_and_says_whether_there_is_more() -> None:
    store = Followers()
    for number in range(10):
        store.create(b"events/%d" % number, b"old")
        store.create(b"events/%d/below" % number)
    store.webhook("s", b"events/*", b"manual/m")
    store.append(b"events/7", b"new")
    told = store.machine.subscriptions.followed_streams
    streams, has_more = told(store("s"), 100, 100)
    assert [each.path for each in streams][:2] == ["events/7", "manual/m"]
    assert {each.path for each in streams} == {"manual/m", *(f"events/{n}" for n in range(10))}
    assert not has_more
    assert [len(streams), has_more] == [11, False]
    few, has_more = told(store("s"), 5, 100)
    assert [len(few), has_more] == [5, True]
    few, has_more = told(store("s"), 100, 6)
    assert [len(few), has_more] == [5, True]
    few, has_more = told(store("s"), 1, 100)
    assert [len(few), has_more] == [1, True]


def test_a_stream_created_later_is_followed_from_before_its_first_message() -> None:
    store = Followers()
    store.webhook("s", b"events/*")
    store.create(b"events/a", b"first")
    assert store.acked("s", b"events/a") == (0, 0)
    assert store.pending("s") == [b"events/a"]
    assert list(store.machine.outbox.stirred) == ["s"]


def test_a_new_fork_is_followed_from_its_start_with_all_it_inherited() -> None:
    store = Followers()
    store.create(b"source/a", b"1", b"2")
    store.webhook("s", b"forks/**")
    store.fork(b"forks/f", b"source/a")
    assert store.acked("s", b"forks/f") == (0, 0)
    assert store.pending("s") == [b"forks/f"]


def test_streams_in_the_default_bucket_are_matched_without_its_name() -> None:
    store = Followers()
    store.create(b"_default/a", b"1")
    store.webhook("s", b"*")
    store.webhook("t", b"*/*")
    store.create(b"_default/b", b"1")
    assert store.followed("s") == {b"_default/a", b"_default/b"}
    assert not store.followed("t")


def test_explicit_streams_need_not_exist() -> None:
    store = Followers()
    store.webhook("s", None, b"manual/a")
    assert store.acked("s", b"manual/a") == (0, 0)
    store.create(b"manual/a", b"1")
    assert store.pending("s") == [b"manual/a"]


def test_an_explicit_link_to_an_existing_stream_begins_at_its_tail() -> None:
    store = Followers()
    store.create(b"manual/a", b"1")
    store.webhook("s", None, b"manual/b")
    assert store.link("s", b"manual/a") is Done.ACCEPTED
    assert store.link("s", b"manual/a") is Done.ACCEPTED
    assert store.acked("s", b"manual/a") == (1, 1)
    assert store.pending("s") == []


def test_removing_an_explicit_link_keeps_the_glob_link() -> None:
    store = Followers()
    store.create(b"events/a")
    store.webhook("s", b"events/*", b"events/a", b"manual/a")
    assert store.unlink("s", b"events/a") is Done.ACCEPTED
    assert store.unlink("s", b"manual/a") is Done.ACCEPTED
    assert store.unlink("s", b"manual/a") is Done.NOTHING
    assert store.followed("s") == {b"events/a"}
    check_bookkeeping(store.machine)


def test_a_stream_that_ends_takes_its_glob_link_along_and_leaves_the_explicit_one() -> None:
    store = Followers()
    store.webhook("s", b"events/*", b"events/b")
    for path in (b"events/a", b"events/b"):
        store.create(path, b"1")
        store.delete(path)
    assert store.followed("s") == {b"events/b"}
    assert store.pending("s") == []
    store.create(b"events/b", b"1")
    assert store.acked("s", b"events/b") == (0, 0)
    assert store.pending("s") == [b"events/b"]


def test_a_soft_deleted_stream_is_not_followed_any_more() -> None:
    store = Followers()
    store.create(b"events/a", b"1")
    store.webhook("s", b"events/*")
    store.fork(b"forks/f", b"events/a")
    store.delete(b"events/a")
    assert not store.followed("s")
    assert not store("s").links
    check_bookkeeping(store.machine)


def test_the_same_configuration_is_confirmed_and_another_refused() -> None:
    store = Followers()
    assert store.webhook("s", b"events/*") is Done.CREATED
    assert store.webhook("s", b"events/*") is Done.EXISTED
    assert isinstance(store.webhook("s", b"events/**"), SubscriptionExists)
    assert isinstance(store.webhook("s", b"events/*", description="x"), SubscriptionExists)
    assert isinstance(store.pull("s", b"events/*"), SubscriptionExists)


def test_a_deleted_subscription_leaves_nothing_behind() -> None:
    store = Followers()
    store.create(b"events/a")
    store.webhook("s", b"events/*", b"events/a", b"manual/x")
    store.webhook("t", b"events/a")
    assert store.unsubscribe("s") is Done.DELETED
    assert store.unsubscribe("s") is Done.NOTHING
    assert store.subscribers(b"events/a") == ("t",)
    store.unsubscribe("t")
    assert not store.subscribers(b"events/a")
    store.append(b"events/a", b"1")
    store.create(b"events/b", b"1")
    store.create(b"manual/x", b"1")
    assert not store.subscribers(b"manual/x")
    assert isinstance(store.link("s", b"x/y"), SubscriptionNotFound)
    assert isinstance(store.unlink("s", b"x/y"), SubscriptionNotFound)


def test_a_subscription_never_follows_its_own_wake_stream() -> None:
    store = Followers()
    store.add_wake_stream()
    store.pull("s", b"**")
    assert WAKE_STREAM not in store.followed("s")
    assert isinstance(store.link("s", WAKE_STREAM), InvalidSubscriptionRequest)
    store.create(b"events/a", b"1")
    store.issue("s")
    assert store.pending("s") == [b"events/a"]
    store.delete(WAKE_STREAM)
    store.add_wake_stream()
    assert WAKE_STREAM not in store.followed("s")


# Webhooks


def woken_webhook() -> Followers:
    store = Followers()
    store.webhook("s", b"events/*")
    store.create(b"events/a", b"1", b"22")
    store.issue("s")
    return store


def test_one_wake_is_in_flight_and_each_is_a_generation() -> None:
    store = woken_webhook()
    assert store.wake_of("s") == ("w1", 1)
    assert store.issue("s") is Done.NOTHING
    store.append(b"events/a", b"3")
    assert store.wake_of("s") == ("w1", 1)
    store.done("s")
    assert store.issue("s") is Done.NOTHING  # nothing is pending
    store.append(b"events/a", b"4")
    assert store.issue("s") is Done.ACCEPTED
    assert store.wake_of("s") == ("w3", 2) or store.wake_of("s")[1] == 2


def test_a_synchronous_done_acknowledges_what_was_told_and_no_more() -> None:
    store = woken_webhook()
    tails = store.machine.subscriptions.pending_tails(store("s"), 1000)
    store.append(b"events/a", b"later")
    assert store.report("s", True, done=True, tails=tails) is Done.ACCEPTED
    assert store.acked("s", b"events/a") == (2, 3)
    assert store("s").wake_id is None
    assert store.pending("s") == [b"events/a"]
    assert store("s").next_step() == (Step.ISSUE, 0)


def test_done_says_nothing_of_a_stream_that_was_created_anew() -> None:
    store = woken_webhook()
    tails = store.machine.subscriptions.pending_tails(store("s"), 1000)
    store.delete(b"events/a")
    store.create(b"events/a", b"another")
    store.report("s", True, done=True, tails=tails)
    assert store.acked("s", b"events/a") == (0, 0)


def test_an_accepted_webhook_starts_the_lease() -> None:
    store = woken_webhook()
    assert store("s").next_step() == (Step.DELIVER, store.now_ms)
    store.report("s", True)
    assert store("s").next_step() == (Step.EXPIRE, store.now_ms + LEASE_MS)


def test_failures_are_retried_later_and_later_until_one_goes_well() -> None:
    store = woken_webhook()
    waits = []
    for _ in range(9):
        store.report("s", False)
        assert store("s").status == "failed"
        waits.append(store("s").next_attempt_ms - store.now_ms)
    assert waits == [1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000, 60000]
    assert store("s").next_step() == (Step.DELIVER, store.now_ms + 60000)
    assert store.wake_of("s") == ("w1", 1)  # still the same wake
    store.report("s", True)
    assert (store("s").status, store("s").retries) == ("active", 0)


def test_jitter_is_a_fifth_at_most() -> None:
    assert [retry_delay_ms(1, jitter) for jitter in (-200, 0, 200)] == [800, 1000, 1200]
    assert retry_delay_ms(10_000, 200) == 72_000


def test_a_report_of_another_wake_changes_nothing() -> None:
    store = woken_webhook()
    before = describe_subscriptions(store.machine)
    assert store.report("s", True, done=True, wake_id="w9") is Done.NOTHING
    assert describe_subscriptions(store.machine) == before


def test_a_callback_that_overtakes_the_answer_counts_as_delivery() -> None:
    store = woken_webhook()
    store.ack("s")
    assert store("s").is_delivered
    assert store.report("s", False) is Done.NOTHING
    assert store("s").status == "active"


def test_a_callback_is_good_while_the_webhook_is_being_retried() -> None:
    store = woken_webhook()
    store.report("s", False)
    assert store.ack("s", (b"events/a", 2, 3), done=True) is Done.ACCEPTED
    assert store("s").next_step() is None
    assert store("s").status == "active"


def test_a_wake_whose_work_vanished_is_withdrawn_unless_somebody_holds_it() -> None:
    store = woken_webhook()
    store.delete(b"events/a")
    assert store("s").wake_id is None
    store.create(b"events/a", b"1")
    store.issue("s")
    store.report("s", True)
    store.delete(b"events/a")
    assert store("s").wake_id is not None


# Acknowledging


def test_acks_move_progress_and_done_ends_the_wake() -> None:
    store = woken_webhook()
    assert store.ack("s", (b"events/a", 1, 1)) is Done.ACCEPTED
    assert store.acked("s", b"events/a") == (1, 1)
    assert store.pending("s") == [b"events/a"]
    assert store.ack("s", (b"events/a", 2, 3), done=True) is Done.ACCEPTED
    assert store.pending("s") == []
    assert store("s").next_step() is None


@pytest.mark.parametrize(
    "ack",
    [
        (b"events/b", 0, 0),  # not followed
        (b"events/a", 1, 2),  # no boundary
        (b"events/a", 3, 4),  # beyond the tail
        (b"events/a", 0, 0),  # a step back
        (b"manual/x", 1, 1),  # does not exist
    ],
)
def test_an_impossible_ack_is_refused_with_all_the_others_in_its_request(ack: Any) -> None:
    store = woken_webhook()
    store.link("s", b"manual/x")
    store.ack("s", (b"events/a", 1, 1))
    before = describe_subscriptions(store.machine)
    assert isinstance(store.ack("s", (b"events/a", 2, 3), ack, done=True), InvalidAck)
    assert describe_subscriptions(store.machine) == before


def test_an_ack_of_a_stream_that_does_not_exist_yet_can_only_be_its_start() -> None:
    store = woken_webhook()
    store.link("s", b"manual/x")
    assert store.ack("s", (b"manual/x", 0, 0)) is Done.ACCEPTED


def test_acks_also_come_in_one_unit() -> None:
    store = woken_webhook()
    assert store.ack("s", (b"events/a", None, 1)) is Done.ACCEPTED
    assert store.ack("s", (b"events/a", 2, None)) is Done.ACCEPTED
    assert store.acked("s", b"events/a") == (2, 3)


def test_stale_wakes_are_fenced() -> None:
    store = woken_webhook()
    old = store.wake_of("s")
    store.ack("s", done=True)
    assert isinstance(store.ack("s", done=True, wake=old), WakeFenced)
    store.issue("s")
    assert isinstance(store.ack("s", wake=old), WakeFenced)
    assert isinstance(store.ack("s", wake=(old[0], 2)), WakeFenced)
    assert isinstance(store.ack("s", wake=(store.wake_of("s")[0], 1)), WakeFenced)
    store.unsubscribe("s")
    assert isinstance(store.ack("s", wake=old), SubscriptionNotFound)


def test_a_recreated_subscription_does_not_know_the_wakes_of_the_old_one() -> None:
    store = woken_webhook()
    old = store.wake_of("s")
    store.unsubscribe("s")
    store.webhook("s", b"events/*")
    store.append(b"events/a", b"1")
    store.issue("s")
    assert store.wake_of("s")[1] == old[1]
    assert isinstance(store.ack("s", wake=old), WakeFenced)


# Leases


def test_a_heartbeat_extends_the_lease() -> None:
    store = woken_webhook()
    store.report("s", True)
    store.now_ms += LEASE_MS - 1
    assert store.expire_lease("s") is Done.NOTHING
    assert store.ack("s") is Done.ACCEPTED
    store.now_ms += LEASE_MS - 1
    assert store.expire_lease("s") is Done.NOTHING


def test_a_lease_that_ran_out_fences_its_holder_and_wakes_again() -> None:
    store = woken_webhook()
    store.report("s", True)
    old = store.wake_of("s")
    store.now_ms += LEASE_MS
    assert isinstance(store.ack("s", done=True), WakeFenced)  # even before the timer came
    assert store.expire_lease("s") is Done.ACCEPTED
    assert store("s").next_step() == (Step.ISSUE, 0)
    store.issue("s")
    assert store.wake_of("s")[1] == 2
    assert isinstance(store.ack("s", wake=old), WakeFenced)


# Pull-wake


def woken_pull() -> Followers:
    store = Followers()
    store.add_wake_stream()
    store.pull("s", b"events/*")
    store.create(b"events/a", b"1")
    store.issue("s")
    return store


def test_a_wake_event_is_an_ordinary_message_of_the_wake_stream() -> None:
    store = woken_pull()
    (event,) = store.messages(WAKE_STREAM)
    assert event.endswith(b",")
    assert json.loads(event[:-1]) == {
        "type": "wake",
        "subscription_id": "s",
        "stream": "events/a",
        "generation": 1,
        "ts": store.now_ms,
    }
    assert store.machine.outbox.grown == {store[WAKE_STREAM].stream_id}
    assert store("s").next_step() is None  # until a worker comes


def test_a_wake_event_on_a_text_stream_is_a_line() -> None:
    store = Followers()
    store.create(WAKE_STREAM)
    store.pull("s", b"events/*")
    store.create(b"events/a", b"1")
    store.issue("s")
    assert store.messages(WAKE_STREAM)[0].endswith(b"}\n")


def test_an_event_that_cannot_be_written_is_tried_again() -> None:
    store = Followers()
    store.pull("s", b"events/*")
    store.create(b"events/a", b"1")
    store.issue("s")
    assert store("s").next_step() == (Step.ANNOUNCE, store.now_ms + 1000)
    assert store("s").status == "failed"
    assert store.announce("s") is Done.ACCEPTED
    assert store("s").next_step() == (Step.ANNOUNCE, store.now_ms + 2000)
    store.add_wake_stream()
    assert store.announce("s") is Done.ACCEPTED
    assert json.loads(store.messages(WAKE_STREAM)[0][:-1])["generation"] == 1
    assert store("s").status == "active"
    assert store.announce("s") is Done.NOTHING


def test_a_claim_needs_work_and_a_free_wake() -> None:
    store = woken_pull()
    assert store.claim("s", "one") is Done.ACCEPTED
    refused = store.claim("s", "two")
    assert isinstance(refused, AlreadyClaimed)
    assert (refused.current_holder, refused.generation) == ("one", 1)
    store.ack("s", (b"events/a", 1, 1), done=True)
    assert isinstance(store.claim("s"), NoPendingWork)
    assert isinstance(store.claim("nobody"), SubscriptionNotFound)
    store.webhook("h", b"events/*")
    assert isinstance(store.claim("h"), InvalidSubscriptionRequest)


def test_a_claim_makes_the_wake_when_there_is_none_yet() -> None:
    store = woken_pull()
    store.claim("s")
    store.ack("s", (b"events/a", 1, 1), done=True)
    store.append(b"events/a", b"2")
    assert store.claim("s") is Done.ACCEPTED
    assert store.wake_of("s")[1] == 2
    assert len(store.messages(WAKE_STREAM)) == 2


def test_an_unclaimed_wake_cannot_be_acknowledged() -> None:
    store = woken_pull()
    assert isinstance(store.ack("s"), WakeFenced)
    assert isinstance(store.release("s"), WakeFenced)


def test_a_released_wake_comes_again() -> None:
    store = woken_pull()
    store.claim("s")
    held = store.wake_of("s")
    assert store.release("s") is Done.ACCEPTED
    assert store("s").next_step() == (Step.ISSUE, 0)
    assert isinstance(store.release("s", wake=held), WakeFenced)


def test_a_lease_that_ran_out_can_be_claimed_by_somebody_else() -> None:
    store = woken_pull()
    store.claim("s", "one")
    store.now_ms += LEASE_MS
    assert store.claim("s", "two") is Done.ACCEPTED
    assert store("s").holder == "two"
    assert store.wake_of("s")[1] == 2


# What it costs


def calls_during(work: Callable[[], object]) -> int:
    """How many Python and C functions are called."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.disable()  # somebody may have registered callbacks with it
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def test_an_append_costs_nothing_for_ten_thousand_subscriptions_to_other_streams() -> None:
    alone, crowded = Followers(), Followers()
    for number in range(10_000):
        crowded.webhook(f"s{number}", b"tenant-%d/*" % number, b"manual/%d" % number)
    for store in (alone, crowded):
        store.create(b"mine/a", b"1")
    appends = [
        calls_during(lambda: [store.append(b"mine/a", b"x") for _ in range(100)])  # noqa: B023
        for store in (alone, crowded)
    ]
    assert appends[0] == appends[1]


def test_a_new_stream_meets_only_the_patterns_that_begin_like_it() -> None:
    few, many = Followers(), Followers()
    for store, count in ((few, 1), (many, 10_000)):
        for number in range(count):
            store.webhook(f"s{number}", b"tenant-%d/**" % number)
    creates = [calls_during(lambda: store.create(b"mine/a", b"1")) for store in (few, many)]  # noqa: B023
    assert creates[0] == creates[1]


# Over restarts


def busy_store() -> Followers:
    """At least one subscription for every field of an image."""
    store = Followers()
    store.machine.apply(InstallKeys(store.now_ms, b"s" * 32, b"t" * 32))
    store.add_wake_stream()
    store.create(b"events/a", b"1")
    store.webhook("failing", b"events/*", description="why")
    store.webhook("held", None, b"events/a", b"manual/x")
    store.pull("claimed", b"**")
    store.pull("waiting", b"events/**")
    store.webhook("idle", b"other/*")
    for path in (b"events/b", b"events/c"):
        store.create(path, b"1")
    store.append(b"events/a", b"2")
    for name in ("failing", "held", "claimed", "waiting"):
        store.issue(name)
    store.report("failing", False, jitter_permille=77)
    store.report("held", True)
    store.claim("claimed", "worker")
    return store


def test_every_field_survives_a_checkpoint() -> None:
    store = busy_store()
    again = restarted(store.machine)
    assert describe_subscriptions(again) == describe_subscriptions(store.machine)
    assert describe(again) == describe(store.machine)
    check_bookkeeping(again)
    assert image_bytes(again) == image_bytes(store.machine)


def test_a_second_pair_of_keys_is_not_taken() -> None:
    store = busy_store()
    assert store.machine.apply(InstallKeys(store.now_ms, b"x" * 32, b"y" * 32)) is Done.EXISTED
    assert store.machine.subscriptions.keys == (b"s" * 32, b"t" * 32)


STREAMS = [b"events/a", b"events/b/c", b"_default/x", b"manual/x", WAKE_STREAM]
PATTERNS = [None, b"events/*", b"**", b"*", b"events/**/c"]
numbers = st.integers(0, 11)


def live_a_step(store: Followers, action: int, which: int, what: int) -> None:
    """One of the things that can happen; small numbers pick what it happens to."""
    store.now_ms += 700
    name, path = "stu"[which % 3], STREAMS[what % len(STREAMS)]
    exists = path in store and not store[path].deleted
    known = name in store.machine.subscriptions.by_id
    if action == 0:
        content_type = JSON if path == WAKE_STREAM else b"text/plain"
        messages = () if path == WAKE_STREAM else (b"1", b"22")[: what % 3]
        store.create(path, *messages, content_type=content_type)
    elif action == 1 and exists and path != WAKE_STREAM:
        store.append(path, b"33")
    elif action == 2 and exists:
        store.delete(path)
    elif action == 3:
        subscribe = store.pull if which % 2 else store.webhook
        subscribe(name, PATTERNS[what % len(PATTERNS)], b"manual/x")
    elif known:
        live_a_step_of_a_subscription(store, action, name, path, what)


def live_a_step_of_a_subscription(
    store: Followers, action: int, name: str, path: bytes, what: int
) -> None:
    steps: dict[int, Callable[[], object]] = {
        4: lambda: store.link(name, path),
        5: lambda: store.unlink(name, path),
        6: lambda: store.issue(name),
        7: lambda: store.report(name, bool(what % 2), jitter_permille=what * 10),
        8: lambda: store.done(name),
        9: lambda: store.claim(name, f"worker{what}"),
        10: lambda: store.ack(name, (path, None, 2), done=bool(what % 2)),
        11: lambda: (store.expire_lease(name), store.announce(name)),
        12: lambda: store.release(name),
        13: lambda: store.unsubscribe(name),
    }
    steps.get(action, lambda: None)()


steps = st.lists(st.tuples(st.integers(0, 13), numbers, numbers), max_size=40)


@given(steps, steps)
@brief
def test_any_life_keeps_the_books_and_goes_on_alike_after_a_restart(
    before: list[tuple[int, int, int]], after: list[tuple[int, int, int]]
) -> None:
    store = Followers()
    for step in before:
        live_a_step(store, *step)
        check_bookkeeping(store.machine)
    twin = Followers()
    twin.machine, twin.now_ms, twin.wakes = restarted(store.machine), store.now_ms, store.wakes
    for step in after:
        live_a_step(store, *step)
        live_a_step(twin, *step)
    assert describe_subscriptions(twin.machine) == describe_subscriptions(store.machine)
    assert describe(twin.machine) == describe(store.machine)
    check_bookkeeping(twin.machine)
