"""`millstream serve` on a disk that hangs: no sync of the log ends while a file called `hang` is in
the data folder. Run as `python -m tests.crash.hanging_server serve --data-dir …`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from millstream.cli.main import main
from millstream.journal.disk import OsFile

_datasync = OsFile.datasync
HANG = Path(sys.argv[sys.argv.index("--data-dir") + 1]) / "hang"


def datasync(self: OsFile) -> None:
    while os.path.exists(HANG):
        time.sleep(0.01)
    _datasync(self)


if __name__ == "__main__":
    OsFile.datasync = datasync  # type: ignore[method-assign]
    sys.exit(main())
