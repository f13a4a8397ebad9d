"""Catch-up of what is in the object store only, by one client and by many, each on its own stream.

The streams are written, flushed and closed with a stop; the server that reads them is a new one,
so nothing is in its memory. The kernel's page cache is emptied of the store's files before the
first reading; the second one, by yet another server, finds them there.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from tests.support.seaweed import SeaweedFS

from bench.errors import BenchError
from bench.figures import Figures
from bench.own_server import OwnServer
from bench.payloads import Payloads, in_turn
from bench.plan import Plan
from bench.servers import ServerKind
from bench.wire import BINARY, JSON, Connection, encode_request, send_all, send_bulk

BUCKET = "benchmark"
RECORD_BYTES = 1024
RECORDS = 128  # in one request
WRITERS = 8
READ_BUFFER_BYTES = 256 * 1024
DISK_READ_BYTES = 2**20
Store = Literal["fs", "s3"]


@dataclass(frozen=True)
class ColdCatchUpCase:
    store: Store
    is_json: bool
    clients: int
    bytes_in_all: int

    workload: ClassVar[str] = "cold_catch_up"
    ours_only: ClassVar[bool] = True
    durable_only: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return label(self.store, self.is_json, self.clients)

    def measure_in(self, kind: ServerKind, work_dir: Path) -> Figures:
        with _store(self.store, work_dir) as (flags, folder), OwnServer(kind, work_dir) as own:
            own.start("--flush-age", "1s", *flags)
            sizes = self._write(own)
            own.stop()
            disk = _read_files(folder)
            drop_from_page_cache(folder)
            own.start(*flags)
            from_disk = self._read(own, sizes)
            own.stop()
            own.start(*flags)
            figures = self._read(own, sizes)
        return figures | {
            "megabytes_per_second_from_disk": from_disk["megabytes_per_second"],
            "bare_disk_megabytes_per_second": disk,
        }

    def _write(self, own: OwnServer) -> list[int]:
        """Bytes that a reader of each stream will get."""
        content_type = JSON if self.is_json else BINARY
        streams = [f"/{BUCKET}/cold-{number}" for number in range(self.clients)]
        send_all(own.port, [encode_request("PUT", f"/{BUCKET}")], connections=1)
        send_all(own.port, [encode_request("PUT", path, content_type) for path in streams])
        sizes = [0] * self.clients
        send_bulk(own.port, self._appends(streams, sizes), connections=WRITERS)
        own.wait_flushed()
        return sizes

    def _appends(self, streams: list[str], sizes: list[int]) -> Iterator[bytes]:
        payloads = Payloads()
        for number in in_turn(self.clients, self.bytes_in_all // (RECORDS * RECORD_BYTES)):
            if self.is_json:
                body = payloads.json_array(RECORDS, RECORD_BYTES)
                sizes[number] += len(body) - 1  # a comma behind each, no brackets
                yield encode_request("POST", streams[number], JSON, body)
            else:
                body = payloads.records(RECORDS, RECORD_BYTES)
                sizes[number] += RECORDS * RECORD_BYTES
                yield encode_request("POST", f"{streams[number]}/append-batch", BINARY, body)

    def _read(self, own: OwnServer, sizes: list[int]) -> Figures:
        cpu_before, began = own.server.cpu_seconds(), time.monotonic()
        with ThreadPoolExecutor(self.clients) as pool:
            readers = [
                pool.submit(_read_to_tail, own.port, f"/{BUCKET}/cold-{number}", self.is_json)
                for number in range(self.clients)
            ]
            received = [reader.result() for reader in readers]
        seconds = time.monotonic() - began
        if received != sizes:
            raise BenchError(f"read {received} bytes of streams of {sizes}")
        megabytes, metrics = sum(sizes) / 1e6, own.metrics()
        return {
            "megabytes_per_second": megabytes / seconds,
            "server_cpu_us_per_megabyte": (own.server.cpu_seconds() - cpu_before) * 1e6 / megabytes,
            "stream_megabytes": sizes[0] / 1e6,
            "gets_per_gib": metrics['millstream_cold_requests_total{kind="get"}']
            / (sum(sizes) / 2**30),
            "rss_after_mib": own.server.rss_mib(),
        }


def _read_to_tail(port: int, path: str, is_json: bool) -> int:
    """Bytes of messages, each of JSON with its comma."""
    received, offset = 0, "-1"
    with Connection(port, READ_BUFFER_BYTES) as connection:
        while True:
            reply = connection.expect_ok(encode_request("GET", f"{path}?offset={offset}"))
            if reply.body_bytes:
                received += reply.body_bytes - is_json  # two brackets, and one comma fewer
            if reply.up_to_date:
                return received
            if reply.next_offset == offset:
                raise BenchError(f"catch-up makes no progress at offset {offset}")
            offset = reply.next_offset


@contextlib.contextmanager
def _store(store: Store, work_dir: Path) -> Iterator[tuple[list[str], Path]]:
    """Flags for a server, and the folder that has its objects in the end."""
    if store == "fs":
        yield [], work_dir / "data" / "cold"
        return
    weed = SeaweedFS()
    try:
        weed.start()
        yield weed.flags("bench"), weed.folder
    finally:
        weed.close()


def drop_from_page_cache(folder: Path) -> None:
    """Asks the kernel to forget what these files hold; what is not on disk yet goes there first."""
    for path in _files(folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _read_files(folder: Path) -> float:
    """MB/s of reading the same files from disk, one after the other, and doing nothing else."""
    drop_from_page_cache(folder)
    buffer, total = bytearray(DISK_READ_BYTES), 0
    began = time.monotonic()
    for path in _files(folder):
        with path.open("rb", buffering=0) as file:
            while received := file.readinto(buffer):
                total += received
    return total / 1e6 / (time.monotonic() - began)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_socket())


def label(store: Store, is_json: bool, clients: int) -> str:
    content = "JSON" if is_json else "binary"
    return f"{store}, {content}, {clients} client{'s' * (clients > 1)}"


def cases(plan: Plan) -> list[ColdCatchUpCase]:
    if plan.smoke:
        return [
            ColdCatchUpCase("fs", True, 2, 2**21),
            ColdCatchUpCase("s3", False, 2, 2**21),
        ]
    stores: list[Store] = ["fs", "s3"]
    return [
        ColdCatchUpCase(store, is_json, clients, 2**28)
        for store in stores
        for is_json in (False, True)
        for clients in (1, 16)
    ]
