"""The grammar and the memory of idempotent producers."""

from __future__ import annotations

import pytest

from tests.conformance.api import TEXT, Api, Call, producer

LARGEST = 2**53 - 1


@pytest.mark.parametrize(
    "value",
    ["-1", "+1", "1.0", "1e3", "0x1", "1_0", "", "1 0", "one", str(2**53), "9" * 40, "١"],
)
@pytest.mark.parametrize("header", ["Producer-Epoch", "Producer-Seq"])
def test_numbers_that_are_not_plain_digits_up_to_2_53_are_refused(
    memory_api: Api, header: str, value: str
) -> None:
    path = memory_api.stream()
    # http.client speaks Latin-1, so other letters have to travel as their UTF-8 bytes.
    sent = {**producer("p", 0, 0), header: value.encode().decode("latin-1")}
    assert memory_api.append(path, b"x", headers=sent).status == 400
    assert memory_api.append(path, b"x", headers=producer("p", 0, 0)).status == 200


def test_the_largest_epoch_is_accepted(memory_api: Api) -> None:
    path = memory_api.stream()
    first = memory_api.append(path, b"x", headers=producer("p", LARGEST, 0))
    assert (first.status, first.headers["producer-epoch"]) == (200, str(LARGEST))
    gap = memory_api.append(path, b"x", headers=producer("p", LARGEST, LARGEST))
    assert (gap.status, gap.headers["producer-received-seq"]) == (409, str(LARGEST))


@pytest.mark.parametrize("missing", ["Producer-Id", "Producer-Epoch", "Producer-Seq"])
def test_two_of_three_headers_are_refused(memory_api: Api, missing: str) -> None:
    path = memory_api.stream()
    sent = producer("p", 0, 0)
    del sent[missing]
    assert memory_api.append(path, b"x", headers=sent).status == 400
    assert memory_api.post(path, headers={**sent, "Stream-Closed": "true"}).status == 400
    assert memory_api.get(path).body == b""


@pytest.mark.parametrize("name", ["", " ", "\t"])
def test_an_empty_producer_id_is_refused(memory_api: Api, name: str) -> None:
    path = memory_api.stream()
    assert memory_api.append(path, b"x", headers=producer(name, 0, 0)).status == 400


def test_an_unknown_producer_must_start_at_zero(memory_api: Api) -> None:
    path = memory_api.stream()
    gap = memory_api.append(path, b"x", headers=producer("p", 0, 3))
    assert (gap.status, gap.headers["producer-expected-seq"]) == (409, "0")
    assert gap.headers["producer-received-seq"] == "3"


def test_an_answer_names_the_highest_accepted_sequence(api: Api) -> None:
    path = api.stream()
    for seq in range(3):
        assert api.append(path, b"x", headers=producer("p", 7, seq)).status == 200
    again = api.append(path, b"x", headers=producer("p", 7, 0))
    assert (again.status, again.headers["producer-epoch"]) == (204, "7")
    assert again.headers["producer-seq"] == "2"
    assert api.get(path).body == b"xxx"


def test_copies_of_one_append_sent_together_are_stored_once(api: Api) -> None:
    path = api.stream()
    call = Call("POST", path, b"once", {"Content-Type": TEXT, **producer("p", 0, 0)})
    statuses = sorted(reply.status for reply in api.together([call] * 8))
    assert statuses == [200] + [204] * 7
    assert api.get(path).body == b"once"


def test_a_new_epoch_fences_the_old_one(api: Api) -> None:
    path = api.stream()
    assert api.append(path, b"old", headers=producer("p", 0, 0)).status == 200
    assert api.append(path, b"new", headers=producer("p", 1, 0)).status == 200
    zombie = api.append(path, b"zombie", headers=producer("p", 0, 1))
    assert (zombie.status, zombie.headers["producer-epoch"]) == (403, "1")
    assert api.get(path).body == b"oldnew"


def test_a_close_by_a_producer_can_be_repeated_by_it_alone(api: Api) -> None:
    path = api.stream()
    closing = {**producer("p", 0, 0), "Stream-Closed": "true"}
    first = api.append(path, b"end", headers=closing)
    assert (first.status, first.headers["stream-closed"]) == (200, "true")
    again = api.append(path, b"end", headers=closing)
    assert (again.status, again.headers["stream-closed"]) == (204, "true")
    assert again.next_offset == first.next_offset
    other = api.append(path, b"end", headers={**producer("q", 0, 0), "Stream-Closed": "true"})
    assert (other.status, other.headers["stream-closed"]) == (409, "true")
    assert api.get(path).body == b"end"


def test_producers_do_not_know_each_other(api: Api) -> None:
    path, other = api.stream(), api.stream()
    for stream in (path, other):
        for name in ("p", "P", "q"):
            assert api.append(stream, name, headers=producer(name, 0, 0)).status == 200
    assert api.get(path).body == api.get(other).body == b"pPq"
