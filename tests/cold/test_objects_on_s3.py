"""The object store on a real S3 server, near and through a proxy that misbehaves."""

from __future__ import annotations

import hashlib
import os
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from millstream.tier.blobs import ObjectBlobs
from millstream.tier.objects import (
    ObjectMissing,
    ObjectStore,
    ObjectTooShort,
    StoreRefused,
    StoreUnavailable,
)
from tests.support.faulty_store import PASS, Fault, FaultyStore
from tests.support.seaweed import SeaweedFS

SECONDS = 0.8  # deadline of stores that are meant to miss it
SLACK = 0.4  # what a busy machine may add to it


@pytest.fixture
def store(seaweed: SeaweedFS, prefix: str) -> ObjectStore:
    return ObjectStore(seaweed.settings(prefix))


@pytest.fixture
def far_store(seaweed: SeaweedFS, prefix: str, proxy: FaultyStore) -> ObjectStore:
    """Through the proxy, patient enough for any number of retries."""
    return ObjectStore(seaweed.settings(prefix, port=proxy.port))


@pytest.fixture
def hasty_store(seaweed: SeaweedFS, prefix: str, proxy: FaultyStore) -> ObjectStore:
    return ObjectStore(seaweed.settings(prefix, port=proxy.port, timeout_seconds=SECONDS))


# Operations


def test_what_was_put_is_there_whole_and_in_ranges(store: ObjectStore) -> None:
    data = os.urandom(3 << 20)
    store.put("segments/0001/a.parquet", data)
    assert store.get("segments/0001/a.parquet") == data
    assert store.size("segments/0001/a.parquet") == len(data)
    assert (
        store.get_range("segments/0001/a.parquet", 1_000_000, 12_345) == data[1_000_000:1_012_345]
    )
    assert store.get_range("segments/0001/a.parquet", len(data) - 1, 1) == data[-1:]
    assert store.requests == {"put": 1, "get": 3, "head": 2, "delete": 0, "list": 0}
    assert store.bytes_in == len(data) + 12_345 + 1
    assert store.bytes_out == len(data)


def test_a_large_object_is_put_in_one_request(far_store: ObjectStore, proxy: FaultyStore) -> None:
    data = os.urandom(24 << 20)
    far_store.put("large", data)
    assert proxy.requests == {"PUT": 1, "HEAD": 1}
    assert hashlib.sha256(far_store.get("large")).digest() == hashlib.sha256(data).digest()


def test_put_replaces_and_put_if_absent_does_not(store: ObjectStore) -> None:
    store.put("a", b"first")
    store.put("a", b"second")
    assert store.put_if_absent("a", b"third") is False
    assert store.get("a") == b"second"
    assert store.put_if_absent("b", b"third") is True
    assert store.get("b") == b"third"


def test_of_many_who_want_to_be_first_one_is(store: ObjectStore) -> None:
    contents = [b"writer %d" % number for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        wins = list(pool.map(lambda data: store.put_if_absent("one", data), contents))
    assert sum(wins) == 1
    assert store.get("one") == contents[wins.index(True)]


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    store.put("empty", b"")
    assert (store.get("empty"), store.size("empty")) == (b"", 0)
    assert [info.name for info in store.list("")] == ["empty"]


def test_a_missing_object_is_told_by_name(store: ObjectStore) -> None:
    for read in (store.get, lambda name: store.get_range(name, 0, 5)):
        with pytest.raises(ObjectMissing, match="object no/such in s3://cold/"):
            read("no/such")
    assert store.size("no/such") is None
    assert store.requests["get"] == 2


@pytest.mark.parametrize(("start", "length"), [(5, 6), (10, 1), (100, 5), (0, 11)])
def test_a_range_beyond_the_end_is_an_error_at_once(
    store: ObjectStore, start: int, length: int
) -> None:
    store.put("ten", b"0123456789")
    with pytest.raises(ObjectTooShort, match=f"bytes {start} to {start + length}, found 10 bytes"):
        store.get_range("ten", start, length)
    assert store.requests["get"] == 1


def test_deleting_is_fine_with_what_is_gone_already(store: ObjectStore) -> None:
    for name in ("a", "b/c", "d"):
        store.put(name, b"x")
    store.delete(["a", "never/was", "b/c"])
    store.delete(["a"])
    store.delete([])
    assert [info.name for info in store.list("")] == ["d"]


def test_a_listing_of_more_than_a_page_is_complete(store: ObjectStore) -> None:
    names = {f"many/{number % 7}/{number:05d}" for number in range(2100)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.put_if_absent(name, name.encode()), names))
    store.put("many-others/x", b"")
    before_ms = time.time() * 1000
    found = list(store.list("many/"))
    assert len(found) == len(names)
    assert {info.name for info in found} == names
    assert all(info.size == len(info.name) for info in found)
    assert all(abs(info.modified_ms - before_ms) < 120_000 for info in found)
    assert {info.name for info in store.list("many/3")} == {n for n in names if "/3/" in n}
    store.delete(names)
    assert [info.name for info in store.list("")] == ["many-others/x"]
    assert store.requests["delete"] == 3


ODD_NAMES = [
    *("a b", "a+b", "é/ü", "100%", "%41", "a?b", "a#b", "a&b=c", "~x", "a*b", "a:b", "'q\""),
    *("[x]", "a|b", "日本", "a<b>", "{c}", "`", "^", "$1", "a,b;c", "x" * 255, "(1)@!"),
]


def test_names_with_odd_characters_come_back_as_they_are(store: ObjectStore) -> None:
    for name in ODD_NAMES:
        store.put("odd/" + name, name.encode())
    assert sorted(info.name for info in store.list("odd")) == sorted("odd/" + n for n in ODD_NAMES)
    for name in ODD_NAMES:
        assert store.get("odd/" + name) == name.encode()
    store.delete("odd/" + name for name in ODD_NAMES)
    assert list(store.list("odd")) == []


def test_two_prefixes_of_one_bucket_do_not_meet(seaweed: SeaweedFS, prefix: str) -> None:
    one, other = (ObjectStore(seaweed.settings(prefix + end)) for end in ("", "-other"))
    one.put("a", b"1")
    other.put("a", b"2")
    assert (one.get("a"), other.get("a")) == (b"1", b"2")
    assert [info.name for info in one.list("")] == ["a"]


def test_a_store_travels_to_another_process(store: ObjectStore) -> None:
    store.put("a", b"1")
    assert pickle.loads(pickle.dumps(store)).get("a") == b"1"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_gets_an_error_and_does_not_hang(store: ObjectStore) -> None:
    store.put("a", b"1")
    child = os.fork()
    if child == 0:
        try:
            ObjectStore(store.settings).get("a")
        except RuntimeError as error:
            os._exit(42 if "forked" in str(error) else 1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


def test_threads_share_a_store(store: ObjectStore) -> None:
    def work(number: int) -> bool:
        data = os.urandom(50_000)
        store.put(f"t/{number}", data)
        return store.get(f"t/{number}") == data

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))
    assert store.requests["put"] == 64
    assert store.bytes_out == 64 * 50_000


def test_blobs_live_below_their_prefix(store: ObjectStore) -> None:
    blobs = ObjectBlobs(store)
    blobs.store("1-2-ab", b"snapshot")
    store.put("segments/x", b"")
    assert blobs.names() == ["1-2-ab"]
    assert blobs.load("1-2-ab") == b"snapshot"
    assert blobs.load("other") is None
    blobs.delete("1-2-ab")
    blobs.delete("1-2-ab")
    assert blobs.names() == []


# What has to be changed


def test_a_wrong_secret_names_the_settings_and_is_not_retried(
    seaweed: SeaweedFS, prefix: str
) -> None:
    settings = seaweed.settings(prefix)._replace(secret_access_key="not-the-secret")
    operations: list[Callable[[ObjectStore], object]] = [
        lambda store: store.put("a", b""),
        lambda store: store.put_if_absent("a", b""),
        lambda store: store.get("a"),
        lambda store: store.get_range("a", 0, 1),
        lambda store: store.size("a"),
        lambda store: store.delete(["a"]),
        lambda store: list(store.list("")),
    ]
    for operation in operations:
        store = ObjectStore(settings)
        with pytest.raises(StoreRefused, match="--cold-secret-access-key") as caught:
            operation(store)
        assert sum(store.requests.values()) == 1
        assert "not-the-secret" not in str(caught.value)


def test_an_unknown_key_names_the_settings(seaweed: SeaweedFS) -> None:
    settings = seaweed.settings()._replace(access_key_id="nobody")
    with pytest.raises(StoreRefused, match="--cold-access-key-id"):
        ObjectStore(settings).get("a")


def test_a_missing_bucket_says_so(seaweed: SeaweedFS) -> None:
    store = ObjectStore(seaweed.settings()._replace(url="s3://no-such-bucket/x"))
    operations: list[Callable[[], object]] = [
        lambda: store.get("a"),
        lambda: store.put("a", b""),
        lambda: list(store.list("")),
    ]
    for operation in operations:
        with pytest.raises(StoreRefused, match="no such bucket; create it or change --cold"):
            operation()


def test_a_token_of_another_key_in_the_environment_does_no_harm(
    seaweed: SeaweedFS, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-another-key")
    store = ObjectStore(seaweed.settings(prefix))
    store.put("a", b"1")
    assert store.get("a") == b"1"


# Trouble that passes

PASSING = [
    Fault(status=500, times=2),
    Fault(status=503, times=2),
    Fault(status=503, every=2),
    Fault(cut=True, times=2),
    Fault(lose_answer=True, times=2),
]


@pytest.mark.parametrize("fault", PASSING, ids=str)
def test_every_operation_gets_over_trouble_that_passes(
    far_store: ObjectStore, proxy: FaultyStore, fault: Fault
) -> None:
    operations: list[tuple[Callable[[], object], object]] = [
        (lambda: far_store.put("a/x", b"0123456789"), None),
        (lambda: far_store.put_if_absent("a/y", b"mine"), True),
        (lambda: far_store.put_if_absent("a/x", b"mine"), False),
        (lambda: far_store.get("a/x"), b"0123456789"),
        (lambda: far_store.get_range("a/x", 3, 4), b"3456"),
        (lambda: far_store.size("a/x"), 10),
        (lambda: [info.name for info in far_store.list("a")], ["a/x", "a/y"]),
        (lambda: far_store.delete(["a/x", "a/y"]), None),
    ]
    for operation, expected in operations:
        with proxy.failing(fault):
            assert operation() == expected
            assert proxy.faults >= 1
    assert list(far_store.list("")) == []


def test_a_truncated_answer_is_asked_for_again(far_store: ObjectStore, proxy: FaultyStore) -> None:
    data = os.urandom(2 << 20)
    far_store.put("a", data)
    reads: list[tuple[Callable[[], bytes], bytes]] = [
        (lambda: far_store.get("a"), data),
        (lambda: far_store.get_range("a", 77, 1 << 20), data[77 : 77 + (1 << 20)]),
    ]
    for read, expected in reads:
        with proxy.failing(Fault(truncate=True, methods=("GET",), times=2)):
            assert read() == expected
            assert proxy.faults == 2


def test_a_listing_goes_on_where_it_broke(far_store: ObjectStore, proxy: FaultyStore) -> None:
    names = [f"n/{number:05d}" for number in range(1500)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: far_store.put_if_absent(name, b""), names))
    found = far_store.list("n")
    first = next(found)
    with proxy.failing(Fault(truncate=True, methods=("GET",), times=1)):
        rest = [info.name for info in found]
        assert proxy.faults == 1
    assert sorted([first.name, *rest]) == names


# Trouble that stays


LASTING = [
    Fault(status=500),
    Fault(status=503),
    Fault(cut=True),
    Fault(lose_answer=True),
    Fault(delay_seconds=20.0),
    Fault(truncate=True, methods=("GET",)),
]


@pytest.mark.parametrize("fault", LASTING, ids=str)
def test_trouble_that_stays_is_an_error_within_the_deadline(
    hasty_store: ObjectStore, store: ObjectStore, proxy: FaultyStore, fault: Fault
) -> None:
    store.put("a/x", os.urandom(100_000))
    operations: dict[str, Callable[[], object]] = {
        "get": lambda: hasty_store.get("a/x"),
        "get range": lambda: hasty_store.get_range("a/x", 0, 50_000),
        "list": lambda: list(hasty_store.list("a")),
        "head": lambda: hasty_store.size("a/x"),
        "put": lambda: hasty_store.put("a/z", b"data"),
        "delete": lambda: hasty_store.delete(["a/y"]),
    }
    if fault.methods:
        operations = {name: operations[name] for name in ("get", "get range", "list")}
    for name, operation in operations.items():
        with proxy.failing(fault):
            began = time.monotonic()
            with pytest.raises(
                StoreUnavailable, match=f"cannot {name.split()[0]} .*a.* within 0.8"
            ):
                operation()
            assert time.monotonic() - began < SECONDS + SLACK
            assert proxy.faults >= 2


def test_a_store_that_is_away_is_told_with_the_reason(seaweed: SeaweedFS) -> None:
    settings = seaweed.settings(port=1, timeout_seconds=SECONDS)
    store = ObjectStore(settings)
    with pytest.raises(StoreUnavailable, match="Connection refused"):
        store.get("a")
    assert store.requests["get"] > 3


def test_a_put_whose_deadline_passed_between_put_and_check_is_an_error(
    hasty_store: ObjectStore, proxy: FaultyStore
) -> None:
    with (
        proxy.failing(Fault(status=500, methods=("HEAD",))),
        pytest.raises(StoreUnavailable, match="cannot head"),
    ):
        hasty_store.put("a", b"data")


# The server itself


def test_a_paused_server_is_waited_for(seaweed: SeaweedFS, prefix: str) -> None:
    store = ObjectStore(seaweed.settings(prefix))
    store.put("a", b"1")
    seaweed.pause()
    try:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(store.get, "a")
            time.sleep(0.2)
            assert not answer.done()
            seaweed.resume()
            assert answer.result(timeout=10) == b"1"
    finally:
        seaweed.ensure_running()


def test_a_killed_server_comes_back_with_what_it_acknowledged(
    seaweed: SeaweedFS, prefix: str
) -> None:
    store = ObjectStore(seaweed.settings(prefix))
    hasty = ObjectStore(seaweed.settings(prefix, timeout_seconds=SECONDS))
    contents = {f"k/{number}": os.urandom(10_000) for number in range(20)}
    for name, data in contents.items():
        store.put(name, data)
    seaweed.kill()
    try:
        with pytest.raises(StoreUnavailable):
            hasty.get("k/1")
        seaweed.start()
        assert {name: store.get(name) for name in contents} == contents
    finally:
        seaweed.ensure_running()


def test_the_proxy_changes_nothing_when_told_so(
    far_store: ObjectStore, store: ObjectStore, proxy: FaultyStore
) -> None:
    proxy.fault = PASS
    far_store.put("a b/ü", b"x")
    assert store.get("a b/ü") == far_store.get("a b/ü") == b"x"
    assert proxy.requests == {"PUT": 1, "HEAD": 1, "GET": 1}
