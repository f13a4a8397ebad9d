"""The checks themselves are checked: what the rounds would accept and what they must not."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from tests.crash.content import Kind, Loose, Mismatch, Placed, lay_out, make_payload
from tests.crash.history import Fate, History, Incarnation, Request
from tests.crash.plan import plan_generations, plan_operations
from tests.crash.rounds import RoundFailed, run_round
from tests.crash.verify import Verifier
from tests.crash.wal_files import load_wal, parse_records, segment_names
from tests.support.http import Client


def test_a_complete_stream_is_laid_out_in_order() -> None:
    layout = lay_out(
        b"..aaabbcc", 2, [Placed(2, b"aaa", "a"), Placed(7, b"cc", "c")], [Loose(b"bb", "b")]
    )
    assert layout.starts == {"a": 2, "b": 5, "c": 7}
    assert layout.ends == [5, 7, 9]


def test_an_unanswered_request_may_be_missing() -> None:
    assert lay_out(b"aaa", 0, [Placed(0, b"aaa", "a")], [Loose(b"bb", "b")]).ends == [3]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"aaa", "lost"),
        (b"aaacb", "altered"),
        (b"aaaccaaa", "nobody"),  # an acknowledged one twice
        (b"aaaccbbbb", "nobody"),  # an unanswered one twice
        (b"aaaccb", "nobody"),  # a part of one
        (b"aaacc\0\0", "nobody"),
        (b"ccaaa", "altered"),  # another order
        (b"bbaaacc", "altered"),  # pushed to another place
    ],
)
def test_anything_lost_doubled_torn_or_moved_is_noticed(content: bytes, why: str) -> None:
    with pytest.raises(Mismatch, match=why):
        lay_out(content, 0, [Placed(0, b"aaa", "a"), Placed(3, b"cc", "c")], [Loose(b"bb", "b")])


def test_a_retried_request_must_be_there_once() -> None:
    retried = [Loose(b"bb", "b", required=True)]
    assert lay_out(b"bbaa", 0, [Placed(2, b"aa", "a")], retried).starts["b"] == 0
    with pytest.raises(Mismatch, match="lost: b"):
        lay_out(b"aa", 0, [Placed(0, b"aa", "a")], retried)
    with pytest.raises(Mismatch, match="nobody"):
        lay_out(b"bbaabb", 0, [Placed(2, b"aa", "a")], retried)


def test_json_streams_are_laid_out_by_message() -> None:
    content = (b"1", b'"x"', b"[2]")
    layout = lay_out(content, 0, [Placed(1, (b'"x"', b"[2]"), "b")], [Loose((b"1",), "a")])
    assert layout.starts == {"a": 0, "b": 1}


def test_payloads_of_requests_in_flight_together_differ() -> None:
    for kind in Kind:
        for size in (1, 5, 40, 5000):
            made = [make_payload(kind, f"w{i}.g1.n7", size, 2, i * 24) for i in range(4)]
            assert len(set(made)) == 4


@pytest.mark.parametrize(
    ("closer", "is_right"),
    [
        (None, False),
        (Request("c", "POST", "s", Kind.TEXT, b"", closes=True, sent=3), True),
        (Request("c", "POST", "s", Kind.TEXT, b"", closes=True, sent=9), False),
        (Request("c", "POST", "s", Kind.TEXT, b"x", sent=3), False),
        (Request("c", "POST", "t", Kind.TEXT, b"", closes=True, sent=3), False),
    ],
    ids=["nobody", "unanswered", "asked too late", "closes nothing", "another stream"],
)
def test_closed_is_an_answer_only_if_somebody_asked_for_it(
    closer: Request | None, is_right: bool
) -> None:
    history, client = History(), Client("127.0.0.1", 1)
    made = Request("m", "PUT", "s", Kind.TEXT, b"", sent=1, answered=2, fate=Fate.ACKNOWLEDGED)
    refused = Request("r", "POST", "s", Kind.TEXT, b"x", sent=4, answered=5, status=409)
    refused.fate = Fate.REFUSED
    history.streams["s"] = [Incarnation("s", Kind.TEXT, made)]
    history.pending = [refused] if closer is None else [closer, refused]
    expected = contextlib.nullcontext() if is_right else pytest.raises(AssertionError)
    with expected:
        Verifier(history, client, random.Random(1), "v").check_refusals()


def test_a_seed_means_the_same_plan_every_time() -> None:
    def draw() -> list[object]:
        operations = plan_operations(7, 2, 1)
        return [*plan_generations(7, 5), *(next(operations) for _ in range(200))]

    assert draw() == draw()


def test_a_server_that_lost_its_last_acknowledged_records_fails_the_round(tmp_path: Path) -> None:
    """The log is cut after the kill, as if the server had answered before it was durable."""

    def cut_log(data_dir: Path) -> None:
        files = load_wal(data_dir / "wal")
        name = segment_names(files)[-1]
        records = parse_records(files[name])
        keep = records[len(records) // 2].position if records else 0
        (data_dir / "wal" / name).write_bytes(files[name][:keep])

    with pytest.raises(RoundFailed, match=r"seed 11.*(lost|refused|not there|came back|changed)"):
        run_round(11, tmp_path, 3, tamper=cut_log)
