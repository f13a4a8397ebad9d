"""An access key in a folder that no server uses, for `millstream key create --data-dir`.

So a server that other machines reach has keys from its first moment on, and who has lost the last
admin key can make another.
"""

from __future__ import annotations

from millstream.config import Config
from millstream.errors import StartupError, StorageFull, StreamError
from millstream.journal.disk import OsDisk
from millstream.journal.folder import DataFolder
from millstream.journal.wal import LogPlace, WalJournal
from millstream.recover import recover
from millstream.state.commands import CreateKey


def store_key(config: Config, command: CreateKey) -> None:
    """Durable when this returns. Makes the folder when there is none. Raises StartupError."""
    folder = DataFolder(config.data_dir)
    try:
        place = LogPlace(OsDisk(), folder.wal, folder.store_id, config.wal_segment_bytes)
        journal = WalJournal(place, lambda error: None)
        recovered = recover(config, folder, journal)
        try:
            outcome = recovered.machine.apply(command)
            if isinstance(outcome, StreamError):
                raise StartupError(outcome.message)
            journal.write_now(command)
        except (OSError, StorageFull) as error:
            raise StartupError(f"cannot write to {folder.wal}: {error}") from error
        finally:
            recovered.catalog.close()
    finally:
        folder.close()
