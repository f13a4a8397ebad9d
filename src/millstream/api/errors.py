"""The one table from errors to status codes, and the shape of an error's answer."""

from __future__ import annotations

import msgspec

from millstream import errors
from millstream.api.headers import JSON
from millstream.http.message import Request

STATUS: dict[type[errors.StreamError], int] = {
    errors.InvalidRequest: 400,
    errors.InvalidOffset: 400,
    errors.InvalidJson: 400,
    errors.EmptyBody: 400,
    errors.InvalidSchema: 400,
    errors.SchemaViolation: 400,
    errors.StreamNotEmpty: 400,
    errors.ProducerEpochStart: 400,
    errors.InvalidSubscriptionRequest: 400,
    errors.WebhookUrlRejected: 400,
    errors.TokenInvalid: 401,
    errors.TokenExpired: 401,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.SystemStream: 403,
    errors.ProducerFenced: 403,
    errors.StreamNotFound: 404,
    errors.TouchNotEnabled: 404,
    errors.RouteNotFound: 404,
    errors.BucketNotFound: 404,
    errors.SnapshotNotFound: 404,
    errors.SubscriptionNotFound: 404,
    errors.JobNotFound: 404,
    errors.KeyNotFound: 404,
    errors.MethodNotAllowed: 405,
    errors.AppendTimeout: 408,
    errors.RequestTimeout: 408,
    errors.BucketExists: 409,
    errors.BucketNotEmpty: 409,
    errors.SnapshotConflict: 409,
    errors.StreamExists: 409,
    errors.ContentTypeMismatch: 409,
    errors.StreamClosed: 409,
    errors.SequenceRegression: 409,
    errors.ProducerGap: 409,
    errors.ForkSourceUnavailable: 409,
    errors.SubscriptionExists: 409,
    errors.TooManyPatterns: 409,
    errors.TooManyKeys: 409,
    errors.WakeFenced: 409,
    errors.AlreadyClaimed: 409,
    errors.NoPendingWork: 409,
    errors.InvalidAck: 409,
    errors.JobConflict: 409,
    errors.LensConflict: 409,
    errors.RulesChanged: 409,
    errors.ResultRefused: 409,
    errors.StreamGone: 410,
    errors.OffsetGone: 410,
    errors.BodyTooLarge: 413,
    errors.TooManyMessages: 413,
    errors.QueueFull: 429,
    errors.AppendOutcomeUnknown: 500,
    errors.JobFailed: 500,
    errors.DamagedSegment: 500,
    errors.MissingContent: 500,
    errors.ColdUnavailable: 503,
    errors.CatalogUnavailable: 503,
    errors.Overloaded: 503,
    errors.HotBudgetUsed: 503,
    errors.StorageFull: 503,
    errors.ShuttingDown: 503,
}


def error_headers(error: errors.StreamError) -> bytes:
    """Facts of the error that the protocol wants as headers."""
    if isinstance(error, errors.StreamClosed):
        return (f"stream-closed: true\r\nstream-next-offset: {error.final_offset}\r\n").encode()
    if isinstance(error, errors.OffsetGone):
        return (
            f"stream-earliest-offset: {error.earliest}\r\nstream-next-offset: {error.earliest}\r\n"
        ).encode()
    if isinstance(error, errors.ProducerFenced):
        return b"producer-epoch: %d\r\n" % error.current_epoch
    if isinstance(error, errors.ProducerGap):
        return b"producer-expected-seq: %d\r\nproducer-received-seq: %d\r\n" % (
            error.expected,
            error.received,
        )
    if isinstance(error, errors.MethodNotAllowed):
        return f"allow: {error.allow}\r\n".encode()
    if isinstance(error, errors.Unauthorized | errors.TokenInvalid | errors.TokenExpired):
        return b"www-authenticate: Bearer\r\n"
    if STATUS[type(error)] in (429, 503):
        return b"retry-after: 1\r\n"
    return b""


def error_fields(error: errors.StreamError) -> dict[str, str | int]:
    """Facts of the error that the protocol wants beside code and message."""
    if isinstance(error, errors.AlreadyClaimed):
        return {"current_holder": error.current_holder, "generation": error.generation}
    return {}


def respond_error(request: Request, error: errors.StreamError, extra_headers: bytes = b"") -> None:
    fields = {"code": error.code, "message": error.message, **error_fields(error)}
    body = msgspec.json.encode({"error": fields})
    request.respond(STATUS[type(error)], JSON + extra_headers + error_headers(error), body)
