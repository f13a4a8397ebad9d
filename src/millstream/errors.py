"""The one tree of errors. `api/errors.py` gives each its status code."""

from __future__ import annotations

from typing import ClassVar


class StreamError(Exception):
    """Something the caller can act on. Fields carry the facts; `code` is the word clients see."""

    code: ClassVar[str]
    retriable: ClassVar[bool] = False  # may the same request be sent again?
    changed_nothing: ClassVar[bool] = True  # do we promise that no byte was kept?

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequest(StreamError):
    """The request itself is wrong, whatever the state of any stream."""

    code = "invalid_request"


class TouchNotEnabled(StreamError):
    """The stream's profile has no touches, or the stream ended while a client waited for one."""

    code = "touch_not_enabled"


class InvalidOffset(InvalidRequest):
    code = "invalid_offset"


class InvalidJson(InvalidRequest):
    code = "invalid_json"


class EmptyBody(InvalidRequest):
    code = "empty_body"


class StreamNotFound(StreamError):
    code = "stream_not_found"


class BucketNotFound(StreamError):
    code = "bucket_not_found"


class BucketExists(StreamError):
    code = "bucket_exists"


class BucketNotEmpty(StreamError):
    code = "bucket_not_empty"


class SnapshotNotFound(StreamError):
    code = "snapshot_not_found"


class SnapshotConflict(StreamError):
    """The snapshot does not fit what the stream holds now."""

    code = "snapshot_conflict"


class InvalidSchema(InvalidRequest):
    """A schema, lens, profile, routing key or search config that cannot be installed."""

    code = "invalid_schema"


class SchemaViolation(InvalidRequest):
    """An entry that does not keep to what its stream asks; nothing of its request is kept."""

    code = "schema_violation"


class StreamNotEmpty(StreamError):
    """The first schema would speak of entries that were there before it."""

    code = "stream_not_empty"


class LensConflict(StreamError):
    """The lens does not lead from the current version to the next."""

    code = "lens_version_mismatch"


class RulesChanged(StreamError):
    """The schema or profile changed while the request was under way, again and again."""

    code = "rules_changed"


class RouteNotFound(StreamError):
    code = "not_found"


class MethodNotAllowed(StreamError):
    code = "method_not_allowed"

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class StreamGone(StreamError):
    """Deleted, and only kept because forks still read from it."""

    code = "stream_gone"


class OffsetGone(StreamError):
    """A snapshot replaced everything before `earliest`."""

    code = "offset_gone"

    def __init__(self, earliest: str) -> None:
        super().__init__(f"a snapshot replaced everything before {earliest}; read /bootstrap")
        self.earliest = earliest


class StreamExists(StreamError):
    """The name is taken by a stream with another configuration."""

    code = "stream_exists"


class ContentTypeMismatch(StreamError):
    code = "content_type_mismatch"


class StreamClosed(StreamError):
    code = "stream_closed"

    def __init__(self, message: str, final_offset: str) -> None:
        super().__init__(message)
        self.final_offset = final_offset


class SequenceRegression(StreamError):
    code = "sequence_regression"


class ProducerFenced(StreamError):
    code = "producer_fenced"

    def __init__(self, message: str, current_epoch: int) -> None:
        super().__init__(message)
        self.current_epoch = current_epoch


class ProducerGap(StreamError):
    code = "producer_gap"

    def __init__(self, message: str, expected: int, received: int) -> None:
        super().__init__(message)
        self.expected = expected
        self.received = received


class ProducerEpochStart(InvalidRequest):
    """A new epoch has to begin at sequence 0."""

    code = "producer_epoch_start"


class ForkSourceUnavailable(StreamError):
    """The source is deleted and only kept for its present forks."""

    code = "fork_source_unavailable"


class BodyTooLarge(StreamError):
    code = "body_too_large"


class TooManyMessages(BodyTooLarge):
    """Small enough, but in too many pieces."""

    code = "too_many_messages"


class Overloaded(StreamError):
    """A bounded queue or budget is full. Nothing was done."""

    code = "overloaded"
    retriable = True


class QueueFull(StreamError):
    """Too much waits for the log already. Nothing was done."""

    code = "queue_full"
    retriable = True


class AppendTimeout(StreamError):
    """The log takes too long: what was sent may be kept yet, or not."""

    code = "append_timeout"
    retriable = True
    changed_nothing = False


class RequestTimeout(StreamError):
    """Whatever the request began goes on to its end, and no client hears of it."""

    code = "request_timeout"
    retriable = True
    changed_nothing = False


class StorageFull(StreamError):
    """The disk has no room for the next log file. Nothing was done."""

    code = "storage_full"
    retriable = True


class HotBudgetUsed(StreamError):
    """The cold store does not take what memory holds, and memory is full. Nothing was done."""

    code = "hot_budget_used"
    retriable = True


class MissingContent(StreamError):
    """The catalog knows of content that neither the cold store nor the checkpoint has."""

    code = "missing_content"

    def __init__(self, path: bytes, missing_bytes: int) -> None:
        super().__init__(
            f"the last {missing_bytes} bytes of {path.decode(errors='replace')} are missing: "
            "the checkpoint file that held them is not the one of this catalog"
        )


class ColdUnavailable(StreamError):
    """What was asked for lies in the object store, and that does not answer. Nothing was done."""

    code = "cold_unavailable"
    retriable = True


class CatalogUnavailable(StreamError):
    """What a command is about rests in the catalog, and that cannot be read. Nothing was done."""

    code = "catalog_unavailable"
    retriable = True


class ShuttingDown(StreamError):
    code = "shutting_down"
    retriable = True


class AppendOutcomeUnknown(StreamError):
    """The log failed while writing: the bytes may or may not be there after recovery."""

    code = "append_outcome_unknown"
    retriable = True
    changed_nothing = False


# Subscriptions. Their code words are the protocol's own, in capitals.


class InvalidSubscriptionRequest(StreamError):
    code = "INVALID_REQUEST"


class WebhookUrlRejected(StreamError):
    """The server must not be made to call this address."""

    code = "WEBHOOK_URL_REJECTED"


class SubscriptionNotFound(StreamError):
    code = "SUBSCRIPTION_NOT_FOUND"


class TooManyPatterns(StreamError):
    """Every new stream would be matched against too much."""

    code = "TOO_MANY_PATTERNS"


class SubscriptionExists(StreamError):
    """The id is taken by a subscription with another configuration."""

    code = "SUBSCRIPTION_ALREADY_EXISTS"


class TokenInvalid(StreamError):
    code = "TOKEN_INVALID"


class TokenExpired(StreamError):
    code = "TOKEN_EXPIRED"


class WakeFenced(StreamError):
    """The wake is over, or another worker's by now."""

    code = "FENCED"


class AlreadyClaimed(StreamError):
    code = "ALREADY_CLAIMED"

    def __init__(self, message: str, current_holder: str, generation: int) -> None:
        super().__init__(message)
        self.current_holder = current_holder
        self.generation = generation


class NoPendingWork(StreamError):
    code = "NO_PENDING_WORK"


class Unauthorized(StreamError):
    """No key came with the request, or none that is good."""

    code = "unauthorized"


class Forbidden(StreamError):
    """The key is good, and not for this."""

    code = "forbidden"


class SystemStream(StreamError):
    """A stream of the server's own: clients read it, and do nothing else with it."""

    code = "system_stream"


class KeyNotFound(StreamError):
    code = "key_not_found"


class TooManyKeys(StreamError):
    code = "too_many_keys"


class InvalidAck(StreamError):
    """The offset is no place the subscription's progress could move to."""

    code = "INVALID_OFFSET"


# Jobs of the data pipeline


class JobNotFound(StreamError):
    """There is no such job (any more): its lease ran out, or the server was restarted."""

    code = "job_not_found"


class JobConflict(StreamError):
    """What the job was given is not so any more. Harmless: ask for another one."""

    code = "job_conflict"


class JobFailed(StreamError):
    """Something about the job went wrong that the code did not foresee. The log says what."""

    code = "job_failed"


class ResultRefused(StreamError):
    """What the job made is not what the catalog says it must be."""

    code = "result_refused"


class DamagedSegment(StreamError):
    """An object of the cold tier does not hold what was written to it. None of it was served."""

    code = "damaged_segment"

    def __init__(self, name: str, place: str, expected: str, found: str) -> None:
        super().__init__(
            f"{name} is damaged: {place} should be {expected}, found {found}. "
            "Restore the object from a backup or a replica of the bucket."
        )
        self.name = name
        self.place = place
        self.expected = expected
        self.found = found


class StartupError(Exception):
    """The server cannot start; the message says what to change. Exit code 2."""


class FolderInUse(StartupError):
    """Another process holds the lock of the data folder."""

    def __init__(self, path: object) -> None:
        super().__init__(
            f"data folder {path} is in use by another process; stop it or choose another --data-dir"
        )


class DamagedData(StartupError):
    """Bytes on disk that were acknowledged once do not check out any more."""

    def __init__(self, file: str, position: int, expected: str, found: str) -> None:
        super().__init__(
            f"{file} is damaged at byte {position}: expected {expected}, found {found}. "
            "Records behind this place were acknowledged, so nothing was changed. "
            "Restore the file from a backup. `millstream verify` lists all that is damaged, "
            "`millstream salvage` brings the rest into a new folder."
        )
        self.file = file
        self.position = position


class UnusableRecord(StartupError):
    """A record of the log is as it was written, but the state cannot take it."""

    def __init__(
        self, file: str, position: int, lsn: int, command: str, payload: bytes, reason: str
    ) -> None:
        name = file.replace("\\", "/").rpartition("/")[2]
        super().__init__(
            f"{file} at byte {position}: record {lsn} ({command}) cannot be applied: {reason}. "
            "Its bytes are sound, so this is an error of the program; nothing was changed. "
            "A newer Millstream may get past it. To go on without this one record, at the price "
            f"of what it did: millstream serve --skip-record {name}:{position}"
        )
        self.file = file
        self.position = position
        self.lsn = lsn
        self.command = command
        self.payload = payload
        self.reason = reason


class DamagedBackup(StartupError):
    """A part of the catalog's backup in the cold store is not what was stored."""

    def __init__(self, name: str, place: str, expected: str, found: str) -> None:
        super().__init__(f"{name} is damaged: {place} should be {expected}, found {found}")
        self.name = name
        self.place = place
        self.expected = expected
        self.found = found


# The object store. Outside its room these are all that is ever seen of its failures.


class ObjectStoreError(OSError):
    """An operation on the object store did not succeed; the message names it and the object."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class StoreUnavailable(ObjectStoreError):
    """The store did not answer, or not usably, until the deadline. Whether a write happened is
    unknown; a later try may succeed."""


class StoreRefused(StoreUnavailable):
    """The store will go on refusing until an operator changes a setting; the message says which."""


class ObjectMissing(ObjectStoreError):
    """There is no such object."""


class ObjectTooShort(ObjectStoreError):
    """The object ends before the range that was asked for."""
