"""A disk in memory that loses power: the journal's Disk port with everything that may go wrong.

Bytes and names are kept apart, as a file system does. What a process sees is the volatile state;
what survives a power cut is the durable state plus a random legal part of what was not synced:

- of each write to a file since its last sync, every 512-byte sector is kept, dropped, zeroed or
  scribbled over, independently of all others (writes reach the platter in any order);
- of the names in a folder, any number of the oldest unsynced changes are kept, the rest is not.

A fuse ends the "process" at any single step, inside of compound operations too.
"""

from __future__ import annotations

import errno
import os.path
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

SECTOR_BYTES = 512


class PowerLoss(Exception):
    """The process ends here; nothing after this step happens."""


@dataclass
class Write:
    position: int
    data: bytes


@dataclass
class Cut:
    """A change of length that is not synced."""

    size: int


@dataclass(eq=False)
class Inode:
    durable: bytes = b""
    seen: bytearray = field(default_factory=bytearray)  # what the process reads back
    unsynced: list[Write | Cut] = field(default_factory=list)

    def write(self, position: int, data: bytes) -> None:
        gap = position - len(self.seen)
        if gap > 0:
            self.seen += bytes(gap)
        self.seen[position : position + len(data)] = data
        self.unsynced.append(Write(position, data))

    def cut(self, size: int) -> None:
        self.seen = self.seen[:size].ljust(size, b"\0")
        self.unsynced.append(Cut(size))

    def sync(self) -> None:
        self.durable = bytes(self.seen)
        self.unsynced.clear()

    def lose_power(self, dice: random.Random) -> None:
        content = bytearray(self.durable)
        for change in self.unsynced:
            if isinstance(change, Cut):
                if dice.random() < 0.5:
                    content = content[: change.size].ljust(change.size, b"\0")
            else:
                _keep_some(content, change, dice)
        self.seen = content
        self.sync()


def _keep_some(content: bytearray, write: Write, dice: random.Random) -> None:
    """Each sector on its own; now and then all or nothing, which a long write rarely gets."""
    fate = dice.random()
    if fate < 0.2:
        return
    end = write.position + len(write.data)
    if len(content) < end and (fate < 0.3 or dice.random() < 0.8):
        content += bytes(end - len(content))  # the new length may be there without the bytes
    position = write.position
    while position < end:
        stop = min(end, (position // SECTOR_BYTES + 1) * SECTOR_BYTES)
        piece = write.data[position - write.position : stop - write.position]
        sector = 0.0 if fate < 0.35 else dice.random()
        if sector < 0.55:
            _put(content, position, piece)
        elif sector < 0.7:
            _put(content, position, bytes(len(piece)))
        elif sector < 0.8:
            _put(content, position, dice.randbytes(len(piece)))
        position = stop


def _put(content: bytearray, position: int, piece: bytes) -> None:
    """Never makes the file longer than it came out."""
    piece = piece[: max(0, len(content) - position)]
    content[position : position + len(piece)] = piece


@dataclass
class NameChange:
    removes: str | None
    adds: str | None
    inode: Inode

    def apply(self, names: dict[str, Inode]) -> None:
        if self.removes is not None:
            names.pop(self.removes)
        if self.adds is not None:
            names[self.adds] = self.inode


@dataclass
class Folder:
    durable: dict[str, Inode] = field(default_factory=dict)
    seen: dict[str, Inode] = field(default_factory=dict)
    unsynced: list[NameChange] = field(default_factory=list)

    def change(self, change: NameChange) -> None:
        change.apply(self.seen)
        self.unsynced.append(change)

    def sync(self) -> None:
        self.durable = dict(self.seen)
        self.unsynced.clear()

    def lose_power(self, dice: random.Random) -> None:
        names = dict(self.durable)
        for change in self.unsynced[: dice.randint(0, len(self.unsynced))]:
            change.apply(names)
        self.seen = names
        self.sync()


class SimulatedFile:
    def __init__(self, disk: SimulatedDisk, inode: Inode) -> None:
        self._disk, self._inode, self._life = disk, inode, disk.life

    def _step(self) -> None:
        assert self._life == self._disk.life, "a file of a process that is gone"
        self._disk.step()

    def pwrite(self, data: bytes, position: int) -> None:
        self._step()
        self._inode.write(position, bytes(data))
        self._disk.step()

    def datasync(self) -> None:
        self._step()
        self._inode.sync()
        self._disk.step()

    def truncate(self, size: int) -> None:
        self._step()
        self._inode.cut(size)
        self._disk.step()
        self._inode.sync()
        self._disk.step()

    def size(self) -> int:
        return len(self._inode.seen)

    def close(self) -> None:
        pass


class SimulatedDisk:
    def __init__(self) -> None:
        self.folders: dict[str, Folder] = {}
        self.life = 0
        self.steps_left: int | None = None
        self.between_steps: Callable[[], None] = lambda: None
        self.is_full = False

    # --- faults ----------------------------------------------------------------------------

    def step(self) -> None:
        """Called between any two things that can be told apart after a power cut."""
        if self.steps_left is not None:
            if self.steps_left <= 0:
                raise PowerLoss
            self.steps_left -= 1
        self.between_steps()

    def restart_process(self) -> None:
        """kill -9: all that was written is still seen, and still not synced."""
        self.life += 1
        self.steps_left = None
        self.between_steps = lambda: None

    def forget_unsynced(self) -> None:
        """The worst power cut: nothing that was not synced is there."""
        self.restart_process()
        for folder in self.folders.values():
            folder.seen = dict(folder.durable)
            folder.sync()
            for inode in folder.seen.values():
                inode.seen = bytearray(inode.durable)
                inode.sync()

    def lose_power(self, dice: random.Random) -> None:
        self.restart_process()
        inodes = {
            id(inode): inode
            for folder in self.folders.values()
            for inode in (*folder.durable.values(), *folder.seen.values())
        }
        for inode in inodes.values():
            inode.lose_power(dice)
        for folder in self.folders.values():
            folder.lose_power(dice)

    def put(self, folder: str, files: Mapping[str, bytes]) -> None:
        """Durable files, as found after a crash."""
        names = {name: Inode(content, bytearray(content)) for name, content in files.items()}
        self.folders[folder] = Folder(names, dict(names))

    def get(self, folder: str) -> dict[str, bytes]:
        return {name: bytes(inode.seen) for name, inode in self._folder(folder).seen.items()}

    # --- the port --------------------------------------------------------------------------

    def _folder(self, path: str) -> Folder:
        return self.folders.setdefault(path, Folder())

    def _split(self, path: str) -> tuple[Folder, str]:
        return self._folder(os.path.dirname(path)), os.path.basename(path)

    def _find(self, path: str) -> Inode:
        folder, name = self._split(path)
        if name not in folder.seen:
            raise FileNotFoundError(path)
        return folder.seen[name]

    def list(self, folder: str) -> list[str]:
        return sorted(self._folder(folder).seen)

    def create_zeroed(self, path: str, size: int) -> None:
        self.create(path, [bytes(size)])

    def create(self, path: str, parts: Iterable[bytes]) -> int:
        self.step()
        folder, name = self._split(path)
        inode = folder.seen.get(name)
        if inode is None:
            inode = Inode()
            folder.change(NameChange(None, name, inode))
        else:
            inode.cut(0)
        self.step()
        position = 0
        for part in parts:
            if self.is_full:
                raise OSError(errno.ENOSPC, "no space left on a simulated disk", path)
            inode.write(position, part)
            position += len(part)
            self.step()
        inode.sync()
        self.step()
        return position

    def open(self, path: str) -> SimulatedFile:
        return SimulatedFile(self, self._find(path))

    def read(self, path: str, size: int = -1) -> bytes:
        content = bytes(self._find(path).seen)
        return content if size < 0 else content[:size]

    def rename(self, old: str, new: str) -> None:
        self.step()
        inode = self._find(old)
        folder, old_name = self._split(old)
        target, new_name = self._split(new)
        assert folder is target, "names move within one folder only"
        folder.change(NameChange(old_name, new_name, inode))
        self.step()

    def remove(self, path: str) -> None:
        self.step()
        folder, name = self._split(path)
        folder.change(NameChange(name, None, self._find(path)))
        self.step()

    def sync_folder(self, folder: str) -> None:
        self.step()
        self._folder(folder).sync()
        self.step()
