"""A deleted stream is gone at once, and its name starts over with nothing of the old."""

from __future__ import annotations

from tests.conformance.api import JSON, START, TEXT, Api, Call, producer


def test_a_deleted_stream_is_not_found_in_any_way(api: Api) -> None:
    path = api.stream(b"one")
    assert api.delete(path).status == 204
    for method in ("GET", "HEAD", "DELETE"):
        assert api.call(method, path).status == 404
    assert api.append(path, b"x").status == 404
    assert api.post(path, headers={"Stream-Closed": "true"}).status == 404
    assert api.get(f"{path}?offset=now&live=sse").status == 404
    assert api.fork(path)[1].status == 404


def test_a_name_used_again_remembers_nothing(api: Api) -> None:
    path = api.stream(b"old", b"older")
    headers = {**producer("p", 9, 0), "Stream-Seq": "z", "Stream-Closed": "true"}
    assert api.append(path, b"oldest", headers=headers).status == 200
    old = api.get(path)
    assert api.delete(path).status == 204
    created = api.put(path, content_type=JSON)
    assert (created.status, created.next_offset) == (201, START)
    assert "stream-closed" not in api.head(path).headers
    assert api.get(f"{path}?offset={old.next_offset}").status == 400
    again = {**producer("p", 0, 0), "Stream-Seq": "a"}
    assert api.append(path, b"1", JSON, again).status == 200
    read = api.get(path, headers={"If-None-Match": old.headers["etag"]})
    assert (read.status, read.body) == (200, b"[1]")


def test_deletes_that_race_delete_once(api: Api) -> None:
    path = api.stream(b"one")
    statuses = sorted(reply.status for reply in api.together([Call("DELETE", path)] * 4))
    assert statuses == [204, 404, 404, 404]


def test_appends_that_race_a_delete_are_answered_one_way_or_the_other(api: Api) -> None:
    for _ in range(20):
        path = api.stream(b"one")
        append = Call("POST", path, b"x", {"Content-Type": TEXT})
        replies = api.together([append, Call("DELETE", path), append])
        assert replies[1].status == 204
        assert {replies[0].status, replies[2].status} <= {204, 404}
        assert api.head(path).status == 404


def test_deleting_one_stream_leaves_its_neighbours(api: Api) -> None:
    path = api.stream(b"one")
    below = api.stream(b"two", path=path + "/below")
    assert api.delete(path).status == 204
    assert api.get(below).body == b"two"
