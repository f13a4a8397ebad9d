"""/__millstream/retention/{bucket}: how long and how much the streams of a bucket keep."""

from __future__ import annotations

import msgspec

from millstream.api.control import respond_json
from millstream.api.errors import respond_error
from millstream.api.paths import check_bucket_id, unescape_all
from millstream.engine.engine import Engine
from millstream.errors import InvalidRequest, StreamError
from millstream.http.message import Request
from millstream.limits import INTEGER_MAX, TTL_SECONDS_MAX
from millstream.state.commands import SetRetention
from millstream.state.decisions import bucket_not_found
from millstream.state.outcomes import Outcome


class RetentionBody(msgspec.Struct):
    """Both absent or null: everything is kept."""

    max_age_seconds: int | None = None
    max_bytes: int | None = None


class RetentionRoutes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def set(self, request: Request, raw_bucket: bytes) -> None:
        self._set(request, _bucket(raw_bucket), _parse(request.body))

    def clear(self, request: Request, raw_bucket: bytes) -> None:
        self._set(request, _bucket(raw_bucket), RetentionBody())

    def describe(self, request: Request, raw_bucket: bytes) -> None:
        self._describe(request, _bucket(raw_bucket))

    def _set(self, request: Request, bucket: bytes, body: RetentionBody) -> None:
        age, size = body.max_age_seconds, body.max_bytes
        if age is not None and not 1 <= age <= TTL_SECONDS_MAX:
            raise InvalidRequest("max_age_seconds must be from 1 to a hundred years")
        if size is not None and not 0 <= size <= INTEGER_MAX:
            raise InvalidRequest("max_bytes must be a whole number")
        age_ms = None if age is None else age * 1000
        command = SetRetention(self._engine.clock.now_ms(), bucket, age_ms, size)

        def was_set(_: object, outcome: Outcome) -> None:
            if isinstance(outcome, StreamError):
                respond_error(request, outcome)
            else:
                self._describe(request, bucket)

        self._engine.submit(command, was_set, request)

    def _describe(self, request: Request, bucket: bytes) -> None:
        found = self._engine.machine.names.buckets.get(bucket)
        if found is None:
            respond_error(request, bucket_not_found())
            return
        age_ms, size = found.retention
        age = None if age_ms is None else age_ms // 1000
        respond_json(
            request,
            200,
            {"bucket_id": bucket.decode(), "max_age_seconds": age, "max_bytes": size},
        )


def _bucket(raw_bucket: bytes) -> bytes:
    bucket = unescape_all(raw_bucket)
    check_bucket_id(bucket)
    return bucket


def _parse(body: bytes) -> RetentionBody:
    try:
        return msgspec.json.decode(body, type=RetentionBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(
            f'send a body such as {{"max_age_seconds": 604800, "max_bytes": null}}: {error}'
        ) from None
