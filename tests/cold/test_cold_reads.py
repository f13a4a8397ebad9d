"""Every way to read, fork and snapshot, on streams of which nothing is in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.api import JSON, START, TEXT, Api, error_code, token
from tests.conformance.multipart import bootstrap
from tests.support.server import NO_OWN_STREAMS, ServerProcess

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Nothing stays in memory, and the cache holds next to nothing."""
    flags = ("--cold-cache-bytes", "1MiB", "--page-bytes", "4MiB", "--long-poll-timeout", "2")
    server = ServerProcess(
        tmp_path_factory.mktemp("data"),
        *flags,
        *NO_OWN_STREAMS,
        module="tests.cold.eager_server",
    )
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.finish_output(), server.output.decode()


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    api = Api(server)
    yield api
    api.close()


def replay(api: Api, path: str, bytes_max: int, offset: str = "-1") -> tuple[bytes, int]:
    """Everything from there to the tail, and in how many pages."""
    pages = list[bytes]()
    while True:
        reply = api.get(f"{path}?offset={offset}&max_bytes={bytes_max}")
        assert reply.status == 200, reply
        pages.append(reply.body)
        offset = reply.next_offset
        if "stream-up-to-date" in reply.headers:
            return b"".join(pages), len(pages)


def test_a_stream_of_many_flushes_is_replayed_page_by_page(api: Api) -> None:
    path = api.stream()
    messages = [b"%06d;" % number for number in range(300)]
    for number, message in enumerate(messages):
        assert api.append(path, message).status == 204
        if number % 20 == 0:
            api.head(path)  # waits until it is cold
    assert replay(api, path, MIB) == (b"".join(messages), 1)
    whole, pages = replay(api, path, 100)
    assert (whole, pages) == (b"".join(messages), 22)
    assert replay(api, path, 7, offset=token(290, 290 * 7))[0] == b"".join(messages[290:])


def test_a_large_stream_is_read_in_pages_of_whole_messages(api: Api) -> None:
    path = api.stream()
    messages = [bytes([65 + number]) * (700_000 + number) for number in range(12)]
    for message in messages:
        assert api.append(path, message).status == 204
    whole, pages = replay(api, path, 2 * MIB)
    assert whole == b"".join(messages)
    assert pages == 6
    assert api.get(f"{path}?offset=-1&max_bytes=1").body == messages[0]


@pytest.mark.parametrize("offset", [token(1, 5), token(2, 3), "00000000000000000004"])
def test_an_offset_inside_a_message_is_refused(api: Api, offset: str) -> None:
    path = api.stream(b"one", b"three")
    for query in ("", "&live=long-poll", "&live=sse"):
        reply = api.get(f"{path}?offset={offset}{query}")
        assert (reply.status, error_code(reply)) == (400, "invalid_offset")


def test_an_offset_in_bytes_alone_is_found(api: Api) -> None:
    path = api.stream(b"one", b"three", b"four")
    reply = api.get(f"{path}?offset=00000000000000000003")
    assert (reply.status, reply.body) == (200, b"threefour")


def test_a_cached_page_is_confirmed(api: Api) -> None:
    path = api.stream(b"one", b"three")
    first = api.get(path)
    again = api.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


def test_a_long_poll_behind_the_tail_is_answered_at_once(api: Api) -> None:
    path = api.stream(b"one", b"three")
    reply = api.get(f"{path}?offset={START}&live=long-poll")
    assert (reply.status, reply.body) == (200, b"onethree")
    assert api.get(f"{path}?offset={token(2, 8)}&live=long-poll").status == 204


def test_a_subscriber_far_behind_catches_up_and_then_hears_what_is_new(api: Api) -> None:
    path = api.stream(content_type=JSON)
    for number in range(0, 200, 10):
        body = json.dumps(list(range(number, number + 10)))
        assert api.append(path, body, JSON).status == 204
        api.head(path)
    events = api.events(f"{path}?offset=-1&live=sse&max_bytes=64")
    seen = [event for event in events.until_up_to_date() if event.kind == "data"]
    assert [value for event in seen for value in event.json()] == list(range(200))
    assert len(seen) > 5
    assert api.append(path, b"[200]", JSON).status == 204
    assert events.until_up_to_date()[0].json() == [200]


def test_a_subscriber_never_gets_half_a_character(api: Api) -> None:
    text = "añ€🙂z" * 3
    path = api.stream(content_type="text/plain; charset=utf-8")
    for byte in text.encode():
        assert api.append(path, bytes([byte]), "text/plain; charset=utf-8").status == 204
    for bytes_max in (1, 2, 3, 5, 1000):
        events = api.events(f"{path}?offset=-1&live=sse&max_bytes={bytes_max}")
        seen = [e.data for e in events.until_up_to_date() if e.kind == "data"]
        assert "".join(seen) == text
        events.close()


def test_a_bootstrap_streams_what_is_cold(api: Api) -> None:
    path = api.bucketed(content_type=JSON)
    count = 400
    for number in range(count):
        body = json.dumps({"n": number, "pad": "x" * 9000})
        assert api.append(path, body, JSON).status == 204
    assert api.append(path, b"[1,2,3]", JSON).status == 204
    offset = api.get(f"{path}?offset=-1&max_bytes=20000").next_offset
    ordinal = int(offset.split("_")[0])
    assert ordinal == 2
    assert api.publish(path, offset, b"<state>").status == 204
    found = bootstrap(api, path)
    assert found.snapshot.body == b"<state>"
    assert len(found.updates) == count + 3 - ordinal
    assert [json.loads(part.body)["n"] for part in found.updates[:-3]] == list(range(2, count))
    assert [part.body for part in found.updates[-3:]] == [b"1", b"2", b"3"]


def test_a_snapshot_must_lie_between_messages_that_are_cold(api: Api) -> None:
    path = api.bucketed(b"one", b"three", b"four")
    assert error_code(api.publish(path, token(1, 4))) == "invalid_offset"
    assert error_code(api.publish(path, "00000000000000000004")) == "invalid_offset"
    assert api.publish(path, token(4, 13)).status == 409
    assert api.publish(path, "00000000000000000003").status == 204
    assert api.publish(path, token(2, 8)).status == 204
    assert api.publish(path, token(2, 8)).status == 204
    assert api.publish(path, token(1, 3)).status == 410
    assert api.get(f"{path}?offset={token(1, 3)}").status == 410
    assert api.get(f"{path}?offset={token(2, 8)}").body == b"four"


def test_forks_leave_their_source_where_it_is_cold(api: Api) -> None:
    source = api.stream(b"one", b"three", b"four")
    fork, created = api.fork(source, offset=token(1, 3), sub_offset=2)
    assert (created.status, created.next_offset) == (201, token(2, 5))
    assert api.append(fork, b"own").status == 204
    assert api.get(fork).body == b"onethown"
    second, created = api.fork(fork, offset=token(1, 3), sub_offset=1)
    assert (created.status, api.get(second).body) == (201, b"onet")
    again = api.fork(source, offset=token(1, 3), sub_offset=2, path=fork)[1]
    assert again.status == 200
    assert api.delete(source).status == 204
    assert api.delete(fork).status == 204
    assert api.get(second).body == b"onet"
    assert api.get(f"{second}?offset={token(1, 3)}").body == b"t"


def test_forks_of_cold_json_are_cut_between_messages(api: Api) -> None:
    source = api.stream(b"[1,22]", b"[333]", content_type=JSON)
    fork, created = api.fork(source, offset=START, sub_offset=2)
    assert (created.status, created.next_offset) == (201, token(2, 5))
    assert api.append(fork, b"[4]", JSON).status == 204
    assert api.get(fork).json() == [1, 22, 4]


def test_forks_at_wrong_places_are_refused_in_the_same_order_as_hot_ones(api: Api) -> None:
    source = api.stream(b"one", b"three")
    refused = api.fork(source, offset=token(1, 4))[1]
    assert (refused.status, error_code(refused)) == (400, "invalid_offset")
    refused = api.fork(source, offset=token(1, 3), sub_offset=6)[1]
    assert (refused.status, error_code(refused)) == (400, "invalid_request")
    taken = api.stream()
    assert api.fork(source, offset=token(1, 4), path=taken)[1].status == 409
    headers = {"Content-Type": JSON}
    assert api.fork(source, offset=token(1, 4), headers=headers)[1].status == 409
    assert api.fork(source, offset=token(1, 3), body=b"own")[1].status == 201
    assert api.fork("/v1/stream/nobody", offset=token(1, 4))[1].status == 404


def test_a_damaged_segment_is_an_error_and_never_a_part(api: Api, server: ServerProcess) -> None:
    whole = api.stream(b"fine")
    path = api.stream()
    assert server.data_dir is not None
    segments = server.data_dir / "cold" / "segments"
    before = set(segments.rglob("*.parquet"))
    assert api.append(path, b"damaged" * 1000).status == 204
    api.head(path)
    for file in set(segments.rglob("*.parquet")) - before:
        flip(file, 100)
    reply = api.get(path)
    assert (reply.status, reply.body[:1]) == (500, b"{")
    assert api.get(f"{path}?offset=-1&live=sse").status == 500
    assert api.get(whole).body == b"fine"
    assert api.append(path, b"goes on").status == 204


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 0xFF
    file.write_bytes(bytes(data))


def test_a_segment_that_cannot_be_read_now_is_a_503(api: Api, server: ServerProcess) -> None:
    path = api.stream()
    assert server.data_dir is not None
    segments = server.data_dir / "cold" / "segments"
    before = set(segments.rglob("*.parquet"))
    assert api.append(path, b"away").status == 204
    api.head(path)
    (file,) = set(segments.rglob("*.parquet")) - before
    aside = file.with_suffix(".aside")
    file.rename(aside)
    file.symlink_to(file)  # opening it fails, and not because it is missing
    reply = api.get(path)
    assert (reply.status, reply.headers.get("retry-after")) == (503, "1")
    file.unlink()
    aside.rename(file)
    assert api.get(path).body == b"away"


def test_appends_go_on_while_cold_reads_are_under_way(api: Api) -> None:
    old = api.stream(*[b"x" * 500_000 for _ in range(8)])
    hot = api.stream()
    waiting = [api.wait(f"{old}?offset={token(n, n * 500_000)}") for n in range(8)]
    for _ in range(20):
        assert api.append(hot, b"now", TEXT).status == 204
    assert [len(each.reply().body) for each in waiting] == [
        min(8, 8 - n) * 500_000 for n in range(8)
    ]
