from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator

import pytest

import millstream
from millstream import errors
from millstream.api.errors import STATUS, error_headers, respond_error
from millstream.errors import StreamError
from tests.unit.api.fake_request import FakeRequest


def every_error(base: type[StreamError] = StreamError) -> Iterator[type[StreamError]]:
    for found in base.__subclasses__():
        yield found
        yield from every_error(found)


for module in pkgutil.walk_packages(millstream.__path__, "millstream."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)  # an error may be at home in any room
EVERY_ERROR = sorted(set(every_error()), key=lambda error: error.__name__)


def answer_to(error: StreamError, extra_headers: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    request = FakeRequest()
    respond_error(request.request, error, extra_headers)
    return request.answer


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: error.__name__)
def test_every_error_has_a_status_and_a_code_of_its_own(error: type[StreamError]) -> None:
    assert 400 <= STATUS[error] < 600
    assert "code" in vars(error)
    assert [other for other in EVERY_ERROR if other.code == error.code] == [error]


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: error.__name__)
def test_only_what_changed_nothing_blames_the_client(error: type[StreamError]) -> None:
    if STATUS[error] in (408, 429):  # the server took too long, or has too much to do
        assert error.retriable
    elif STATUS[error] < 500:
        assert error.changed_nothing
        assert not error.retriable


def test_the_table_names_no_error_twice_and_none_that_is_gone() -> None:
    assert set(STATUS) == set(EVERY_ERROR)


@pytest.mark.parametrize(
    ("status", "codes"),
    [
        (400, "invalid_request invalid_offset invalid_json empty_body producer_epoch_start"),
        (403, "producer_fenced"),
        (404, "stream_not_found not_found"),
        (405, "method_not_allowed"),
        (409, "stream_exists stream_closed content_type_mismatch sequence_regression"),
        (409, "producer_gap fork_source_unavailable"),
        (408, "append_timeout request_timeout"),
        (410, "stream_gone"),
        (413, "body_too_large"),
        (429, "queue_full"),
        (500, "append_outcome_unknown"),
        (503, "overloaded storage_full shutting_down"),
    ],
)
def test_the_statuses_are_the_protocols(status: int, codes: str) -> None:
    by_code = {error.code: found for error, found in STATUS.items()}
    assert {by_code[code] for code in codes.split()} == {status}


def test_an_errors_body_has_its_code_and_message() -> None:
    status, headers, body = answer_to(errors.StreamNotFound('no "stream"\nhere'))
    assert status == 404
    assert json.loads(body) == {
        "error": {"code": "stream_not_found", "message": 'no "stream"\nhere'}
    }
    assert headers == {"content-type": "application/json", "cache-control": "no-store"}


def test_extra_headers_are_sent_too() -> None:
    _, headers, _ = answer_to(errors.StreamNotFound("no"), b"stream-closed: true\r\n")
    assert headers["stream-closed"] == "true"


def test_a_closed_stream_tells_its_final_offset() -> None:
    status, headers, _ = answer_to(errors.StreamClosed("closed", "0001_0002"))
    assert status == 409
    assert (headers["stream-closed"], headers["stream-next-offset"]) == ("true", "0001_0002")


def test_a_fenced_producer_is_told_the_current_epoch() -> None:
    status, headers, _ = answer_to(errors.ProducerFenced("stale", 7))
    assert (status, headers["producer-epoch"]) == (403, "7")


def test_a_gap_is_told_with_what_was_expected_and_received() -> None:
    status, headers, _ = answer_to(errors.ProducerGap("gap", 3, 9))
    assert status == 409
    assert headers["producer-expected-seq"] == "3"
    assert headers["producer-received-seq"] == "9"


def test_a_wrong_method_is_told_the_right_ones() -> None:
    status, headers, _ = answer_to(errors.MethodNotAllowed("no", "GET, HEAD"))
    assert (status, headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("error", [errors.Overloaded, errors.StorageFull, errors.ShuttingDown])
def test_whoever_may_come_back_is_told_when(error: type[StreamError]) -> None:
    assert error.retriable
    assert error_headers(error("later")) == b"retry-after: 1\r\n"


def test_an_unknown_outcome_promises_nothing() -> None:
    assert errors.AppendOutcomeUnknown.retriable
    assert not errors.AppendOutcomeUnknown.changed_nothing
    assert STATUS[errors.AppendOutcomeUnknown] == 500


def test_damage_names_file_place_expected_and_found() -> None:
    damage = errors.DamagedData("/data/wal/1.wal", 64, "record 1", "junk")
    for fact in ("/data/wal/1.wal", "64", "record 1", "junk"):
        assert fact in str(damage)
    assert (damage.file, damage.position) == ("/data/wal/1.wal", 64)
