"""Buckets: create, describe, delete, and what is in them."""

from __future__ import annotations

import msgspec

from millstream.access.gate import refusal
from millstream.access.scopes import Scope
from millstream.api.arguments import Query
from millstream.api.compression import Compression
from millstream.api.errors import respond_error
from millstream.api.headers import JSON, NO_STORE
from millstream.api.listings import Listings
from millstream.api.paths import check_bucket_id
from millstream.clock import Clock
from millstream.engine.engine import Engine
from millstream.errors import StreamError
from millstream.http.message import Request
from millstream.state.buckets import Bucket
from millstream.state.commands import CreateBucket, DeleteBucket
from millstream.state.decisions import bucket_not_found
from millstream.state.outcomes import Done, Outcome


class NamespaceApi:
    def __init__(self, engine: Engine, clock: Clock, compression: Compression) -> None:
        self._engine = engine
        self._clock = clock
        self.listings = Listings(engine, clock, compression)

    def create(self, request: Request, bucket: bytes) -> None:
        check_bucket_id(bucket, new=True)
        command = CreateBucket(self._clock.now_ms(), bucket)
        self._engine.submit(command, self._changed, request)

    def delete(self, request: Request, bucket: bytes) -> None:
        check_bucket_id(bucket)
        command = DeleteBucket(self._clock.now_ms(), bucket)
        self._engine.submit(command, self._changed, request)

    @staticmethod
    def _changed(request: Request, outcome: Outcome) -> None:
        if isinstance(outcome, StreamError):
            respond_error(request, outcome)
        else:
            request.respond(201 if outcome is Done.CREATED else 204, NO_STORE)

    def describe(self, request: Request, bucket: bytes) -> None:
        found = self._find(bucket)
        body = {
            "bucket_id": bucket.decode(),
            "streams": found.streams,
            "created_at_ms": found.created_ms,
        }
        request.respond(200, JSON, msgspec.json.encode(body))

    def _find(self, bucket: bytes) -> Bucket:
        check_bucket_id(bucket)
        found = self._engine.machine.names.buckets.get(bucket)
        if found is None:
            raise bucket_not_found()
        return found

    def list_streams(self, request: Request, bucket: bytes, query: Query) -> None:
        check_bucket_id(bucket)
        if request.grant is not None and not request.grant.allows_some_in(Scope.READ, bucket):
            raise refusal(Scope.READ)
        self._find(bucket)
        self.listings.list_bucket(request, bucket, query)
