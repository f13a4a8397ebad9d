"""The server with garbage that waits for nobody, as a program of its own for the tests.

Everything that a real server does after a minute or an hour happens here at once; only what
protects objects that are on their way is left.
"""

from __future__ import annotations

import sys

from millstream.cli.main import main
from millstream.cold import checkpointer
from millstream.engine.timings import Timings

MODULE = "tests.cold.impatient"
IMPATIENT = Timings(
    upload_nudge=0.1,
    upload_share=0.0,
    garbage_grace=0.02,
    orphan_age=0.0,
    orphan_first_look=0.1,
    orphan_look=0.1,
)


def make_impatient() -> None:
    for module, name, value in ((checkpointer, "CHECKPOINT_SECONDS_MAX", 0.3),):
        assert hasattr(module, name)
        setattr(module, name, value)


if __name__ == "__main__":
    make_impatient()
    sys.exit(main(timings=IMPATIENT))
