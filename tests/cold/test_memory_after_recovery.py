"""What a start after a crash keeps in memory."""

import time
from contextlib import closing
from pathlib import Path

from millstream.config import build_config
from millstream.journal.folder import DataFolder
from millstream.recover import recover
from tests.support.blocks import datas_of
from tests.support.server import NO_OWN_STREAMS, running_server
from tests.unit.journal.log_files import folder_journal

STREAMS, APPENDS, SIZE = 8, 20, 10_000


def test_content_that_is_in_the_store_is_not_brought_back_from_the_log(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with (
        running_server(data, *NO_OWN_STREAMS, "--flush-bytes", "64KiB") as server,
        closing(server.client()) as client,
    ):
        for stream in range(STREAMS):
            assert client.put(f"/v1/stream/s{stream}", content_type="text/plain").status == 201
        for _ in range(APPENDS):
            for stream in range(STREAMS):
                body = bytes([65 + stream]) * SIZE
                client.post(f"/v1/stream/s{stream}", body, content_type="text/plain")
        deadline = time.monotonic() + 20
        while b"millstream_held_bytes 0.0" in client.get("/metrics").body:
            assert time.monotonic() < deadline, "nothing was published"
            time.sleep(0.02)
        server.kill()

    config = build_config({"data_dir": str(data)}, {})
    folder = DataFolder(data)
    machine, catalog, _ = recover(config, folder, folder_journal(folder))
    try:
        logs = [stream.log for stream in machine.by_id.values()]
        assert sum(log.tail_byte for log in logs) == STREAMS * APPENDS * SIZE
        assert sum(log.cold_byte for log in logs) > 0, "nothing was flushed"
        assert [log.held_byte for log in logs] == [log.cold_byte for log in logs]
        held = sum(sum(map(len, datas_of(log))) for log in logs)
        assert held == sum(machine.changes.hot_bytes)
    finally:
        catalog.close()
        folder.close()
