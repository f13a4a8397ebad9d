from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from typing import Any

import pytest

from millstream.access.gate import Grant
from millstream.api.inspection import StreamDescriptors
from millstream.errors import InvalidRequest, StreamNotFound
from millstream.inspection.holdings import NONE, Holdings, HoldingsCount
from millstream.inspection.index_report import IndexReport
from millstream.state.commands import Append, SetRules
from millstream.state.rules import Rules
from millstream.state.stream import Stream
from tests.unit.api.fake_request import UNCOMPRESSED, FakeRequest
from tests.unit.engine.world import World


class Reports:
    """Answers what it is told to."""

    def __init__(self) -> None:
        self.report = IndexReport()

    def of(self, stream: Stream) -> IndexReport:
        return self.report


class Office:
    """A stream `a` with one message, and requests for its descriptor."""

    def __init__(self, holdings: HoldingsCount | None = None, **fields: Any) -> None:
        self.world = World()
        self.stream = self.world.create(data=b"one", count=1, **fields)
        self.reports = Reports()
        self.descriptors = StreamDescriptors(
            self.world.engine,
            self.world.loop.asyncio_loop,
            holdings or HoldingsCount(None),
            self.reports,
            UNCOMPRESSED,
            has_log=True,
        )

    def ask(
        self, query: bytes = b"", tag: str | None = None, grant: Grant | None = None
    ) -> FakeRequest:
        request = FakeRequest({} if tag is None else {b"if-none-match": tag.encode()})
        vars(request).update(query=query, method=b"GET", grant=grant)
        self.descriptors.details(request.request, b"a")
        return request

    def tag(self) -> str:
        return self.ask().answer[1]["etag"]

    def wait(self, query: bytes = b"live=true", grant: Grant | None = None) -> FakeRequest:
        request = self.ask(query, self.tag(), grant)
        assert not request.is_answered
        assert len(self.world.engine.observers) == 1
        return request

    def assert_nobody_waits(self) -> None:
        assert self.world.engine.observers == {}
        assert self.world.engine.watcher_count == 0
        assert self.world.loop.timers == 0


def test_a_descriptor_has_a_weak_tag_that_asks_for_it_only_once() -> None:
    office = Office()
    status, headers, body = office.ask().answer
    assert (status, headers["content-type"]) == (200, "application/json")
    assert headers["etag"].startswith('W/"details:')
    assert json.loads(body)["stream"]["name"] == "a"
    again = office.ask(tag=headers["etag"]).answer
    assert (again[0], again[1]["etag"], again[2]) == (304, headers["etag"], b"")


@pytest.mark.parametrize("tag", [None, '"details:other"', 'W/"index_status:0"'])
def test_a_client_without_the_tag_is_answered_at_once(tag: str | None) -> None:
    office = Office()
    assert office.ask(b"live=true", tag).answer[0] == 200
    office.assert_nobody_waits()


def test_the_two_descriptors_have_tags_of_their_own() -> None:
    office = Office()
    request = FakeRequest({b"if-none-match": office.tag().encode()})
    vars(request).update(query=b"", method=b"GET")
    office.descriptors.index_status(request.request, b"a")
    assert (request.answer[0], request.answer[1]["etag"][:16]) == (200, 'W/"index_status:')


@pytest.mark.parametrize("live", [b"true", b"1", b"long-poll"])
def test_an_append_ends_the_wait(live: bytes) -> None:
    office = Office()
    before = office.tag()
    request = office.wait(b"live=" + live)
    office.world.append()
    office.world.commit()
    status, headers, body = request.answer
    assert status == 200
    assert headers["etag"] != before
    assert json.loads(body)["stream"]["message_count"] == "2"
    office.assert_nobody_waits()


def test_closing_and_other_rules_end_the_wait() -> None:
    office = Office(content_type=b"application/json")
    for command in (
        SetRules(1, office.stream.stream_id, 0, Rules(0, "evlog")),
        Append(office.world.now_ms, office.stream.stream_id, closes=True),
    ):
        request = office.wait()
        office.world.submit(command)
        office.world.commit()
        assert request.answer[0] == 200
    assert json.loads(request.answer[2])["stream"]["profile"] == "evlog"
    assert json.loads(request.answer[2])["stream"]["closed"] is True


def test_a_wait_is_over_after_three_seconds_with_nothing_new() -> None:
    office = Office()
    request = office.wait()
    office.world.loop.advance(2999)
    assert not request.is_answered
    office.world.loop.advance(1)
    assert request.answer[0] == 304
    office.assert_nobody_waits()


@pytest.mark.parametrize("query", [b"timeout=2s", b"timeout_ms=2000"])
def test_a_request_may_choose_its_timeout(query: bytes) -> None:
    office = Office()
    request = office.wait(b"live=long-poll&" + query)
    office.world.loop.advance(2000)
    assert request.answer[0] == 304


@pytest.mark.parametrize("query", [b"live=sse", b"live=", b"live=no", b"live=1&timeout=soon"])
def test_what_is_no_wait_is_refused(query: bytes) -> None:
    with pytest.raises(InvalidRequest):
        Office().ask(query)


def test_a_wake_without_a_change_goes_on_waiting_until_the_same_moment() -> None:
    office = Office()
    request = office.wait()
    office.world.loop.advance(2000)
    [observers] = office.world.engine.observers.values()
    for observer in list(observers):
        observer.stream_changed()
        observer.stream_changed()
    office.world.loop.run_ready()
    assert not request.is_answered
    assert office.world.loop.timers == 1
    office.world.loop.advance(999)
    assert not request.is_answered
    office.world.loop.advance(1)
    assert request.answer[0] == 304
    office.assert_nobody_waits()


def test_what_changed_unheard_is_told_at_the_end_of_the_wait() -> None:
    office = Office()
    request = office.wait()
    office.reports.report = IndexReport(plan_generation=3)
    office.world.loop.advance(3000)
    status, _, body = request.answer
    assert status == 200
    assert json.loads(body)["index_status"]["desired_index_plan_generation"] == 3


def test_the_end_of_the_stream_ends_the_wait() -> None:
    office = Office()
    request = office.wait()
    office.world.delete()
    office.world.commit()
    assert request.answer[0] == 404
    office.assert_nobody_waits()
    with pytest.raises(StreamNotFound):
        office.ask()


def test_a_deleted_stream_that_has_forks_is_gone() -> None:
    office = Office()
    office.world.create(b"f", fork_from=b"a")
    request = office.wait()
    office.world.delete()
    office.world.commit()
    assert request.answer[0] == 410


def test_expiry_ends_the_wait_and_looking_renews_nothing() -> None:
    office = Office(ttl_ms=5000)
    office.world.loop.advance(4000)
    request = office.wait(b"live=1&timeout=10s")
    office.world.loop.advance(1001)
    assert request.answer[0] == 404
    office.assert_nobody_waits()


def test_a_stop_answers_those_who_wait() -> None:
    office = Office()
    waiting = [office.wait() for _ in range(2)]
    office.world.append()
    office.world.loop.run_ready()
    waiting.append(office.wait())
    office.world.engine.end_watchers()
    assert [request.answer[0] for request in waiting] == [200, 200, 304]
    office.assert_nobody_waits()


def test_a_stop_between_a_wake_and_its_answer_is_heard() -> None:
    office = Office()
    request = office.wait()
    [observers] = office.world.engine.observers.values()
    for observer in list(observers):
        observer.stream_changed()
    office.world.engine.end_watchers()
    assert request.answer[0] == 304
    office.world.loop.run_ready()
    assert request.answer[0] == 304
    office.assert_nobody_waits()


def test_a_client_that_leaves_is_forgotten() -> None:
    office = Office()
    request = office.wait()
    assert request.on_disconnect is not None
    request.on_disconnect()
    office.assert_nobody_waits()
    office.world.append()
    office.world.commit()
    assert not request.is_answered


def test_a_revoked_key_ends_the_wait() -> None:
    office = Office()
    grant = Grant("k", [])
    request = office.wait(grant=grant)
    for read in grant.revoke():
        read.revoked()
        read.revoked()
    assert request.answer[0] == 401
    office.assert_nobody_waits()
    late = office.ask(b"live=true", office.tag(), grant)
    assert late.answer[0] == 401
    office.assert_nobody_waits()


def test_a_wait_ends_with_the_life_of_its_key() -> None:
    office = Office()
    grant = Grant("k", [], office.world.now_ms + 500)
    request = office.wait(grant=grant)
    office.world.loop.advance(500)
    assert request.answer[0] == 304
    office.assert_nobody_waits()


# Long histories


class SlowHoldings(HoldingsCount):
    """Counts for as many turns of the loop as it is told to."""

    def __init__(self, steps: int) -> None:
        super().__init__(None)
        self.steps_wanted = steps

    def steps(self, stream: Stream) -> Generator[None, None, Holdings]:
        for _ in range(self.steps_wanted):
            yield
        return NONE


def test_others_have_the_loop_while_a_long_history_is_counted() -> None:
    office = Office(SlowHoldings(5))

    async def ask() -> tuple[FakeRequest, int]:
        request, turns = office.ask(), 0
        while not request.is_answered:
            await asyncio.sleep(0)
            turns += 1
        return request, turns

    request, turns = asyncio.run(ask())
    assert (request.answer[0], turns) == (200, 5)


def test_a_client_that_leaves_while_it_is_counted_is_not_waited_with() -> None:
    holdings = SlowHoldings(0)
    office = Office(holdings)
    tag = office.tag()
    holdings.steps_wanted = 5

    async def ask() -> FakeRequest:
        request = office.ask(b"live=true", tag)
        await asyncio.sleep(0)
        assert request.on_disconnect is not None
        request.on_disconnect()
        for _ in range(10):
            await asyncio.sleep(0)
        return request

    assert not asyncio.run(ask()).is_answered
    office.assert_nobody_waits()


def test_a_stream_that_ends_while_it_is_counted_is_not_described() -> None:
    office = Office(SlowHoldings(3))

    async def ask() -> FakeRequest:
        request = office.ask()
        office.world.delete()
        office.world.commit()
        while not request.is_answered:
            await asyncio.sleep(0)
        return request

    assert asyncio.run(ask()).answer[0] == 404
