"""The server with garbage that waits for nobody, as a program of its own for the tests.

Everything that a real server does after a minute or an hour happens here at once; only what
protects objects that are on their way is left.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from millstream import assemble
from millstream.cli.main import main
from millstream.cold import catalog_uploads
from millstream.cold.catalog_uploads import CatalogUploads
from millstream.cold.garbage import Garbage
from millstream.engine.timings import Timings

MODULE = "tests.cold.impatient"
IMPATIENT = Timings(checkpoint_interval=0.3)


def make_impatient() -> None:
    patched: Any = assemble
    patched.Garbage = functools.partial(
        Garbage,
        grace_seconds=0.02,
        orphan_age_seconds=0.0,
        first_look_seconds=0.1,
        look_seconds=0.1,
    )
    patched.CatalogUploads = functools.partial(CatalogUploads, nudge_seconds=0.1)
    for module, name, value in ((catalog_uploads, "CATALOG_UPLOAD_SHARE", 0),):
        assert hasattr(module, name)
        setattr(module, name, value)


if __name__ == "__main__":
    make_impatient()
    sys.exit(main(timings=IMPATIENT))
