"""A working data folder out of the cold store alone, for `millstream restore`.

What the newest whole manifest names is downloaded, checked and put in place. What the lost machine
held in memory and in its log only is gone; the catalog still counts it, so every stream is cut to
the content that is in the cold store before a reader comes.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from millstream.config import Config
from millstream.errors import DamagedBackup, DamagedData, ObjectMissing, StartupError
from millstream.formats.changes import Changes, StreamRow
from millstream.formats.images import StreamImage, SubscriptionImage
from millstream.formats.layout import StreamId
from millstream.journal.disk import OsDisk
from millstream.journal.folder import NewFolder
from millstream.protocol.offsets import Position
from millstream.recover import RESTORED
from millstream.state.images import decode_image, encode_image
from millstream.state.records import ACCESS_KEY, SUBSCRIPTION, SYSTEM, system_ids_of
from millstream.state.system_streams import SYSTEM_KEYS
from millstream.tier.backup import (
    Manifest,
    extract_file,
    list_manifests,
    load_file,
    load_manifest,
)
from millstream.tier.catalog import Catalog
from millstream.tier.catalog_files import set_lsn
from millstream.tier.identity import load_owner
from millstream.tier.object_kinds import STORE_IDENTITY
from millstream.tier.objects import ObjectStore, cold_settings

UNFINISHED = "restoring"  # folder in the data folder until all is in place
SPARED_BIRTHS = 1_000_000  # ids given after the backup are never given again
ALL_RUNS = 2**62  # a message no stream will ever have

Progress = Callable[[str, int, int], None]  # what, how much of it is done, how much there is


class Restored(NamedTuple):
    manifest: Manifest
    streams: int  # of clients
    keys: int  # access keys that are good as of the manifest
    shortened: int  # streams whose end was only on the lost machine
    passed_over: list[str]  # newer manifests that could not be used, and why


def restore(config: Config, progress: Progress) -> Restored:
    """Raises StartupError; the folder holds no store then."""
    objects = ObjectStore(cold_settings(config))
    try:
        store_id = load_owner(objects)
    except ObjectMissing:
        raise StartupError(
            f"there is no {STORE_IDENTITY} in {objects.settings.url}: no Millstream has kept its "
            "cold data there; check --cold"
        ) from None
    except OSError as error:
        raise StartupError(f"cannot read the cold store: {error}") from error
    folder = NewFolder(config.data_dir)
    try:
        return _restore(objects, store_id, folder, progress)
    except OSError as error:
        raise StartupError(f"cannot restore into {config.data_dir}: {error}") from error
    finally:
        shutil.rmtree(config.data_dir / UNFINISHED, ignore_errors=True)
        folder.close()


def _restore(
    objects: ObjectStore, store_id: str, folder: NewFolder, progress: Progress
) -> Restored:
    lsns = list_manifests(objects)
    if not lsns:
        raise StartupError(
            f"{objects.settings.url} holds no copy of the catalog; the server makes the first one "
            "at its first checkpoint or clean stop"
        )
    work = folder.path / UNFINISHED
    manifest, passed_over = download_newest(objects, store_id, lsns, work, progress)
    catalog = Catalog.open(work, manifest.shards, store_id)
    try:
        # Behind every manifest there is, also one that was passed over: the next is the newest.
        shortened = _repair(catalog, lsns[0] + 1, manifest.lsn, progress)
        streams = catalog.count_streams() - len(system_ids_of(catalog.records(SYSTEM)))
        keys = sum(1 for _ in catalog.records(ACCESS_KEY))
    finally:
        catalog.close()
    disk = OsDisk()
    disk.sync_folder(str(work))
    disk.rename(str(work), str(folder.path / "catalog"))
    folder.finish(store_id)
    return Restored(manifest, streams, keys, shortened, passed_over)


def download_newest(
    objects: ObjectStore, store_id: str, lsns: list[int], work: Path, progress: Progress
) -> tuple[Manifest, list[str]]:
    passed_over: list[str] = []
    for lsn in lsns:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        try:
            manifest = load_manifest(objects, lsn, store_id)
            _download(objects, manifest, work, progress)
            return manifest, passed_over
        except (DamagedBackup, DamagedData) as error:
            passed_over.append(str(error))
    raise StartupError(
        "no copy of the catalog in the cold store is sound: " + "; ".join(passed_over)
    )


def _download(objects: ObjectStore, manifest: Manifest, work: Path, progress: Progress) -> None:
    total, done = sum(file.size for file in manifest.files.values()), 0
    for name, file in manifest.files.items():
        extract_file(file.object, load_file(objects, file), work / name)
        set_lsn(work / name, manifest.lsn)
        done += file.size
        progress("downloading the catalog", done, total)


# What the lost machine took with it


def _repair(catalog: Catalog, lsn: int, manifest_lsn: int, progress: Progress) -> int:
    """Brings the catalog to `lsn`, where it counts only what the cold store holds."""
    total = catalog.count_streams()
    cuts = Cuts()
    changes = Changes(lsn)
    for number, row in enumerate(catalog.stream_rows(), 1):
        cut_row = cuts.cut(row)
        if cut_row is not None:
            changes.streams.append(cut_row)
        if number % 1000 == 0 or number == total:
            progress("looking at streams", number, total)
    changes.trims += [(stream_id, ALL_RUNS) for stream_id in cuts.without_runs]
    # Not twice the same: what was cached of the lost content must not pass for the new.
    restored = f"{manifest_lsn}-{secrets.token_hex(8)}".encode()
    births = int(catalog.record("births") or b"0") + SPARED_BIRTHS
    changes.records += [("births", b"%d" % births), (RESTORED, restored)]
    changes.records += cut_subscriptions(catalog.records(SUBSCRIPTION), cuts.tails)
    catalog.merge(changes)
    return len(cuts.tails.keys() - SYSTEM_KEYS)


class Cuts:
    """Sees every stream once, sources before their forks, and cuts it to what there is of it."""

    def __init__(self) -> None:
        self.tails: dict[bytes, Position] = {}  # of those that were cut, by their path
        self.without_runs: list[StreamId] = []  # forks whose own content hangs in the air
        self._ends: dict[StreamId, Position] = {}  # where the content of those ends that have forks

    def cut(self, row: StreamRow) -> StreamRow | None:
        """The stream as it is now; None: as it was."""
        image = decode_image(row.image)
        inherited = None if image.origin is None else self._ends.get(image.origin[0])
        shows_inherited = image.first.byte < image.own.byte
        if shows_inherited and inherited is not None and inherited.byte < image.own.byte:
            end = _later(image.first, inherited)
            image.own = image.cold = end
            self._ends[row.stream_id] = inherited
            self.without_runs.append(row.stream_id)
        else:
            end = _later(image.first, image.cold)
            self._ends[row.stream_id] = image.cold
            image.cold = end
        if not image.forks:
            del self._ends[row.stream_id]
        if image.tail == end:
            return None
        _cut_image(image, end)
        self.tails[row.path] = end
        return msgspec.structs.replace(row, image=encode_image(image))


def _later(one: Position, other: Position) -> Position:
    return one if one.byte > other.byte else other


def _cut_image(image: StreamImage, end: Position) -> None:
    """Acknowledgements of what is lost must not make a retry look like a duplicate."""
    image.tail = end
    image.closed = False
    if image.producers is not None:
        kept = {key: each for key, each in image.producers.items() if each[3] <= end.byte}
        image.producers = kept or None


def cut_subscriptions(
    records: Iterable[tuple[str, bytes]], tails: dict[bytes, Position]
) -> list[tuple[str, bytes | None]]:
    """What was acknowledged and is lost will come again with other content, and has to be told."""
    found: list[tuple[str, bytes | None]] = []
    for key, value in records:
        image = msgspec.msgpack.decode(value, type=SubscriptionImage)
        links = [
            (path, *min((ordinal, byte), tails.get(path, (ordinal, byte))), *kinds)
            for path, ordinal, byte, *kinds in image.links
        ]
        if links != image.links:
            image.links = links  # type: ignore[assignment]
            found.append((key, msgspec.msgpack.encode(image)))
    return found
