from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from millstream.access import gate as gate_module
from millstream.access.gate import Gate, Grant
from millstream.access.key_text import NewKey, new_key
from millstream.access.scopes import Scope
from millstream.clock import ManualClock
from millstream.errors import Forbidden, StreamError, Unauthorized
from millstream.state.commands import CreateKey, RevokeKey, encode_command
from millstream.state.machine import StateMachine
from millstream.state.outcomes import Done


@dataclass
class Asking:
    headers: dict[bytes, bytes] = field(default_factory=dict)
    grant: Any = None


class World:
    def __init__(self, setting: str | None = None) -> None:
        self.clock = ManualClock()
        self.machine = StateMachine()
        self.own = new_key()
        self.soon: list[Callable[[], None]] = []
        self.gate = Gate(self.machine.access, self.clock, self.own, self.soon.append, setting)

    def make(self, *scopes: str, seconds: int | None = None) -> NewKey:
        key, now_ms = new_key(), self.clock.now_ms()
        expires_ms = None if seconds is None else now_ms + seconds * 1000
        command = CreateKey(now_ms, key.key_id, key.digest, scopes, expires_ms)
        assert self.machine.apply(command) is Done.CREATED
        return key

    def revoke(self, key: NewKey) -> None:
        outcome = self.machine.apply(RevokeKey(self.clock.now_ms(), key.key_id))
        assert outcome is Done.DELETED

    def ask(self, key: NewKey | str | None, scope: Scope, stream: bytes | None) -> Grant:
        text = key.text if isinstance(key, NewKey) else key
        request = Asking({} if text is None else {b"authorization": b"Bearer " + text.encode()})
        self.gate.check(request, scope, stream)
        assert isinstance(request.grant, Grant)
        return request.grant


def test_a_key_opens_what_its_scopes_name_and_nothing_else() -> None:
    world = World()
    key = world.make("append:agents/run-*", "read:docs/**")
    world.ask(key, Scope.APPEND, b"agents/run-1")
    world.ask(key, Scope.READ, b"docs/a/b")
    world.ask(key, Scope.READ, None)
    for scope, stream in [
        (Scope.READ, b"agents/run-1"),
        (Scope.APPEND, b"docs/a"),
        (Scope.APPEND, b"agents/walk-1"),
        (Scope.MANAGE, b"agents/run-1"),
        (Scope.SUBSCRIBE, None),
        (Scope.ADMIN, None),
    ]:
        with pytest.raises(Forbidden):
            world.ask(key, scope, stream)


def test_admin_opens_everything() -> None:
    world = World()
    key = world.make("admin")
    for scope in Scope:
        world.ask(key, scope, b"any/thing")
        world.ask(key, scope, None)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: None,
        lambda text: "",
        lambda text: text[:-1],
        lambda text: text + "0",
        lambda text: text[:-1] + ("0" if text[-1] != "0" else "1"),
        lambda text: text.upper(),
        lambda text: text.replace("ms_", ""),
        lambda text: new_key().text,
        lambda text: "ms__" + text.rpartition("_")[2],
        lambda text: "ms_" + "0" * 12 + "_" + text.rpartition("_")[2],
        lambda text: text + ", Bearer " + text,
        lambda text: "é" * 40,
    ],
)
def test_what_is_not_the_key_is_refused_whoever_it_resembles(
    change: Callable[[str], str | None],
) -> None:
    world = World()
    key = world.make("admin")
    world.ask(key, Scope.ADMIN, None)
    with pytest.raises(Unauthorized):
        world.ask(change(key.text), Scope.ADMIN, None)


def test_every_refusal_of_a_key_reads_the_same() -> None:
    world = World()
    expired, revoked = world.make("admin", seconds=1), world.make("admin")
    world.clock.advance(1000)
    world.revoke(revoked)
    said = set()
    for key in (None, "nonsense", new_key(), expired, revoked):
        with pytest.raises(Unauthorized) as refused:
            world.ask(key, Scope.READ, b"a/b")
        said.add(refused.value.message)
    assert len(said) == 1


def test_a_key_is_good_until_the_moment_it_expires_also_when_it_was_used_before() -> None:
    world = World()
    key = world.make("read:**", seconds=10)
    world.ask(key, Scope.READ, b"a/b")
    world.clock.advance(9999)
    world.ask(key, Scope.READ, b"a/b")
    world.clock.advance(1)
    with pytest.raises(Unauthorized):
        world.ask(key, Scope.READ, b"a/b")


def test_a_revoked_key_is_good_for_nothing_from_then_on_and_others_are() -> None:
    world = World()
    key, other = world.make("read:**"), world.make("read:**")
    world.ask(key, Scope.READ, b"a/b")
    world.revoke(key)
    with pytest.raises(Unauthorized):
        world.ask(key, Scope.READ, b"a/b")
    world.ask(other, Scope.READ, b"a/b")


class Read:
    def __init__(self) -> None:
        self.ended = 0

    def revoked(self) -> None:
        self.ended += 1


def test_open_reads_of_a_revoked_key_are_ended_and_no_others() -> None:
    world = World()
    key, other = world.make("read:**"), world.make("read:**")
    mine, theirs, left, late = Read(), Read(), Read(), Read()
    grant = world.ask(key, Scope.READ, b"a/b")
    grant.join(mine)
    grant.join(left)
    grant.leave(left)
    world.ask(other, Scope.READ, b"a/b").join(theirs)
    world.revoke(key)
    assert mine.ended == 0  # not while the change is applied
    for call in world.soon:
        call()
    grant.join(late)  # it was on its way when the key ended
    assert [mine.ended, theirs.ended, left.ended, late.ended] == [1, 0, 0, 1]


def test_what_is_remembered_is_bounded_and_guesses_are_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate_module, "ACCESS_VERDICTS_CACHED", 10)
    monkeypatch.setattr(gate_module, "ACCESS_GRANTS_CACHED", 10)
    world = World()
    for number in range(35):
        key = world.make("read:docs/**")
        for stream in range(3):
            world.ask(key, Scope.READ, b"docs/%d" % stream)
            with pytest.raises(Forbidden):
                world.ask(key, Scope.READ, b"x/%d" % stream)
            with pytest.raises(Unauthorized):
                world.ask(new_key(), Scope.READ, b"docs/%d" % number)
        assert len(world.gate._verdicts) <= 10
        assert len(world.gate._by_header) <= 10
    grants = world.gate._grants
    assert len(grants) == 35  # one for each key that there is
    assert not any(b"x/" in str(verdict).encode() for verdict in world.gate._verdicts)


def test_the_second_look_does_not_hash_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    key = world.make("read:**")
    world.ask(key, Scope.READ, b"a/b")
    monkeypatch.delattr(gate_module, "read_header")
    world.ask(key, Scope.READ, b"a/b")
    world.ask(key, Scope.READ, b"a/other")


def test_access_is_on_once_there_is_a_key_and_stays_on_without_any() -> None:
    world = World()
    assert not world.gate.is_on
    changes: list[bool] = []
    world.gate.on_change = lambda: changes.append(world.gate.is_on)
    key = world.make("admin")
    assert world.gate.is_on
    world.revoke(key)
    assert changes == [True, True]
    assert not world.gate.has_keys


@pytest.mark.parametrize(("setting", "is_on"), [("keys", True), ("off", False)])
def test_what_the_operator_says_comes_first(setting: str, is_on: bool) -> None:
    world = World(setting)
    assert world.gate.is_on is is_on
    world.make("admin")
    assert world.gate.is_on is is_on


def test_processes_of_the_server_have_a_key_that_is_in_no_store() -> None:
    world = World()
    world.ask(world.own, Scope.ADMIN, None)
    assert not world.machine.access.by_id
    assert isinstance(world.machine.apply(RevokeKey(0, world.own.key_id)), StreamError)
    world.ask(world.own, Scope.ADMIN, None)


def test_nothing_that_is_kept_or_printed_holds_the_secret() -> None:
    world = World()
    key = world.make("admin")
    grant = world.ask(key, Scope.ADMIN, None)
    secret = key.text.rpartition("_")[2]
    command = CreateKey(0, key.key_id, key.digest, ("admin",))
    kept = world.machine.access.encode(key.key_id)
    assert kept is not None
    for shown in (encode_command(command), kept, repr(world.machine.access.by_id).encode()):
        assert secret.encode() not in shown
        assert bytes.fromhex(secret) not in shown
    assert secret not in repr(grant) + repr(vars(grant))
    assert len(secret) == 64
    assert new_key().text != key.text


def test_a_scope_in_the_log_that_makes_no_sense_allows_nothing() -> None:
    world = World()
    key = world.make("read:", "fly:**", "append:a/*")
    world.ask(key, Scope.APPEND, b"a/b")
    with pytest.raises(Forbidden):
        world.ask(key, Scope.READ, b"a/b")
