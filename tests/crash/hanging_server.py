"""`millstream serve` on a disk that hangs: no sync of the log ends while a file called `hang` is in
the data folder, and no object is read while one called `hang-store` is.

Run as `python -m tests.crash.hanging_server serve --data-dir …`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from millstream.cli.main import main
from millstream.journal.disk import OsFile
from millstream.tier.objects import ObjectStore

_datasync, _get_range = OsFile.datasync, ObjectStore.get_range
HANG = Path(sys.argv[sys.argv.index("--data-dir") + 1]) / "hang"
HANG_STORE = HANG.with_name("hang-store")


def datasync(self: OsFile) -> None:
    while os.path.exists(HANG):
        time.sleep(0.01)
    _datasync(self)


def get_range(self: ObjectStore, name: str, start: int, length: int) -> bytes:
    while os.path.exists(HANG_STORE):
        time.sleep(0.01)
    return _get_range(self, name, start, length)


if __name__ == "__main__":
    OsFile.datasync = datasync  # type: ignore[method-assign]
    ObjectStore.get_range = get_range  # type: ignore[method-assign]
    sys.exit(main())
