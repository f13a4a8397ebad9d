"""The object store on a folder. tests/cold has the same on S3."""

from __future__ import annotations

import errno
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millstream.config import Config, build_config
from millstream.errors import StartupError
from millstream.tier import object_folder
from millstream.tier.objects import (
    ColdSettings,
    ObjectMissing,
    ObjectStore,
    ObjectTooShort,
    StoreUnavailable,
    cold_settings,
)

SECRET = "a-secret-of-nobody"


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(ColdSettings(f"fs:{tmp_path / 'cold'}"))


def names_in(store: ObjectStore, prefix: str = "") -> list[str]:
    return sorted(info.name for info in store.list(prefix))


# Operations


def test_what_was_put_is_there_whole_and_in_ranges(store: ObjectStore) -> None:
    data = os.urandom(300_000)
    store.put("segments/0001/a.parquet", data)
    assert store.get("segments/0001/a.parquet") == data
    assert store.get_range("segments/0001/a.parquet", 1000, 2000) == data[1000:3000]
    assert store.get_range("segments/0001/a.parquet", 299_999, 1) == data[-1:]
    assert store.get_range("segments/0001/a.parquet", 5, 0) == b""
    assert store.size("segments/0001/a.parquet") == 300_000
    assert store.requests == {"put": 1, "get": 3, "head": 1, "delete": 0, "list": 0}
    assert (store.bytes_in, store.bytes_out) == (302_001, 300_000)


def test_put_replaces_and_put_if_absent_does_not(store: ObjectStore) -> None:
    store.put("a", b"first")
    store.put("a", b"second")
    assert store.put_if_absent("a", b"third") is False
    assert store.get("a") == b"second"
    assert store.put_if_absent("b/c", b"third") is True
    assert store.get("b/c") == b"third"


def test_of_many_who_want_to_be_first_one_is(store: ObjectStore) -> None:
    contents = [b"writer %d" % number for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        wins = list(pool.map(lambda data: store.put_if_absent("x/one", data), contents))
    assert sum(wins) == 1
    assert store.get("x/one") == contents[wins.index(True)]


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    store.put("empty", b"")
    assert (store.get("empty"), store.size("empty"), names_in(store)) == (b"", 0, ["empty"])


def test_a_missing_object_is_told_by_name(store: ObjectStore) -> None:
    store.put("a/b", b"")
    for name in ("no/such", "a", "a/b/c"):
        with pytest.raises(ObjectMissing, match=f"no object {name} in "):
            store.get(name)
        with pytest.raises(ObjectMissing):
            store.get_range(name, 0, 1)
    assert store.size("no/such") is None


@pytest.mark.parametrize(("start", "length"), [(5, 6), (10, 1), (100, 5), (0, 11)])
def test_a_range_beyond_the_end_is_an_error(store: ObjectStore, start: int, length: int) -> None:
    store.put("ten", b"0123456789")
    with pytest.raises(ObjectTooShort, match=f"bytes {start} to {start + length}, found 10 bytes"):
        store.get_range("ten", start, length)


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, -1)])
def test_no_range_is_a_value_error(store: ObjectStore, start: int, length: int) -> None:
    with pytest.raises(ValueError, match="no range"):
        store.get_range("a", start, length)


def test_deleting_is_fine_with_what_is_gone_already(store: ObjectStore) -> None:
    store.delete(["before/anything"])
    for name in ("a", "b/c", "d"):
        store.put(name, b"x")
    store.delete(["a", "never/was", "b/c"])
    store.delete(["a"])
    assert names_in(store) == ["d"]


def test_a_listing_tells_size_and_time_below_a_folder_of_names(store: ObjectStore) -> None:
    names = [f"many/{number % 3}/{number}" for number in range(50)]
    for name in (*names, "many-others/x"):
        store.put(name, name.encode())
    assert names_in(store, "many/") == names_in(store, "many") == sorted(names)
    assert names_in(store, "many/1/") == sorted(name for name in names if "/1/" in name)
    assert names_in(store, "nothing/") == []
    for info in store.list(""):
        assert info.size == len(info.name)
        assert abs(info.modified_ms - time.time() * 1000) < 60_000


def test_a_store_before_its_first_put_is_empty_and_leaves_no_trace(store: ObjectStore) -> None:
    assert names_in(store) == []
    assert store.size("a") is None
    assert not Path(store.settings.url.removeprefix("fs:")).exists()


ODD_NAMES = [
    *("a b", "a+b", "é/ü", "100%", "%41", "a?b", "a#b", "a&b=c", "~x", "a*b", "a:b", "'q\""),
    *("[x]", "a|b", "日本", "a<b>", "{c}", "`", "^", "$1", "a,b;c", "x" * 255, "(1)@!"),
]


def test_names_with_odd_characters_come_back_as_they_are(store: ObjectStore) -> None:
    for name in ODD_NAMES:
        store.put("odd/" + name, name.encode())
    assert names_in(store, "odd") == sorted("odd/" + name for name in ODD_NAMES)
    for name in ODD_NAMES:
        assert store.get("odd/" + name) == name.encode()


BAD_NAMES = [
    *("", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/..", "./a", "a/./b", ".new/a"),
    *("a\\b", "a\0b", "a\nb", "a\x7f", "x" * 256, "x/" * 500 + "x", "a/.hidden"),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_some_store_would_refuse_or_change_is_refused(
    store: ObjectStore, name: str
) -> None:
    for operation in (
        lambda: store.put(name, b""),
        lambda: store.put_if_absent(name, b""),
        lambda: store.get(name),
        lambda: store.get_range(name, 0, 0),
        lambda: store.size(name),
        lambda: store.delete([name]),
    ):
        with pytest.raises(ValueError, match="object"):
            operation()
    if name not in ("", "a/"):
        with pytest.raises(ValueError, match="object"):
            store.list(name)
    assert sum(store.requests.values()) == 0


def test_a_store_travels_to_another_process(store: ObjectStore) -> None:
    store.put("a", b"1")
    assert pickle.loads(pickle.dumps(store)).get("a") == b"1"


def test_a_file_url_is_a_folder_too(tmp_path: Path) -> None:
    ObjectStore(ColdSettings(f"file://{tmp_path}/a%20b")).put("x", b"1")
    assert (tmp_path / "a b" / "x").read_bytes() == b"1"


# Durability


class Syscalls:
    """Writes down what happens to files, in order, and still does it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.seen: list[tuple[str, str]] = []
        self._monkeypatch = monkeypatch
        for name in ("mkdir", "replace", "link", "unlink"):
            self._watch(name)
        for name in ("fsync", "write"):
            self._watch_fd(name)

    def _watch(self, name: str) -> None:
        real = getattr(os, name)

        def noted(*paths: str) -> Any:
            result = real(*paths)
            self.seen.append((name, self._short(paths[-1])))
            return result

        self._monkeypatch.setattr(os, name, noted)

    def _watch_fd(self, name: str) -> None:
        real = getattr(os, name)

        def noted(fd: int, *arguments: Any) -> Any:
            result = real(fd, *arguments)
            self.seen.append((name, self._short(os.readlink(f"/proc/self/fd/{fd}"))))
            return result

        self._monkeypatch.setattr(os, name, noted)

    def _short(self, path: str) -> str:
        short = os.path.relpath(path, self.root)
        return "cold/.new/*" if short.startswith("cold/.new/") else short


@pytest.fixture
def syscalls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Syscalls:
    return Syscalls(tmp_path, monkeypatch)


def test_bytes_are_synced_before_the_name_and_the_name_before_the_answer(
    store: ObjectStore, syscalls: Syscalls
) -> None:
    store.put("s/1/a", b"data")
    assert syscalls.seen == [
        ("mkdir", "cold"),
        ("fsync", "."),
        ("mkdir", "cold/.new"),
        ("fsync", "cold"),
        ("write", "cold/.new/*"),
        ("fsync", "cold/.new/*"),
        ("mkdir", "cold/s"),
        ("fsync", "cold"),
        ("mkdir", "cold/s/1"),
        ("fsync", "cold/s"),
        ("replace", "cold/s/1/a"),
        ("fsync", "cold/s/1"),
    ]


def test_a_known_folder_costs_two_syncs(store: ObjectStore, syscalls: Syscalls) -> None:
    store.put("s/a", b"data")
    syscalls.seen.clear()
    store.put("s/b", b"data")
    assert syscalls.seen == [
        ("write", "cold/.new/*"),
        ("fsync", "cold/.new/*"),
        ("replace", "cold/s/b"),
        ("fsync", "cold/s"),
    ]


def test_a_folder_somebody_else_made_is_synced_all_the_same(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("cold/.new", "cold/s"):
        (tmp_path / folder).mkdir(parents=True)
    syscalls = Syscalls(tmp_path, monkeypatch)
    store.put("s/a", b"data")
    assert [call for call in syscalls.seen if call[1] in (".", "cold", "cold/s")] == [
        ("fsync", "."),
        ("fsync", "cold"),
        ("fsync", "cold"),
        ("fsync", "cold/s"),
    ]


def test_what_was_deleted_stays_deleted_after_a_power_cut(
    store: ObjectStore, syscalls: Syscalls
) -> None:
    for name in ("s/a", "s/b", "t/a"):
        store.put(name, b"data")
    syscalls.seen.clear()
    store.delete(["s/a", "s/b", "s/a/x", "never/was", "t/a"])
    assert syscalls.seen[:3] == [("unlink", f"cold/{name}") for name in ("s/a", "s/b", "t/a")]
    assert sorted(syscalls.seen[3:]) == [("fsync", "cold/s"), ("fsync", "cold/t")]


def test_put_if_absent_syncs_the_name_it_found_too(store: ObjectStore, syscalls: Syscalls) -> None:
    assert store.put_if_absent("s/a", b"data")
    syscalls.seen.clear()
    assert not store.put_if_absent("s/a", b"data")
    assert ("fsync", "cold/s") in syscalls.seen


def test_a_failed_write_leaves_nothing_and_says_why(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("s/a", b"old")

    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreUnavailable, match=r"cannot put object s/a .* No space left") as caught:
        store.put("s/a", b"new")
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    assert store.get("s/a") == b"old"
    assert os.listdir(tmp_path / "cold" / ".new") == []


def test_what_a_dead_writer_left_is_not_listed_and_goes_after_a_while(
    store: ObjectStore, tmp_path: Path
) -> None:
    store.put("a", b"1")
    new = tmp_path / "cold" / ".new"
    (new / "old").write_bytes(b"half")
    (new / "young").write_bytes(b"half")
    past = time.time() - object_folder.LEFTOVER_SECONDS - 10
    os.utime(new / "old", (past, past))
    assert names_in(store) == ["a"]
    ObjectStore(store.settings).put("b", b"2")
    assert os.listdir(new) == ["young"]


def test_a_folder_removed_under_a_running_store_is_made_again(
    store: ObjectStore, tmp_path: Path
) -> None:
    store.put("s/a", b"1")
    (tmp_path / "cold" / "s" / "a").unlink()
    (tmp_path / "cold" / "s").rmdir()
    with pytest.raises(StoreUnavailable):
        store.put("s/a", b"2")
    store.put("s/a", b"2")
    assert store.get("s/a") == b"2"


def test_a_root_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = ObjectStore(ColdSettings(f"fs:{tmp_path / 'file' / 'cold'}"))
    with pytest.raises(StoreUnavailable, match="Not a directory"):
        store.put("a", b"")


# Settings


def test_without_a_setting_the_folder_lies_in_the_data_folder(tmp_path: Path) -> None:
    assert cold_settings(Config(data_dir=tmp_path)).url == f"fs:{tmp_path}/cold"


def test_a_relative_folder_means_the_same_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cold_settings(Config()).url == f"fs:{tmp_path}/data/cold"
    assert cold_settings(Config(cold="fs:some/where")).url == f"fs:{tmp_path}/some/where"


def test_keys_never_show(tmp_path: Path) -> None:
    flags = {
        "cold": "s3://bucket/prefix",
        "cold_access_key_id": SECRET + "1",
        "cold_secret_access_key": SECRET + "2",
        "cold_session_token": SECRET + "3",
    }
    config = build_config(flags, {})
    settings = cold_settings(config)
    assert (settings.secret_access_key, settings.session_token) == (SECRET + "2", SECRET + "3")
    for thing in (config, settings):
        assert SECRET not in f"{thing} {thing!r}"


@pytest.mark.parametrize(
    "settings",
    [
        ColdSettings("https://example.org/x"),
        ColdSettings("memory:///"),
        ColdSettings("nothing://x"),
        ColdSettings("s3://b c/"),
        ColdSettings("s3://bucket", endpoint="http://127.0.0.1:99999"),
        ColdSettings("s3://bucket", endpoint="http://999.1.1.1"),
        ColdSettings("s3://bucket", region="no region"),
    ],
    ids=str,
)
def test_a_place_that_cannot_be_used_stops_the_start(settings: ColdSettings) -> None:
    with pytest.raises(StartupError, match="cannot use --cold"):
        ObjectStore(settings)


@pytest.mark.parametrize("url", ["s3://bucket/prefix", "s3a://bucket", "gs://bucket/prefix"])
def test_making_a_store_reaches_for_nothing(url: str) -> None:
    store = ObjectStore(ColdSettings(url, access_key_id="k", secret_access_key="s"))
    assert sum(store.requests.values()) == 0
