"""Create, append, close, delete: requests become commands, outcomes become answers."""

from __future__ import annotations

from millstream.access.scopes import Scope
from millstream.api import arguments
from millstream.api.entry_writes import EntryWrites, as_entries, set_content, takes_long
from millstream.api.errors import respond_error
from millstream.api.forks import find_fork_place
from millstream.api.headers import NO_STORE
from millstream.api.large_bodies import LargeBodies, is_large_json
from millstream.api.own_urls import OwnUrls
from millstream.api.paths import StreamPaths
from millstream.api.reads import Reads
from millstream.api.system_streams import refuse_system
from millstream.clock import Clock
from millstream.engine.engine import Engine
from millstream.errors import EmptyBody, InvalidJson, InvalidRequest, StreamClosed, StreamError
from millstream.http.message import Request
from millstream.limits import LARGE_BODY_BYTES, STREAM_PATH_SEGMENTS_MAX
from millstream.protocol import content_types, json_mode
from millstream.protocol.json_pieces import LargeMessages
from millstream.schemas.admission import Admitted, admit
from millstream.state.commands import Append, AppendEntries, CreateStream, DeleteStream
from millstream.state.decisions import decide_append, is_final
from millstream.state.outcomes import Done, Outcome
from millstream.state.rules import Rules
from millstream.state.stream import Stream

_CLOSED = b"stream-closed: true\r\n"
_CREATE_STATUS = {Done.CREATED: 201, Done.EXISTED: 200}

_PRODUCER_HEADERS = b"producer-epoch: %d\r\nproducer-seq: %d\r\nstream-next-offset: %016d_%016d\r\n"

Waiting = tuple[Request, Stream, Append]


class Writes:
    def __init__(
        self,
        engine: Engine,
        reads: Reads,
        paths: StreamPaths,
        clock: Clock,
        own_urls: OwnUrls,
        bodies: LargeBodies,
    ) -> None:
        self._engine = engine
        self._reads = reads
        self._submit = engine.journal.submit
        self._budget = engine.hot_budget
        self._by_path = engine.machine.residents.by_path
        self._paths = paths
        self._clock = clock
        self._own_urls = own_urls
        self._bodies = bodies
        self._entries = EntryWrites(engine, clock, bodies, self._appended)

    # Append and close

    def append(self, request: Request, key: bytes) -> None:
        headers, body, stream = request.headers, request.body, self._by_path.get(key)
        if (
            stream is not None
            and 0 < len(body) < LARGE_BODY_BYTES
            and headers.get(b"content-type") == stream.content_type
            and not (stream.closed or stream.deleted or stream.is_mortal or stream.is_json)
            and arguments.WRITER_HEADERS.isdisjoint(headers)
            and not self._budget.is_tight
        ):  # what most requests are: nothing needs to be looked at twice
            now_ms = self._clock.now_ms()
            command = Append(now_ms, stream.stream_id, body, b"", 1, stream.essence)
            self._submit((command, self._appended, (request, stream, command)))
        else:
            self._append_with_care(request, key)

    def _append_with_care(self, request: Request, key: bytes) -> None:
        headers, body = request.headers, request.body
        closes = b"stream-closed" in headers and arguments.says_true(headers, b"stream-closed")
        content_type = headers.get(b"content-type", b"")
        if body:
            if not content_type:
                raise InvalidRequest("send the stream's Content-Type with the body")
        elif not closes:
            raise EmptyBody("the body is empty; only a request with Stream-Closed: true may be")
        claim = arguments.producer_claim(headers)
        now_ms = self._clock.now_ms()
        stream = self._engine.find(key, now_ms)
        if body and content_type == stream.content_type:
            command = Append(now_ms, stream.stream_id, body, b"", 1, stream.essence)
        elif body:
            essence = content_types.essence(content_type)
            command = Append(now_ms, stream.stream_id, body, b"", 1, essence)
        else:
            command = Append(now_ms, stream.stream_id)
        if closes:
            command.closes = True
        if claim is not None:
            command.producer_id, command.producer_epoch, command.producer_seq = claim
        if b"stream-seq" in headers:
            command.stream_seq = arguments.stream_seq(headers)
        if body and (stream.rules is not None or not arguments.ENTRY_HEADERS.isdisjoint(headers)):
            command = as_entries(command, headers, stream)
        decided = decide_append(stream, command)
        if decided is not None and is_final(decided):
            self._appended((request, stream, command), decided)
            return
        if body and stream.rules is not None:
            assert isinstance(command, AppendEntries)
            self._entries.append(request, stream, key, command)
            return
        if body and stream.is_json:
            if is_large_json(body):
                self._split_large(request, key, command)
                return
            problem = self._split_json(command)
            if problem is not None:
                self._appended((request, stream, command), decided or problem)
                return
        elif len(body) >= LARGE_BODY_BYTES:
            command.data, command.pieces = b"", (body,)
        self._submit_append(request, stream, command)

    def _submit_append(self, request: Request, stream: Stream, command: Append) -> None:
        entry = (command, self._appended, (request, stream, command))
        if command.count and self._budget.is_tight:
            self._budget.submit(self._engine.machine.layout.shard_of_id(stream.stream_id), entry)
        elif command.pieces:
            self._engine.journal.submit_large(entry)
        else:
            self._submit(entry)

    def _split_json(self, command: Append) -> StreamError | None:
        """Replaces the body by its messages, or says why it has none."""
        try:
            command.data, command.ends, command.count = json_mode.split_body(command.data)
        except InvalidJson as error:
            return error
        if not command.count:
            return _nothing_to_append()
        if command.count > self._bodies.messages_max:
            return json_mode.too_many(command.count, self._bodies.messages_max)
        return None

    def _split_large(self, request: Request, key: bytes, command: Append) -> None:
        """The same off the loop. The stream may be another one when it is done, or none."""
        body, command.data, request.body = command.data, b"", b""

        def done(messages: LargeMessages) -> None:
            if not messages.total:
                raise _nothing_to_append()
            command.now_ms = self._clock.now_ms()
            stream = self._engine.find(key, command.now_ms)
            command.stream_id = stream.stream_id
            command.pieces, command.ends, command.count = messages
            decided = decide_append(stream, command)
            if decided is not None and is_final(decided):
                self._appended((request, stream, command), decided)
            else:
                self._submit_append(request, stream, command)

        self._bodies.run(request, lambda: self._bodies.split_json(body), done)

    @staticmethod
    def _appended(waiting: Waiting, outcome: Outcome) -> None:
        request, stream, command = waiting
        if isinstance(outcome, StreamError):
            respond_error(request, outcome, _closure_headers(stream, outcome))
            return
        if command.producer_id is None:
            log, status = stream.log, 204
            headers = b"stream-next-offset: %016d_%016d\r\n" % (log.tail_ordinal, log.tail_byte)
        else:
            assert stream.producers is not None
            place = stream.producers[command.producer_id]
            headers = _PRODUCER_HEADERS % place
            status = 200 if outcome is Done.APPENDED and command.count else 204
        if stream.closed:
            headers += _CLOSED
        request.connection.send_response(request, status, headers, b"")

    # Create and fork

    def create(self, request: Request, key: bytes, implies_bucket: bool) -> None:
        headers = request.headers
        given = arguments.lifetime(headers)
        fork = arguments.fork_request(headers)
        if fork is not None:
            refuse_system(self._source_key(fork.source))
        if fork is not None and request.grant is not None:
            request.grant.require(Scope.READ, self._source_key(fork.source))
        now_ms = self._clock.now_ms()
        command = CreateStream(
            now_ms,
            key,
            self._content_type(headers, fork),
            given.ttl_ms,
            given.expires_at_ms,
            arguments.says_true(headers, b"stream-closed"),
            lifetime_given=fork is None or given.is_given,
            implies_bucket=implies_bucket,
        )
        if fork is not None:
            command.fork_from = self._source_key(fork.source)
            command.fork_sub_offset = fork.sub_offset
            if fork.offset is not None:
                command.fork_ordinal, command.fork_byte = fork.offset
        self._settle_lifetimes(command)
        decided = self._engine.machine.decide_create(command)
        if decided is None and key.count(b"/") >= STREAM_PATH_SEGMENTS_MAX:
            raise InvalidRequest(
                f"a new stream's path must not have more than {STREAM_PATH_SEGMENTS_MAX} segments"
            )
        if _needs_fork_place(command, decided):
            self._find_fork_place(request, command)
        elif decided is not None:  # the body does not matter then
            self._created((request, command), decided)
        else:
            self._submit_create(request, command)

    def _find_fork_place(self, request: Request, command: CreateStream) -> None:
        assert command.fork_from is not None
        source = self._engine.machine.find(command.fork_from)
        assert source is not None

        def found() -> None:
            now_ms = self._clock.now_ms()
            if now_ms != command.now_ms:  # looking took its time
                command.now_ms = now_ms
                self._settle_lifetimes(command)
            self._submit_create(request, command)

        find_fork_place(self._reads, request, source, command, found)

    def _submit_create(self, request: Request, command: CreateStream) -> None:
        """With the body as its first content."""
        body = request.body
        if not body:
            self._submit_created(request, command)
            return
        command.keys = arguments.routing_key(request.headers)
        arguments.time_hint_ms(request.headers, command.now_ms)  # nothing is before the stream
        if content_types.is_json(content_types.essence(command.content_type)):
            self._create_with_json(request, command)
            return
        is_large = len(body) >= LARGE_BODY_BYTES
        command.data, command.pieces = (b"", (body,)) if is_large else (body, ())
        command.count = 1
        self._submit_created(request, command)

    def _create_with_json(self, request: Request, command: CreateStream) -> None:
        body, rules = request.body, self._rules_of_fork(command)
        header_key = arguments.routing_key(request.headers)

        def work() -> Admitted:
            messages = self._bodies.split_json_beside(body)
            if rules is None:
                return Admitted(messages, header_key)
            return admit(rules, messages, header_key, command.now_ms)

        def done(admitted: Admitted) -> None:
            set_content(command, admitted, rules)
            self._submit_created(request, command)

        def done_later(admitted: Admitted) -> None:
            command.now_ms = self._clock.now_ms()
            self._settle_lifetimes(command)
            done(admitted)

        if is_large_json(body) or (rules is not None and takes_long(body)):
            request.body = b""
            self._bodies.run(request, work, done_later)
        else:
            done(work())

    def _rules_of_fork(self, command: CreateStream) -> Rules | None:
        """What a fork will ask of its entries: what its source does where it leaves it."""
        if command.fork_from is None:
            return None
        source = self._engine.machine.find(command.fork_from)
        if source is None or source.rules is None:
            return None
        place = command.fork_place
        cut = command.fork_ordinal if place is None else place[3]
        return source.rules.as_of(source.log.tail_ordinal if cut is None else cut)

    def _submit_created(self, request: Request, command: CreateStream) -> None:
        entry = (command, self._created, (request, command))
        if command.count and self._budget.is_tight:
            self._budget.submit(self._engine.machine.layout.shard_of_path(command.path), entry)
        else:
            self._engine.submit_entry(entry)

    def _settle_lifetimes(self, command: CreateStream) -> None:
        """The journal hears of renewals before it has to decide whether a name is still taken."""
        for key in (command.path, command.fork_from):
            stream = None if key is None else self._engine.machine.find(key)
            if stream is not None and not stream.deleted:
                self._engine.lifetimes.confirm_alive(stream, command.now_ms)

    def _content_type(
        self, headers: arguments.Headers, fork: arguments.ForkRequest | None
    ) -> bytes:
        content_type = headers.get(b"content-type", b"").strip()
        if content_type:
            if not content_types.is_valid(content_type):
                raise InvalidRequest("Content-Type must be a media type such as application/json")
            return content_type
        if fork is not None:
            source = self._engine.machine.find(self._source_key(fork.source))
            if source is not None:
                return source.content_type
        return content_types.DEFAULT_CONTENT_TYPE

    def _source_key(self, raw_path: bytes) -> bytes:
        return self._paths.any_key(raw_path)

    def _created(self, waiting: tuple[Request, CreateStream], outcome: Outcome) -> None:
        request, command = waiting
        if isinstance(outcome, StreamError):
            respond_error(request, outcome)
            return
        stream = self._engine.machine.find(command.path)
        assert stream is not None
        headers = b"content-type: %b\r\nstream-next-offset: %b\r\n" % (
            stream.content_type,
            stream.tail.encode(),
        )
        if stream.closed:
            headers += _CLOSED
        if outcome is Done.CREATED:
            self._engine.lifetimes.follow(stream)
            headers += self._location(request)
        request.respond(_CREATE_STATUS[outcome], headers + NO_STORE)

    def _location(self, request: Request) -> bytes:
        root = self._own_urls.root(request) or ""
        return b"location: %b%b\r\n" % (root.encode(), request.path)

    # Delete

    def delete(self, request: Request, key: bytes) -> None:
        now_ms = self._clock.now_ms()
        stream = self._engine.find(key, now_ms)
        self._engine.submit(DeleteStream(now_ms, stream.stream_id), self._deleted, request)

    @staticmethod
    def _deleted(request: Request, outcome: Outcome) -> None:
        if isinstance(outcome, StreamError):
            respond_error(request, outcome)
        else:
            request.respond(204, NO_STORE)


def _needs_fork_place(command: CreateStream, decided: Outcome | None) -> bool:
    """Whether all is well but for the offset, which only a look at the content can judge."""
    if command.fork_ordinal is None and command.fork_byte is None:
        return False
    return decided is None or isinstance(decided, InvalidRequest)


def _nothing_to_append() -> InvalidJson:
    return InvalidJson("an empty array appends nothing; send at least one message")


def _closure_headers(stream: Stream, refusal: StreamError) -> bytes:
    """Who is refused on a closed stream learns that it is closed, whatever the reason given."""
    if not stream.closed or stream.deleted or isinstance(refusal, StreamClosed):
        return b""
    return _CLOSED + b"stream-next-offset: %b\r\n" % stream.tail.encode()
