"""Brings into memory what a command will ask for when it is applied.

Called before a command is submitted, as often as one likes. Other commands are on their way then
and will be applied first, so what is brought is what might be asked for whatever they do: streams
(or the knowledge that there is none), and the ancestors that the end of a stream may end with it.
`Horizon` keeps all of it there until the command is applied.

Where a log is replayed nothing is prepared: the store is asked in the middle of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from millstream.formats.layout import StreamId
from millstream.state.commands import (
    AckWake,
    AnnounceWake,
    AnyCommand,
    Append,
    AppendEntries,
    ClaimWake,
    CreateStream,
    CreateSubscription,
    DeleteStream,
    ExpireStream,
    IssueWake,
    KeepSystemStream,
    LinkStreams,
    PublishSnapshot,
    ReportDelivery,
    SetRules,
    TouchStream,
    TrimStream,
    WriteSystemStream,
)
from millstream.state.residents import StreamStore
from millstream.state.stream import Stream

if TYPE_CHECKING:
    from millstream.state.machine import StateMachine

Steps = Iterator[None]


class Preparation:
    def __init__(self, machine: StateMachine, store: StreamStore) -> None:
        self._machine = machine
        self._residents = machine.residents
        self._horizon = machine.horizon
        self._store = store
        self._ending: Counter[int] = Counter()  # streams that commands under way mean to end
        self._enders = 0  # commands under way that may each end a stream
        self._steps: dict[type, Callable[[Any], Steps]] = {
            Append: self._stream,
            AppendEntries: self._stream,
            SetRules: self._rules,
            TouchStream: self._stream,
            TrimStream: self._stream,
            PublishSnapshot: self._stream,
            CreateStream: self._creation,
            DeleteStream: self._end,
            ExpireStream: self._end,
            CreateSubscription: lambda command: self._names(command.streams),
            LinkStreams: lambda command: self._names(command.streams),
            IssueWake: self._wake,
            AnnounceWake: self._wake,
            ClaimWake: self._wake,
            AckWake: lambda command: self._names(key for key, _, _ in command.acks),
            ReportDelivery: lambda command: self._ids(tail[0] for tail in command.tails),
            KeepSystemStream: self._system_stream,
            WriteSystemStream: self._system_stream,
        }

    def steps(self, command: AnyCommand) -> Steps:
        """One look at the store each. Submit the command in the turn in which they end."""
        steps = self._steps.get(type(command))
        return iter(()) if steps is None else steps(command)

    # A command that names streams

    def _name(self, key: bytes) -> Steps:
        residents = self._residents
        is_known = residents.knows(key)
        if residents.find(key) is None:
            residents.note_absent(key)
        if not is_known:
            yield

    def _id(self, stream_id: StreamId) -> Steps:
        residents = self._residents
        is_known = residents.knows(stream_id)
        if residents.find_by_id(stream_id) is None:
            residents.note_absent(stream_id)
        if not is_known:
            yield

    def _names(self, keys: Iterable[bytes]) -> Steps:
        for key in keys:
            yield from self._name(key)

    def _ids(self, stream_ids: Iterable[StreamId]) -> Steps:
        for stream_id in stream_ids:
            yield from self._id(stream_id)

    def _stream(
        self, command: Append | SetRules | TouchStream | TrimStream | PublishSnapshot
    ) -> Steps:
        return self._id(command.stream_id)

    # The server's own streams

    def _rules(self, command: SetRules) -> Steps:
        yield from self._id(command.stream_id)
        yield from self._registry()

    def _registry(self) -> Steps:
        """It gets a record of what the command does."""
        registry_id = self._machine.system.registry_id
        if registry_id is not None:
            yield from self._id(registry_id)

    def _system_stream(self, command: KeepSystemStream | WriteSystemStream) -> Steps:
        yield from self._name(command.path)
        kept = self._machine.system.by_path.get(command.path)
        if kept is not None:
            yield from self._id(kept.stream_id)

    # The end of a stream

    def _creation(self, command: CreateStream) -> Steps:
        self._count_ender()
        yield from self._registry()
        yield from self._name(command.path)
        if command.fork_from is not None:
            yield from self._name(command.fork_from)
        existing = self._residents.find_in_memory(command.path)
        if existing is not None and existing.is_expired(command.now_ms):
            yield from self._ancestors(existing.stream_id)

    def _end(self, command: DeleteStream | ExpireStream) -> Steps:
        stream_id = command.stream_id
        self._count_ender()
        self._ending[stream_id] += 1
        self._horizon.later(partial(self._no_longer_ending, stream_id), behind=1)
        yield from self._registry()
        yield from self._id(stream_id)
        yield from self._ancestors(stream_id)

    def _count_ender(self) -> None:
        self._enders += 1
        self._horizon.later(self._discount_ender, behind=1)

    def _discount_ender(self) -> None:
        self._enders -= 1

    def _no_longer_ending(self, stream_id: StreamId) -> None:
        self._ending[stream_id] -= 1
        if not self._ending[stream_id]:
            del self._ending[stream_id]

    def _ancestors(self, stream_id: StreamId) -> Steps:
        """Looks again until nothing has to be read: much may happen in between."""
        is_complete = False
        while not is_complete:
            is_complete = True
            for _ in self._ancestors_once(stream_id):
                is_complete = False
                yield

    def _ancestors_once(self, stream_id: StreamId) -> Steps:
        """All that may end with this stream, and the first that does not."""
        stream = self._residents.find_by_id(stream_id)
        if stream is None or stream.forks > self._enders - 1:
            return  # a fork of it will still be there: it is only marked as deleted
        while stream is not None and stream.origin is not None:
            source_id = stream.origin.source_id
            yield from self._id(source_id)
            stream = self._residents.find_by_id(source_id)
            if stream is None or not self._may_end(stream):
                return

    def _may_end(self, source: Stream) -> bool:
        """Whether it is deleted, or will be, and its forks may be gone by then: each of the
        commands under way, this one too, can end one of them."""
        is_kept = not source.deleted and source.stream_id not in self._ending
        return not is_kept and source.forks <= self._enders

    # Subscriptions

    def _wake(self, command: IssueWake | AnnounceWake | ClaimWake) -> Steps:
        subscription = self._machine.subscriptions.by_id.get(command.subscription_id)
        if subscription is not None and subscription.config.wake_stream is not None:
            yield from self._name(subscription.config.wake_stream)
