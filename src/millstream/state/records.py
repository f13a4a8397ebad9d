"""What belongs to no stream: as records, a key and a value each, and back.

    births                  streams ever created, a decimal number
    keys                    the secrets behind signatures and tokens
    bucket/{name}           one bucket
    blob/{name}             how many snapshots are this blob, once a fork has shared it
    subscription/{id}       one subscription
    access                  there, once there was an access key
    access/{id}             one access key
    system/{path}           one of the server's own streams: its id, and whether it is kept
    swaps                   which segments gave their place to others of late

Streams are stored elsewhere and need none of this to be found.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millstream.formats.images import BucketImage
from millstream.formats.layout import StreamId
from millstream.state.buckets import Bucket, Retention
from millstream.state.changes import Record
from millstream.state.machine import StateMachine
from millstream.state.subscription_images import (
    adopt_subscription,
    decode_keys,
    encode_keys,
    encode_subscription,
)
from millstream.state.system_streams import Kept

BUCKET, BLOB, SUBSCRIPTION = "bucket/", "blob/", "subscription/"
SWAPS = "swaps"
ACCESS, ACCESS_KEY = "access", "access/"
SYSTEM = "system/"

_encode = msgspec.msgpack.Encoder().encode
_bucket_decoder = msgspec.msgpack.Decoder(BucketImage)
_system_decoder = msgspec.msgpack.Decoder(Kept)


def take_records(machine: StateMachine) -> list[Record]:
    """Those that changed since this was last called."""
    records: list[Record] = [("births", b"%d" % machine.births)]
    subscriptions = machine.subscriptions
    if subscriptions.keys is not None:
        records.append(("keys", encode_keys(subscriptions.keys)))
    for name in machine.names.changed_buckets:
        bucket = machine.names.buckets.get(name)
        image = None
        if bucket is not None:
            image = _encode(
                BucketImage(bucket.name, bucket.created_ms, bucket.streams, bucket.retention)
            )
        records.append((BUCKET + name.decode("latin-1"), image))
    for blob in machine.changes.blobs:
        uses = machine.shared_blobs.get(blob)
        records.append((BLOB + blob, None if uses is None else b"%d" % uses))
    for subscription_id in subscriptions.changed:
        subscription = subscriptions.by_id.get(subscription_id)
        image = None if subscription is None else encode_subscription(subscription)
        records.append((SUBSCRIPTION + subscription_id, image))
    if machine.access.changed:
        records.append((ACCESS, b"on"))
    access = machine.access
    records += [(ACCESS_KEY + key_id, access.encode(key_id)) for key_id in access.changed]
    system = machine.system
    records += [(SYSTEM + path.decode(), _encode(system.by_path[path])) for path in system.changed]
    if machine.swaps.is_changed:
        records.append((SWAPS, machine.swaps.encode()))
    machine.swaps.is_changed = False
    machine.names.changed_buckets.clear()
    machine.changes.blobs.clear()
    machine.access.changed.clear()
    machine.system.changed.clear()
    subscriptions.changed.clear()
    return records


def system_ids_of(records: Iterable[tuple[str, bytes]]) -> set[StreamId]:
    """Of the server's own streams, from the records below SYSTEM."""
    return {_system_decoder.decode(value).stream_id for _, value in records}


def restore_records(machine: StateMachine, records: Iterable[tuple[str, bytes]]) -> None:
    """Raises ValueError (msgspec's included) when a record makes no sense."""
    for key, value in records:
        if key == "births":
            machine.births = int(value)
        elif key == "keys":
            machine.subscriptions.keys = decode_keys(value)
        elif key == ACCESS:
            machine.access.is_used = True
        elif key.startswith(ACCESS_KEY):
            machine.access.restore(value)
        elif key.startswith(SYSTEM):
            kept = _system_decoder.decode(value)
            machine.system.restore(key.removeprefix(SYSTEM).encode(), kept)
        elif key == SWAPS:
            machine.swaps.restore(value)
        elif key.startswith(BUCKET):
            image = _bucket_decoder.decode(value)
            retention = Retention(*image.retention)
            bucket = Bucket(image.name, image.created_ms, image.streams, retention)
            machine.names.put_bucket(bucket)
        elif key.startswith(BLOB):
            machine.shared_blobs[key.removeprefix(BLOB)] = int(value)
        elif key.startswith(SUBSCRIPTION):
            adopt_subscription(machine.subscriptions, value)
        else:
            raise ValueError(f"a record of the unknown key {key!r}")
    machine.names.changed_buckets.clear()
    machine.subscriptions.changed.clear()
