"""Random lives of a handful of streams: commands that meet, and times in which things expire.

Hypothesis draws small numbers; each becomes a command that makes sense, or nearly so, in the state
that the commands before it have reached.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from hypothesis import strategies as st
from msgspec.structs import replace

from millstream.formats.blocks import Keys
from millstream.formats.layout import StreamId
from millstream.protocol.offsets import Offset
from millstream.state.commands import (
    AckWake,
    AnyCommand,
    Append,
    AppendEntries,
    ClaimWake,
    CreateBucket,
    CreateStream,
    CreateSubscription,
    DeleteBucket,
    DeleteStream,
    DeleteSubscription,
    ExpireLease,
    ExpireStream,
    IssueWake,
    KeepSystemStream,
    LinkStreams,
    NoOp,
    PublishRuns,
    PublishSnapshot,
    ReportDelivery,
    SetRules,
    TouchStream,
    TrimStream,
    UnlinkStream,
    WriteSystemStream,
)
from millstream.state.decisions import cut_past, revision_of
from millstream.state.machine import StateMachine
from millstream.state.rules import Rules
from millstream.state.stream import Producer, Stream, resolve_in
from millstream.state.subscription import Subscription
from millstream.state.system_streams import SYSTEM_KEYS
from tests.unit.state.content import Contents, Objects
from tests.unit.state.store import JSON, NOW_MS, TEXT, ends_of, gather

PATHS = [b"x/a", b"x/b", b"y/a", b"z/d"]
BUCKETS = [b"x", b"y", b"z", b"empty"]
SYSTEM_PATHS = sorted(SYSTEM_KEYS)
SUBSCRIBERS = ["s", "t", "u"]
KEYS: list[bytes | None] = [b"k", None, b"", b"other"]
PATTERNS = [None, b"x/*", b"**", b"*/a"]
UNKNOWN = Stream(StreamId(999), b"?", TEXT, NOW_MS)


class Step(NamedTuple):
    verb: str
    wait_ms: int
    which: int
    a: int
    b: int
    parts: tuple[bytes, ...]


class Teller:
    """Makes commands of steps, given the state that the commands before have reached."""

    def __init__(self, shards: int = 1) -> None:
        self.machine = StateMachine(shards)
        self.now_ms = NOW_MS
        self.objects: Objects = {}
        self.commands: list[AnyCommand] = []
        self._gathered: list[PublishRuns] = []  # uploaded, not published yet
        self._segments = 0

    def tell(self, step: Step) -> None:
        self.now_ms += step.wait_ms
        command = self._concrete(step)
        self.machine.apply(command)
        self.commands.append(command)

    def _concrete(self, step: Step) -> AnyCommand:
        now_ms, streams = self.now_ms, list(self.machine.by_id.values()) or [UNKNOWN]
        stream = UNKNOWN if step.which == 7 else streams[step.which % len(streams)]
        match step.verb:
            case "create" | "fork":
                return _create(step, self.machine, streams, now_ms)
            case "append" | "produce" | "entries":
                return _append(step, stream, now_ms)
            case "rules":
                return _set_rules(step, stream, now_ms)
            case "delete":
                return DeleteStream(now_ms, stream.stream_id)
            case "expire":
                return ExpireStream(now_ms, stream.stream_id)
            case "touch":
                return TouchStream(now_ms - step.a, stream.stream_id)
            case "publish":
                return _publish(step, self.machine, stream, now_ms)
            case "trim":
                return _trim(step, self.machine, stream, now_ms)
            case "gather" | "flush":
                return self._flush(step, stream)
            case "create wake stream":
                return CreateStream(now_ms, b"wake/pool", JSON)
            case "subscribe":
                return _subscribe(step, now_ms)
            case "follow":
                return self._follow(step, stream)
            case "bucket":
                return CreateBucket(now_ms, BUCKETS[step.which % 4])
            case "keep":
                is_kept, rules = step.a > 1, Rules(0, "metrics") if step.a > 5 else None
                return KeepSystemStream(now_ms, SYSTEM_PATHS[step.which % 2], is_kept, rules)
            case "report":
                data, ends, count = b"".join(step.parts), ends_of(step.parts), len(step.parts)
                path = SYSTEM_PATHS[step.which % 2]
                return WriteSystemStream(now_ms, path, data, ends, count, b"k")
            case "unbucket":
                return DeleteBucket(now_ms, BUCKETS[step.which % 4])
            case _:
                return NoOp(now_ms)

    def _flush(self, step: Step, first: Stream) -> AnyCommand:
        """A segment is uploaded, and published at once or when much has happened since."""
        self._segments += 1
        machine, name = self.machine, f"segment-{self._segments}"
        shard = first.stream_id % machine.shards
        streams = [s for i, s in sorted(machine.by_id.items()) if i % machine.shards == shard]
        wanted = [(s, None if step.a > 3 else step.a + i) for i, s in enumerate(streams)]
        command = gather(machine, self.objects, name, wanted[: 1 + step.b], self.now_ms)
        if step.verb == "flush":
            return command
        self._gathered.append(command)
        return self._gathered.pop(0) if len(self._gathered) > 2 else NoOp(self.now_ms)

    def _follow(self, step: Step, stream: Stream) -> AnyCommand:
        """Something about a subscription, as often as not one that has work."""
        now_ms, name = self.now_ms, SUBSCRIBERS[step.b % len(SUBSCRIBERS)]
        subscription = self.machine.subscriptions.by_id.get(name)
        if subscription is None:
            return _subscribe(step, now_ms)
        new_wake, wake_id = f"w{len(self.commands)}", subscription.wake_id or ""
        match step.a:
            case 0:
                return LinkStreams(now_ms, name, (stream.path, PATHS[step.which % 4]))
            case 1:
                return UnlinkStream(now_ms, name, stream.path)
            case 2 | 3 if subscription.is_webhook:
                return IssueWake(now_ms, name, subscription.generation + 1, new_wake)
            case 2 | 3:
                return ClaimWake(now_ms, name, "worker", new_wake)
            case 4 if subscription.is_webhook:
                tails = self.machine.subscriptions.pending_tails(subscription, 10)
                done = bool(step.parts)
                return ReportDelivery(now_ms, name, wake_id, step.b < 6, done, tails)
            case 7:
                return ExpireLease(now_ms, name, wake_id)
            case _:
                acks = tuple(self._ack(step, key) for key in self._some_followed(subscription))
                generation = subscription.generation
                return AckWake(now_ms, name, wake_id, generation, acks, step.a == 6)

    def _some_followed(self, subscription: Subscription) -> list[bytes]:
        """With a link and without one."""
        names = islice(self.machine.names.keys_from(b""), 1)
        return [*islice(subscription.links, 1), *names]

    def _ack(self, step: Step, key: bytes) -> tuple[bytes, int | None, int | None]:
        """At a message, now and then beside one. Both units are told, as a handler sees to."""
        stream = self.machine.find(key)
        if stream is None or stream.deleted:
            return key, 0, 0
        ordinal, byte = _place(step, self.machine, stream)
        return key, ordinal, byte + (step.which == 5)


def _subscribe(step: Step, now_ms: int) -> AnyCommand:
    name = SUBSCRIBERS[step.b % len(SUBSCRIBERS)]
    if step.a == 0:
        return DeleteSubscription(now_ms, name)
    command = CreateSubscription(now_ms, name, "http://here", 1500)
    command.pattern = PATTERNS[step.which % len(PATTERNS)]
    command.streams = (PATHS[step.a % 4],) if step.a > 4 or command.pattern is None else ()
    if step.b % 2:
        command.wake_stream = b"wake/pool"
    else:
        command.webhook_url = "https://hooks.example/in"
    return command


def _create(step: Step, machine: StateMachine, streams: list[Stream], now_ms: int) -> CreateStream:
    command = CreateStream(now_ms, PATHS[step.which % 4], JSON if step.a == 7 else TEXT)
    command.closed = step.b == 7
    command.implies_bucket = step.a != 1
    command.data, command.ends = b"".join(step.parts), ends_of(step.parts)
    command.count = len(step.parts)
    command.keys = _keys(step, command.count) if step.a % 2 else None
    if step.a in (3, 4):
        command.ttl_ms = 1000 * step.b
    elif step.a == 5:
        command.expires_at_ms = NOW_MS + 2000 * step.b
    if step.verb == "fork":
        source = streams[step.a % len(streams)]
        command.fork_from, command.content_type = source.path, source.content_type
        command.rules_revision = revision_of(source)
        command.lifetime_given = command.ttl_ms is not None or command.expires_at_ms is not None
        if step.b % 2:
            base = source.log.first_ordinal if step.b < 5 else 0
            command.fork_ordinal = min(base + step.b, source.log.tail_ordinal + 1)
        command.fork_sub_offset = {3: 1, 5: 2}.get(step.b, 0)
        _look_up_fork_place(command, machine, source)
    return command


def _look_up_fork_place(command: CreateStream, machine: StateMachine, source: Stream) -> None:
    """As a handler does: whoever applies the command may not have the content at hand."""
    if command.fork_ordinal is None or source.deleted or source is UNKNOWN:
        return
    window = Contents(machine).window(source)
    anchor = resolve_in(window, Offset(command.fork_ordinal, None))
    if anchor is not None:
        cut = cut_past(window, anchor, command.fork_sub_offset, source.is_json)
        if cut is not None:
            command.fork_place = (source.stream_id, *anchor, *cut)


def _keys(step: Step, count: int) -> Keys:
    """One for all messages, or one each."""
    keys = [KEYS[(step.a + step.b * index) % len(KEYS)] for index in range(count)]
    return tuple(keys) if step.b % 2 else KEYS[step.which % len(KEYS)]


def _set_rules(step: Step, stream: Stream, now_ms: int) -> SetRules:
    """Another version in JSON mode, another routing key elsewhere; now and then too late."""
    before = stream.rules or Rules(0)
    rules = replace(before, routing_key=b"%d" % step.a, touch=step.b > 3)
    if stream.is_json or step.b == 6:
        rules = replace(rules, schemas=(*before.schemas, b"{}"), lenses=(*before.lenses, b""))
    revision = before.revision + (1 if step.which == 6 else 0)
    begins = rules.version > before.version
    is_fresh = begins and not before.version and step.a < 3
    needs_empty = step.a == 0
    return SetRules(now_ms, stream.stream_id, revision, rules, begins, is_fresh, needs_empty)


def _append(step: Step, stream: Stream, now_ms: int) -> Append:
    """What has rules gets entries that keep to them, and now and then what knows nothing of them.

    Clocks are set back now and then, and what entries hint at may be long ago or to come.
    """
    if step.verb == "entries" or (stream.rules is not None and step.b):
        command: Append = AppendEntries(now_ms, stream.stream_id, closes=step.a == 7)
    else:
        command = Append(now_ms, stream.stream_id, closes=step.a == 7)
    if step.b == 3:
        command.now_ms -= 700 * step.which
    if step.parts or step.a < 7:
        messages = step.parts or (b"x",)
        command.data, command.ends = b"".join(messages), ends_of(messages)
        command.count = len(messages)
        command.content_type = JSON if step.a == 6 else stream.essence
    if isinstance(command, AppendEntries):
        command.keys = _keys(step, command.count)
        command.hint_ms = (None, now_ms - 300, now_ms - 5, now_ms + 5, 0)[step.which % 5]
        command.rules_revision = revision_of(stream) + (step.which == 6)
    if step.b > 5:
        command.stream_seq = b"%d" % (step.which + step.b)
    if step.verb == "produce":
        command.producer_id = b"q" if step.a % 3 == 1 else b"p"
        known = (stream.producers or {}).get(command.producer_id, Producer(0, -1, 0, 0))
        command.producer_epoch = max(0, known.epoch + {4: 1, 5: -1}.get(step.a, 0))
        in_turn = 0 if command.producer_epoch > known.epoch else known.seq + 1
        command.producer_seq = max(0, in_turn + {4: -1, 5: 1}.get(step.b, 0))
    return command


def _publish(step: Step, machine: StateMachine, stream: Stream, now_ms: int) -> PublishSnapshot:
    """Mostly at a message that is there; now and then before, behind or beside one."""
    ordinal, byte = _place(step, machine, stream)
    if step.b == 4:
        byte = max(0, byte - 1)
    # A blob is stored for one place: only who tries the same again brings it a second time.
    blob = f"{stream.stream_id}-{now_ms}-{ordinal}-{byte}-{step.which}{step.b}-{len(step.parts)}"
    command = PublishSnapshot(
        now_ms, stream.stream_id, ordinal, byte, blob, b"a/b", step.b, str(step.b % 2)
    )
    if not stream.deleted and stream is not UNKNOWN:
        window = Contents(machine).window(stream)
        command.is_boundary = resolve_in(window, Offset(ordinal, byte)) is not None
    return command


def _place(step: Step, machine: StateMachine, stream: Stream) -> tuple[int, int]:
    log = stream.log
    ordinal = log.first_ordinal + step.a
    if step.b < 6:
        ordinal = min(ordinal, log.tail_ordinal)
    if stream.deleted or stream is UNKNOWN or ordinal > log.tail_ordinal:
        return ordinal, log.tail_byte + step.a
    return ordinal, Contents(machine).window(stream).byte_at(ordinal)


def _trim(step: Step, machine: StateMachine, stream: Stream, now_ms: int) -> TrimStream:
    return TrimStream(now_ms, stream.stream_id, *_place(step, machine, stream))


class Life(NamedTuple):
    commands: list[AnyCommand]
    objects: Objects
    shards: int


def live(steps: list[Step], shards: int = 1, *, is_followed: bool = False) -> Life:
    teller = Teller(shards)
    for step in (*(FOLLOWED if is_followed else ()), *PRELUDE, *steps):
        teller.tell(step)
    return Life(teller.commands, teller.objects, shards)


FOLLOWED = [
    Step("create wake stream", 0, 0, 0, 0, ()),
    Step("subscribe", 0, 2, 1, 0, ()),
    Step("subscribe", 0, 1, 5, 1, ()),
]
PRELUDE = [
    Step("create", 0, 0, 0, 0, (b"one", b"three")),
    Step("create", 0, 1, 3, 5, ()),
    Step("fork", 0, 2, 0, 0, ()),
]
VERBS = ["mark", "create", "create", "fork", "fork", "fork", "append", "append", "append"]
VERBS += ["entries", "entries", "entries", "rules"]
VERBS += ["produce", "produce", "produce", "delete", "delete", "expire", "touch"]
VERBS += ["publish", "publish", "publish", "bucket", "unbucket", "trim", "trim"]
VERBS += ["flush", "flush", "flush", "gather", "gather", "gather"]
VERBS += ["keep", "keep", "report"]
digit = st.integers(0, 7)
parts = st.lists(st.binary(min_size=1, max_size=6), max_size=3).map(tuple)
waits_ms = st.sampled_from([0, 0, 0, 0, 1, 100, 1000])


def steps_of(verbs: list[str]) -> st.SearchStrategy[Step]:
    return st.builds(Step, st.sampled_from(verbs), waits_ms, digit, digit, digit, parts)


steps = steps_of(VERBS)
followed = steps_of([*VERBS, *["follow"] * 12, "subscribe"])

sequences = st.lists(steps, min_size=8, max_size=40).map(lambda found: live(found).commands)
lives = st.builds(live, st.lists(steps, min_size=8, max_size=60), st.sampled_from([1, 3]))
followed_lives = st.lists(followed, min_size=8, max_size=60).map(
    lambda found: live(found, is_followed=True)
)
