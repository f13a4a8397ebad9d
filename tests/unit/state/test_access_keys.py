from __future__ import annotations

import pytest

from millstream.errors import InvalidRequest, KeyNotFound, TooManyKeys
from millstream.state import access_keys
from millstream.state.commands import MAKES_ROOM, CreateKey, RevokeKey
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Done
from millstream.state.records import ACCESS, ACCESS_KEY, restore_records, take_records

MADE = CreateKey(5, "abc", b"d" * 32, ("read:**",), 99, "mine")


def records_of(machine: StateMachine) -> dict[str, bytes | None]:
    return {key: value for key, value in take_records(machine) if key.startswith(ACCESS)}


def test_a_key_goes_through_records_and_comes_back_as_it_was() -> None:
    machine, again = StateMachine(), StateMachine()
    assert machine.apply(MADE) is Done.CREATED
    records = records_of(machine)
    assert records.keys() == {ACCESS, ACCESS_KEY + "abc"}
    restore_records(again, ((key, value) for key, value in records.items() if value is not None))
    assert again.access.by_id == machine.access.by_id
    assert again.access.is_used
    assert records_of(again) == {}


def test_the_record_of_a_revoked_key_goes_and_that_there_was_one_stays() -> None:
    machine = StateMachine()
    machine.apply(MADE)
    take_records(machine)
    assert machine.apply(RevokeKey(6, "abc")) is Done.DELETED
    assert records_of(machine) == {ACCESS: b"on", ACCESS_KEY + "abc": None}
    assert isinstance(machine.apply(RevokeKey(6, "abc")), KeyNotFound)


def test_a_state_of_before_there_were_keys_has_none() -> None:
    machine = StateMachine()
    restore_records(machine, [("births", b"7")])
    assert not machine.access.is_used
    assert records_of(machine) == {}


def test_an_id_is_given_once_and_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = StateMachine()
    machine.apply(MADE)
    assert isinstance(machine.apply(MADE), InvalidRequest)
    monkeypatch.setattr(access_keys, "ACCESS_KEYS_MAX", 1)
    refused = machine.apply(CreateKey(5, "other", b"", ()))
    assert isinstance(refused, TooManyKeys)
    assert list(machine.access.by_id) == ["abc"]


def test_a_key_can_be_revoked_on_a_full_disk() -> None:
    assert RevokeKey in MAKES_ROOM
