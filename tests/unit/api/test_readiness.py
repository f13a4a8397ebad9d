"""/readyz says whether the server does all that it promises, and if not, why."""

from __future__ import annotations

import json
from typing import Any, cast

from millstream.api.operations import Readiness
from millstream.faults import Faults
from millstream.http.message import Request
from millstream.journal.memory import MemoryJournal


class _Asked:
    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        self.status, self.headers, self.answer = status, headers, json.loads(body)


def ask(readiness: Readiness) -> tuple[int, dict[str, Any]]:
    asked = _Asked()
    readiness.respond(cast(Request, asked))
    assert (b"retry-after" in asked.headers) == (asked.status == 503)
    return asked.status, asked.answer


def test_it_is_ready_when_it_is_open_and_nothing_fails() -> None:
    readiness = Readiness(Faults(), MemoryJournal())
    status, answer = ask(readiness)
    assert (status, answer["reasons"][0]["code"]) == (503, "not_open")
    readiness.is_open = True
    assert ask(readiness) == (200, {"ready": True})


def test_a_failing_service_is_named_until_it_works_again() -> None:
    faults = Faults()
    readiness = Readiness(faults, MemoryJournal())
    readiness.is_open = True
    faults.report("checkpoint", KeyError("shard"))
    faults.report("flush", RuntimeError("two\nlines"))
    status, answer = ask(readiness)
    assert (status, answer["ready"]) == (503, False)
    assert [reason["code"] for reason in answer["reasons"]] == ["checkpoint_failed", "flush_failed"]
    assert "RuntimeError: two lines" in answer["reasons"][1]["message"]
    faults.works("flush")
    assert ask(readiness)[0] == 503
    faults.works("checkpoint")
    status, answer = ask(readiness)
    assert (status, answer["ready"]) == (200, True)
    assert answer["unexpected_errors"]["count"] == 2


def test_a_single_fault_that_is_over_is_a_note_and_no_reason() -> None:
    faults = Faults()
    readiness = Readiness(faults, MemoryJournal())
    readiness.is_open = True
    faults.report("reply", RuntimeError("that reply alone"))
    status, answer = ask(readiness)
    note = answer["unexpected_errors"]
    assert (status, note["count"], note["last_where"]) == (200, 1, "reply")
    assert note["last"] == "RuntimeError: that reply alone"
