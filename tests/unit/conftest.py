"""What a test does to the logs of its process ends with it: the next one may count lines."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    hooks = sys.excepthook, warnings.showwarning
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    structlog.reset_defaults()
    sys.excepthook, warnings.showwarning = hooks
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
