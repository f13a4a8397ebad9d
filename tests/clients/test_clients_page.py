"""docs/clients.md shows what the tests here run, to the letter."""

from __future__ import annotations

import re
from pathlib import Path

CLIENTS_DIR = Path(__file__).parent
PAGE = CLIENTS_DIR.parents[1] / "docs/clients.md"


def test_every_piece_of_code_on_the_page_is_run_by_a_test() -> None:
    sources = [*CLIENTS_DIR.glob("programs/*.mjs"), *CLIENTS_DIR.glob("*.py")]
    run = "".join(source.read_text() for source in sources)
    pieces = re.findall(r"```(?:js|python)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(pieces) >= 4
    for piece in pieces:
        assert piece in run, piece
