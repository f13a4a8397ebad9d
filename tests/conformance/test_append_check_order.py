"""When a request is wrong in two ways, the documented first one is answered, and nothing moves.

The order: syntax 400, missing 404 or soft-deleted 410, producer (403, 400, 204, 409), closed 409,
content type 409, Stream-Seq 409, JSON 400.
"""

from __future__ import annotations

from tests.conformance.api import JSON, TEXT, Api, error_code, fresh_path, producer

WRONG_TYPE = "application/x-other"


def stream_with_history(api: Api) -> str:
    """An open text stream: producer p is at epoch 5 seq 1, Stream-Seq is at `m`."""
    path = api.stream()
    for seq, stream_seq in ((0, "a"), (1, "m")):
        headers = {**producer("p", 5, seq), "Stream-Seq": stream_seq}
        assert api.append(path, f"<{seq}>", headers=headers).status == 200
    return path


def soft_deleted(api: Api) -> str:
    path = stream_with_history(api)
    _, forked = api.fork(path)
    assert forked.status == 201
    assert api.delete(path).status == 204
    return path


def test_malformed_requests_are_refused_before_the_stream_is_looked_up(memory_api: Api) -> None:
    nowhere, gone = fresh_path(), soft_deleted(memory_api)
    for path in (nowhere, gone):
        assert memory_api.append(path, b"x", headers=producer("p", "x", 0)).status == 400
        assert memory_api.append(path, b"x", headers={"Producer-Id": "p"}).status == 400
        assert memory_api.append(path, b"x", content_type=None).status == 400
        assert memory_api.post(path, content_type=TEXT).status == 400


def test_malformed_requests_are_refused_before_producer_and_closure(memory_api: Api) -> None:
    path = stream_with_history(memory_api)
    memory_api.close_stream(path)
    stale = producer("p", 0, 0)
    assert memory_api.append(path, b"x", content_type=None, headers=stale).status == 400
    assert memory_api.post(path, content_type=TEXT, headers=stale).status == 400
    assert memory_api.append(path, b"x", headers=producer("", 0, 0)).status == 400


def test_a_soft_deleted_stream_is_gone_before_its_producers_are_asked(api: Api) -> None:
    path = soft_deleted(api)
    for headers in (producer("p", 0, 0), producer("p", 5, 1), producer("p", 5, 9)):
        assert api.append(path, b"x", headers=headers).status == 410


def test_producer_verdicts_come_before_closed(api: Api) -> None:
    path = stream_with_history(api)
    final = api.close_stream(path).next_offset
    stale = api.append(path, b"x", headers=producer("p", 4, 0))
    assert (stale.status, stale.headers["producer-epoch"]) == (403, "5")
    assert api.append(path, b"x", headers=producer("p", 6, 1)).status == 400
    gap = api.append(path, b"x", headers=producer("p", 5, 9))
    assert (gap.status, gap.headers["producer-expected-seq"]) == (409, "2")
    duplicate = api.append(path, b"x", headers=producer("p", 5, 1))
    assert (duplicate.status, duplicate.headers["stream-closed"]) == (204, "true")
    following = api.append(path, b"x", headers=producer("p", 5, 2))
    assert (following.status, following.headers["stream-closed"]) == (409, "true")
    assert following.next_offset == final
    assert "producer-expected-seq" not in following.headers


def test_producer_verdicts_come_before_content_type_and_stream_seq(api: Api) -> None:
    path = stream_with_history(api)
    old_seq = {"Stream-Seq": "a"}
    stale = api.append(path, b"x", WRONG_TYPE, {**producer("p", 4, 0), **old_seq})
    assert (stale.status, stale.headers["producer-epoch"]) == (403, "5")
    assert api.append(path, b"x", WRONG_TYPE, {**producer("p", 6, 1), **old_seq}).status == 400
    assert api.append(path, b"x", WRONG_TYPE, {**producer("p", 5, 1), **old_seq}).status == 204
    gap = api.append(path, b"x", WRONG_TYPE, {**producer("p", 5, 9), **old_seq})
    assert (gap.status, gap.headers["producer-received-seq"]) == (409, "9")
    assert api.get(path).body == b"<0><1>"


def test_closed_comes_before_content_type_and_stream_seq(api: Api) -> None:
    path = stream_with_history(api)
    final = api.close_stream(path).next_offset
    refused = api.append(path, b"x", WRONG_TYPE, {"Stream-Seq": "a"})
    assert (refused.status, refused.headers["stream-closed"]) == (409, "true")
    assert refused.next_offset == final


def test_content_type_comes_before_stream_seq(memory_api: Api) -> None:
    path = stream_with_history(memory_api)
    wrong_type = memory_api.append(path, b"x", WRONG_TYPE)
    old_seq = memory_api.append(path, b"x", headers={"Stream-Seq": "a"})
    both = memory_api.append(path, b"x", WRONG_TYPE, {"Stream-Seq": "a"})
    assert [wrong_type.status, old_seq.status, both.status] == [409, 409, 409]
    assert error_code(both) == error_code(wrong_type) != error_code(old_seq)
    assert "stream-closed" not in both.headers


def test_json_is_judged_last(api: Api) -> None:
    path, broken = api.stream(content_type=JSON), b"{broken"
    first = {**producer("p", 5, 0), "Stream-Seq": "m"}
    assert api.append(path, b"1", JSON, first).status == 200
    assert api.append(path, broken, JSON, producer("p", 4, 0)).status == 403
    assert api.append(path, broken, JSON, producer("p", 5, 0)).status == 204
    assert api.append(path, broken, WRONG_TYPE).status == 409
    assert api.append(path, broken, JSON, {"Stream-Seq": "a"}).status == 409
    for content_type in (JSON, WRONG_TYPE):
        gap = api.append(path, broken, content_type, producer("p", 5, 9))
        assert (gap.status, gap.headers["producer-expected-seq"]) == (409, "1")
    assert api.append(path, broken, JSON).status == 400
    api.close_stream(path)
    assert api.append(path, broken, JSON).headers["stream-closed"] == "true"


def test_a_refused_append_does_not_move_the_producer(api: Api) -> None:
    path = stream_with_history(api)
    following = producer("p", 5, 2)
    assert api.append(path, b"x", WRONG_TYPE, following).status == 409
    assert api.append(path, b"x", headers={**following, "Stream-Seq": "a"}).status == 409
    assert api.append(path, b"x", headers=producer("p", 6, 1)).status == 400
    assert api.append(path, b"x", headers=producer("p", 5, 7)).status == 409
    assert api.post(path, content_type=TEXT, headers=following).status == 400
    accepted = api.append(path, b"<2>", headers=following)
    assert (accepted.status, accepted.headers["producer-seq"]) == (200, "2")
    assert api.get(path).body == b"<0><1><2>"


def test_a_refused_first_append_leaves_the_producer_unknown(api: Api) -> None:
    path = api.stream(content_type=JSON)
    for body in (b"{broken", b"[]"):
        assert api.append(path, body, JSON, producer("new", 3, 0)).status == 400
    assert api.append(path, b"1", TEXT, producer("new", 3, 0)).status == 409
    # Had epoch 3 been remembered, epoch 0 would now be stale.
    assert api.append(path, b"1", JSON, producer("new", 0, 0)).status == 200


def test_a_refused_append_does_not_move_stream_seq(api: Api) -> None:
    path = stream_with_history(api)
    high = {"Stream-Seq": "z"}
    assert api.append(path, b"x", WRONG_TYPE, high).status == 409
    assert api.append(path, b"x", headers={**producer("p", 5, 9), **high}).status == 409
    assert api.append(path, b"x", headers={**producer("p", 1, 0), **high}).status == 403
    assert api.append(path, b"x", headers={**producer("p", 5, 1), **high}).status == 204
    assert api.append(path, b"<2>", headers={"Stream-Seq": "n"}).status == 204


def test_an_accepted_append_moves_both_states(api: Api) -> None:
    path = stream_with_history(api)
    both = {**producer("p", 5, 2), "Stream-Seq": "n"}
    assert api.append(path, b"<2>", headers=both).status == 200
    assert api.append(path, b"<2>", headers=both).status == 204
    assert api.append(path, b"x", headers={"Stream-Seq": "n"}).status == 409
    assert api.append(path, b"<3>", headers={"Stream-Seq": "o"}).status == 204
