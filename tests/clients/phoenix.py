"""A server that is killed and comes back: the same port, the same folder, another process."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.server import ServerProcess, free_port

AWAY_SECONDS = 0.3  # long enough for a client to be refused, not only cut off


class Phoenix:
    def __init__(self, data_dir: Path, *flags: str) -> None:
        self.deaths = 0
        self.output = ""  # of all lives
        self._data_dir, self._flags = data_dir, flags
        self._port = free_port()
        self._process = self._start()

    def _start(self) -> ServerProcess:
        return ServerProcess(self._data_dir, *self._flags, port=self._port)

    @property
    def url(self) -> str:
        return self._process.url

    def die_and_return(self) -> None:
        self.stop()
        self.deaths += 1
        time.sleep(AWAY_SECONDS)
        self._process = self._start()

    def stop(self) -> None:
        self._process.kill()
        self.output += self._process.finish_output()
        self._process.output = b""
