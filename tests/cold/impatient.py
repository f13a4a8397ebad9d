"""The server with garbage that waits for nobody, as a program of its own for the tests.

Everything that a real server does after a minute or an hour happens here at once; only what
protects objects that are on their way is left.
"""

from __future__ import annotations

import sys

from millstream.cli.main import main
from millstream.engine.timings import Timings

MODULE = "tests.cold.impatient"
IMPATIENT = Timings(
    checkpoint_interval=0.3,
    upload_nudge=0.1,
    upload_share=0.0,
    garbage_grace=0.02,
    orphan_age=0.0,
    orphan_first_look=0.1,
    orphan_look=0.1,
)


if __name__ == "__main__":
    sys.exit(main(timings=IMPATIENT))
