"""One S3 server for the rounds that want one, started when first asked for."""

from __future__ import annotations

from tests.support.seaweed import seaweed as seaweed
