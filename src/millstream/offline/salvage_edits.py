"""What has to be changed about streams because content of theirs is lost."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from millstream.formats.changes import Changes
from millstream.formats.images import StreamImage
from millstream.formats.layout import StreamId
from millstream.formats.runs import Run, Segment
from millstream.offline.restore import ALL_RUNS, SPARED_BIRTHS, Cuts, cut_subscriptions
from millstream.offline.salvage_report import Loss, Report
from millstream.protocol.offsets import Position
from millstream.recover import RESTORED
from millstream.state.images import decode_image, encode_image
from millstream.state.records import BLOB, SUBSCRIPTION
from millstream.tier.catalog import Catalog
from millstream.tier.object_kinds import snapshot_name


class BadRun(NamedTuple):
    segment: Segment
    run: Run
    reason: str


class Edits:
    """What has to be changed about streams because content of theirs is lost."""

    def __init__(self, catalog: Catalog, report: Report) -> None:
        self._catalog = catalog
        self._report = report
        self.cutoffs: dict[StreamId, Position] = {}  # by who wrote: what comes before is not there
        self._rows = {row.stream_id: row for row in catalog.stream_rows()}
        self._images = {key: decode_image(row.image) for key, row in self._rows.items()}
        self._changed: set[StreamId] = set()

    def image(self, stream_id: StreamId) -> StreamImage:
        return self._images[stream_id]

    def begin_behind(self, bad: Iterable[BadRun]) -> None:
        """A stream that shows something of a damaged run begins behind it."""
        reasons: dict[StreamId, str] = {}
        for _, run, reason in bad:
            self.cutoffs[run.stream_id] = max(run.end, self.cutoffs.get(run.stream_id, run.end))
            reasons.setdefault(run.stream_id, reason)
        for image in self._images.values() if self.cutoffs else ():
            writer, first = self._first_left(image)
            if first != image.first:
                self._begin_at(image, first, reasons[writer])

    def _first_left(self, image: StreamImage) -> tuple[StreamId, Position]:
        """Up through the sources: the last cutoff that lies in what the stream shows."""
        node, end = image, image.tail
        while True:
            cutoff = self.cutoffs.get(node.stream_id)
            if cutoff is not None and max(image.first, node.own) < cutoff:
                return node.stream_id, max(image.first, min(cutoff, end))
            if node.origin is None or image.first >= node.own:
                return node.stream_id, image.first
            end = min(end, node.own)
            node = self._images[node.origin[0]]

    def _begin_at(self, image: StreamImage, first: Position, reason: str) -> None:
        if not image.deleted:
            self._report.lost.append(
                Loss(_name(image), image.stream_id, image.first, first, reason)
            )
        image.first = first
        self._changed.add(image.stream_id)
        if image.snapshot is not None and image.snapshot[:2] < first:
            self._forget(image, "what follows it is lost")

    def snapshots(self) -> dict[str, tuple[int, int, str, bytes, int, str]]:
        images = self._images.values()
        return {i.snapshot[2]: i.snapshot for i in images if i.snapshot is not None}

    def forget_snapshot(self, blob: str, reason: str) -> None:
        for image in self._images.values():
            if image.snapshot is not None and image.snapshot[2] == blob:
                self._forget(image, reason)

    def _forget(self, image: StreamImage, reason: str) -> None:
        assert image.snapshot is not None
        ordinal, _, blob, *_ = image.snapshot
        self._report.lost_otherwise.append(
            f"the snapshot of {_name(image)} at message {ordinal} ({snapshot_name(blob)}): {reason}"
        )
        image.snapshot = None
        self._changed.add(image.stream_id)

    def changes(self, lsn: int, *, is_whole: bool) -> Changes:
        """`is_whole`: nothing was lost, so that nothing will be given a second time."""
        changes = Changes(lsn)
        for stream_id in sorted(self._changed):
            image = encode_image(self._images[stream_id])
            changes.streams.append(msgspec.structs.replace(self._rows[stream_id], image=image))
        changes.trims = [(stream_id, cutoff.ordinal) for stream_id, cutoff in self.cutoffs.items()]
        changes.records += self._blob_records()
        if not is_whole:
            births = int(self._catalog.record("births") or b"0") + SPARED_BIRTHS
            # Not twice the same: what was cached of the lost content must not pass for the new.
            salvaged = f"{lsn}-{secrets.token_hex(8)}".encode()
            changes.records += [("births", b"%d" % births), (RESTORED, salvaged)]
        return changes

    def _blob_records(self) -> Iterator[tuple[str, bytes | None]]:
        left: dict[str, int] = {}
        for image in self._images.values():
            if image.snapshot is not None:
                left[image.snapshot[2]] = left.get(image.snapshot[2], 0) + 1
        for key, value in list(self._catalog.records(BLOB)):
            count = left.get(key.removeprefix(BLOB), 0)
            if count != int(value):
                yield key, b"%d" % count if count else None


def cut_to_segments(catalog: Catalog) -> list[Loss]:
    """Every stream ends where its content in segments ends, as after a restore."""
    cuts, losses = Cuts(), list[Loss]()
    changes = Changes(catalog.lsn + 1)
    for row in catalog.stream_rows():
        cut = cuts.cut(row)
        if cut is None:
            continue
        changes.streams.append(cut)
        before, after = decode_image(row.image), decode_image(cut.image)
        if not after.deleted:
            reason = "it was in the checkpoint and the log only"
            losses.append(Loss(_name(after), row.stream_id, after.tail, before.tail, reason))
    changes.trims += [(stream_id, ALL_RUNS) for stream_id in cuts.without_runs]
    changes.records += cut_subscriptions(catalog.records(SUBSCRIPTION), cuts.tails)
    catalog.merge(changes)
    return losses


def _name(image: StreamImage) -> str:
    return image.path.decode(errors="replace")
