from __future__ import annotations

import msgspec

from millstream.formats.changes import StreamRow
from millstream.formats.images import StreamImage, SubscriptionImage
from millstream.formats.layout import StreamId
from millstream.offline.restore import Cuts, cut_subscriptions
from millstream.protocol.offsets import Position
from millstream.state.images import decode_image, encode_image

Pair = tuple[int, int]  # ordinal and byte, as these tests spell positions


def stream(
    number: int,
    *,
    first: Pair = (0, 0),
    own: Pair = (0, 0),
    cold: Pair,
    tail: Pair,
    source: int | None = None,
    forks: int = 0,
    closed: bool = False,
    producers: dict[bytes, tuple[int, int, int, int]] | None = None,
) -> StreamRow:
    stream_id, path = StreamId(number), b"a/%d" % number
    origin = None if source is None else (StreamId(source), b"a/%d" % source, *own, 0)
    places = map(Position._make, (first, own, cold, tail))
    image = StreamImage(
        *(stream_id, path, b"text/plain", 0, 0, None, None, True, 0, closed, False),
        *(forks, origin, producers, None, None),
        *(next(places), next(places), next(places), next(places)),
    )
    return StreamRow(stream_id, path, None, True, 0, encode_image(image))


def places(row: StreamRow | None) -> tuple[Pair, Pair, Pair, Pair]:
    assert row is not None
    image = decode_image(row.image)
    return image.first, image.own, image.cold, image.tail


def test_a_stream_whose_content_is_all_there_stays_as_it_is() -> None:
    cuts = Cuts()
    assert cuts.cut(stream(1, cold=(5, 50), tail=(5, 50), closed=True)) is None
    assert cuts.tails == {}


def test_a_stream_ends_where_its_content_in_the_cold_store_ends() -> None:
    cuts = Cuts()
    producers = {b"before": (0, 1, 5, 50), b"behind": (0, 7, 8, 80)}
    row = cuts.cut(stream(1, cold=(5, 50), tail=(8, 80), closed=True, producers=producers))
    assert places(row) == ((0, 0), (0, 0), (5, 50), (5, 50))
    assert row is not None
    image = decode_image(row.image)
    assert not image.closed
    assert image.producers == {b"before": (0, 1, 5, 50)}
    assert cuts.tails == {b"a/1": (5, 50)}


def test_a_fork_of_what_is_there_keeps_its_own() -> None:
    cuts = Cuts()
    cuts.cut(stream(1, cold=(5, 50), tail=(8, 80), forks=1))
    assert cuts.cut(stream(2, own=(5, 50), cold=(9, 90), tail=(9, 90), source=1)) is None
    assert cuts.without_runs == []


def test_a_fork_of_what_is_lost_ends_where_its_source_ends_and_so_do_its_forks() -> None:
    cuts = Cuts()
    cuts.cut(stream(1, cold=(5, 50), tail=(8, 80), forks=1))
    fork = stream(2, own=(7, 70), cold=(9, 90), tail=(9, 90), source=1, forks=1)
    assert places(cuts.cut(fork)) == ((0, 0), (5, 50), (5, 50), (5, 50))
    deeper = stream(3, own=(8, 80), cold=(8, 80), tail=(8, 80), source=2)
    assert places(cuts.cut(deeper)) == ((0, 0), (5, 50), (5, 50), (5, 50))
    assert cuts.without_runs == [2, 3]


def test_a_fork_that_shows_nothing_of_its_source_needs_nothing_of_it() -> None:
    cuts = Cuts()
    cuts.cut(stream(1, cold=(5, 50), tail=(8, 80), forks=1))
    row = stream(2, first=(8, 80), own=(7, 70), cold=(9, 90), tail=(9, 90), source=1)
    assert cuts.cut(row) is None


def test_what_a_snapshot_stands_for_is_not_shown_again() -> None:
    """Kept for its forks, what it trimmed reaches into what was never flushed."""
    cuts = Cuts()
    source = stream(1, first=(7, 70), cold=(5, 50), tail=(8, 80), forks=1)
    assert places(cuts.cut(source)) == ((7, 70), (0, 0), (7, 70), (7, 70))
    fork = stream(2, own=(6, 60), cold=(6, 60), tail=(6, 60), source=1)
    assert places(cuts.cut(fork)) == ((0, 0), (5, 50), (5, 50), (5, 50))


def test_acknowledgements_of_lost_messages_are_taken_back() -> None:
    image = SubscriptionImage(
        *("s", "http://x", 0, 1000, None, (), None, b"a/w", None),
        [(b"a/1", 8, 80, True, False), (b"a/2", 3, 30, True, False)],
        *([], 1, None, False, None, None, 0, 0),
    )
    records = [("subscription/s", msgspec.msgpack.encode(image))]
    [(key, value)] = cut_subscriptions(records, {b"a/1": Position(5, 50), b"a/2": Position(4, 40)})
    assert key == "subscription/s"
    assert value is not None
    cut = msgspec.msgpack.decode(value, type=SubscriptionImage)
    assert cut.links == [(b"a/1", 5, 50, True, False), (b"a/2", 3, 30, True, False)]
    assert cut_subscriptions(records, {}) == []
