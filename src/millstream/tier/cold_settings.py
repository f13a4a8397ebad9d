"""Where the cold tier lies and how to reach it."""

from __future__ import annotations

import os
from typing import NamedTuple

from millstream.config import Config


class ColdSettings(NamedTuple):
    """Where the cold tier lies and how to reach it. Plain data that travels to executors."""

    url: str
    endpoint: str = ""
    region: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""
    session_token: str = ""
    timeout_seconds: float = 30.0

    def __repr__(self) -> str:
        """Without the keys: this may end up in a log."""
        return f"ColdSettings({self.url!r}, endpoint={self.endpoint!r}, region={self.region!r})"


def cold_settings(config: Config) -> ColdSettings:
    """What the settings of a server say about its cold tier. A folder becomes absolute."""
    url = config.cold or f"fs:{config.data_dir / 'cold'}"
    if url.startswith("fs:"):
        url = f"fs:{os.path.abspath(url.removeprefix('fs:'))}"
    return ColdSettings(
        url,
        config.cold_endpoint,
        config.cold_region,
        config.cold_access_key_id,
        config.cold_secret_access_key,
        config.cold_session_token,
        config.cold_timeout,
    )
