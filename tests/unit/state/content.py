"""All content of streams, wherever it lies: in memory, in runs, in the log of a fork's source."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.state.images import restore_stream
from millstream.state.log import Log
from millstream.state.machine import StateMachine
from millstream.state.stream import Stream
from tests.support.blocks import Message, messages_of
from tests.support.memory_store import MemoryStore

Objects = dict[tuple[str, Run], tuple[Message, ...]]  # what a run holds, message by message
Messages = dict[int, tuple[int, Message]]  # ordinal -> where it begins, and it


class Contents:
    """Looks at a machine without disturbing who is in memory."""

    def __init__(
        self,
        machine: StateMachine,
        store: MemoryStore | None = None,
        objects: Objects | None = None,
    ) -> None:
        self.machine = machine
        self.store = MemoryStore(machine.shards) if store is None else store
        self.objects: Objects = {} if objects is None else objects

    def streams(self) -> Iterator[Stream]:
        by_id = self.machine.by_id
        yield from by_id.values()
        for row in list(self.store.rows()):
            if row.stream_id not in by_id and row.stream_id not in self.machine.residents.removed:
                yield self.peek(row.stream_id)

    def peek(self, stream_id: StreamId) -> Stream:
        stream = self.machine.by_id.get(stream_id)
        if stream is not None:
            return stream
        image = self.store.find_by_id(stream_id)
        assert image is not None, f"stream {stream_id} is nowhere"
        stream, missing_bytes = restore_stream(image)
        assert missing_bytes == 0, f"{stream.path!r} left memory with unpublished content"
        return stream

    def runs(self, stream: Stream) -> list[tuple[Segment, Run]]:
        """Those on the store, and those it will be told of."""
        found = {run.first_ordinal: (segment, run) for segment, run in stream.log.runs or []}
        for segment, run in self.store.runs_of(stream.stream_id):
            assert found.setdefault(run.first_ordinal, (segment, run)) == (segment, run)
        return [found[ordinal] for ordinal in sorted(found)]

    def own(self, stream: Stream) -> Messages:
        """What it wrote itself and somebody still has."""
        messages: Messages = {}
        for segment, run in self.runs(stream):
            if (segment.name, run) in self.objects:
                byte = run.first_byte
                for index, message in enumerate(self.objects[segment.name, run]):
                    messages[run.first_ordinal + index] = byte, message
                    byte += len(message.data)
        log = stream.log
        ordinal, byte = log.held_ordinal, log.held_byte
        for block in log.blocks:
            for message in messages_of(block):
                assert messages.setdefault(ordinal, (byte, message)) == (byte, message)
                ordinal, byte = ordinal + 1, byte + len(message.data)
        assert (ordinal, byte) == (log.tail_ordinal, log.tail_byte)
        return messages

    def all(self, stream: Stream) -> Messages:
        """With what it inherited; also what it does not show any more."""
        messages: Messages = {}
        log = stream.log
        if stream.origin is not None:
            inherited = self.all(self.peek(stream.origin.source_id))
            for ordinal, (byte, message) in inherited.items():
                if byte < log.own_byte:
                    cut = message._replace(data=message.data[: log.own_byte - byte])
                    messages[ordinal] = byte, cut
        return messages | self.own(stream)

    def messages(self, stream: Stream) -> list[bytes]:
        return [message.data for message in self.entries(stream)]

    def entries(self, stream: Stream) -> list[Message]:
        """What it shows, with times and keys. Append times never go back."""
        log, messages = stream.log, self.all(stream)
        byte, shown = log.first_byte, list[Message]()
        for ordinal in range(log.first_ordinal, log.tail_ordinal):
            assert ordinal in messages, f"message {ordinal} of {stream.path!r} is lost"
            assert messages[ordinal][0] == byte
            shown.append(messages[ordinal][1])
            byte += len(shown[-1].data)
        assert byte == log.tail_byte
        times = [message.time for message in shown]
        assert times == sorted(times)
        return shown

    def window(self, stream: Stream) -> Log:
        """What it shows, as a log that holds all of it."""
        window = Log()
        window.start_at(stream.log.first)
        for data, time, key in self.entries(stream):
            window.append(data, None, time, key)
        return window
