"""A disk in memory that knows what would survive if the power failed now.

The model is as unkind as file systems are known to be:

- A write is durable once its file is synced; a new or removed name once its directory is synced.
- When the power fails each write that is not durable is kept, lost or torn, each on its own, and
  each change to the directory is kept or lost.
- After a failed sync the system may take the pages for clean: those writes stay in doubt even if a
  later sync succeeds. Only writing the same bytes again and syncing helps.
- Readers see everything that was written, durable or not, as they do through a system's cache. So
  to kill a process is to go on with the same `SimFiles`, and to cut the power is `crash`.

Everything random comes from the `Random` that is given: the same seed gives the same run.
"""

from __future__ import annotations

import errno
import os
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Final

from holdfast.testing.files import Faults

if TYPE_CHECKING:
    from pathlib import Path

_SECTOR_BYTES: Final = 512


class KilledError(BaseException):
    """The process was killed at this operation: nothing is to catch this but the test."""


class _State(Enum):
    PENDING = "pending"
    IN_DOUBT = "in doubt"
    DURABLE = "durable"


class _Write:
    """Bytes written at some place of a file."""

    def __init__(self, at: int, data: bytes) -> None:
        self.at = at
        self.data = data
        self.state = _State.PENDING

    def apply(self, content: bytearray) -> None:
        self._put(content, 0, len(self.data))

    def apply_in_part(self, content: bytearray, random: Random) -> None:
        """Kept, lost, or torn: the first bytes alone, or any of its sectors and zeros between."""
        size = len(self.data)
        match random.randrange(4):
            case 0:
                self._put(content, 0, size)
            case 1:
                self._put(content, 0, random.randint(0, size))
            case 2:
                content.extend(bytes(max(0, self.at + size - len(content))))
                start = 0
                while start < size:
                    end = min(size, start + _SECTOR_BYTES - (self.at + start) % _SECTOR_BYTES)
                    if random.getrandbits(1):
                        self._put(content, start, end)
                    start = end

    def _put(self, content: bytearray, start: int, end: int) -> None:
        if start < end:
            content.extend(bytes(max(0, self.at + start - len(content))))
            content[self.at + start : self.at + end] = self.data[start:end]


class _Truncation:
    """A file cut to some length."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.state = _State.PENDING

    def apply(self, content: bytearray) -> None:
        del content[self.size_bytes :]

    def apply_in_part(self, content: bytearray, random: Random) -> None:
        if random.getrandbits(1):
            self.apply(content)


class _Node:
    """A file apart from its name: what is seen of it, and how that came to be."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self._durable = bytearray(content)
        # Since the oldest change that is not durable, in order.
        self._changes: list[_Write | _Truncation] = []

    def change(self, change: _Write | _Truncation) -> None:
        change.apply(self.content)
        self._changes.append(change)

    def sync(self, outcome: _State) -> None:
        for change in self._changes:
            if change.state is _State.PENDING:
                change.state = outcome
        while self._changes and self._changes[0].state is _State.DURABLE:
            self._changes.pop(0).apply(self._durable)

    def after_crash(self, random: Random) -> bytes:
        content = bytearray(self._durable)
        for change in self._changes:
            if change.state is _State.DURABLE:
                change.apply(content)
            else:
                change.apply_in_part(content, random)
        return bytes(content)


class SimFile:
    """An open file of a `SimFiles`."""

    def __init__(self, node: _Node, files: SimFiles) -> None:
        self._node = node
        self._files = files
        self._closed = False

    def write_at(self, data: bytes, at: int) -> None:
        """Write all of `data`, or a part of it and fail."""
        assert not self._closed, "the file was closed"
        room = self._files.room_for(self._node, data, at)
        error = self._files.take("write")
        if error is not None:
            room = self._files.random.randint(0, room)
        elif room < len(data):
            error = _error(errno.ENOSPC)
        self._node.change(_Write(at, data[:room]))
        if error is not None:
            raise error

    def sync(self) -> None:
        """Make durable what was written, or fail and leave all of it in doubt."""
        assert not self._closed, "the file was closed"
        error = self._files.take("sync")
        self._node.sync(_State.DURABLE if error is None else _State.IN_DOUBT)
        if error is not None:
            raise error

    def close(self) -> None:
        """Let go of the file; nothing becomes durable by that."""
        self._closed = True


class SimFiles(Faults):
    """Files of a disk in memory; faults come on command, by `fault_rate`, or when it is full.

    Operations that can fail: write, sync, create, open, allocate, truncate, remove, sync_directory.
    """

    def __init__(
        self,
        random: Random | None = None,
        *,
        capacity_bytes: int | None = None,
        fault_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.random = random or Random(0)
        self.capacity_bytes = capacity_bytes
        self.fault_rate = fault_rate
        self._operations_left: int | None = None
        self._nodes: dict[Path, _Node] = {}
        self._durable_nodes: dict[Path, _Node] = {}
        # Names made (with their file) and removed (without) since their directory was synced.
        self._name_changes: list[tuple[Path, _Node | None]] = []

    # What a test does.

    def heal(self) -> None:
        """No more faults, and no end to come; a disk that is full stays so."""
        super().heal()
        self.fault_rate = 0.0
        self._operations_left = None

    def kill_after(self, operations: int) -> None:
        """Let so many more operations pass; every later one raises `KilledError`."""
        self._operations_left = operations

    def crash(self, random: Random) -> SimFiles:
        """The disk as it is found after a power failure at this moment; this one stays as it is."""
        names = dict(self._durable_nodes)
        for path, node in self._name_changes:
            if random.getrandbits(1):
                _set_name(names, path, node)
        found = SimFiles(self.random, capacity_bytes=self.capacity_bytes)
        found._nodes = {path: _Node(names[path].after_crash(random)) for path in sorted(names)}
        found._durable_nodes = dict(found._nodes)
        return found

    @property
    def size_bytes(self) -> int:
        """Bytes of all files that have a name."""
        return sum(len(node.content) for node in self._nodes.values())

    def take(self, operation: str) -> OSError | None:
        """The error that is due for this operation; raises if the process ends here."""
        if self._operations_left is not None:
            if self._operations_left <= 0:
                raise KilledError(operation)
            self._operations_left -= 1
        error = super().take(operation)
        if error is None and self.fault_rate and self.random.random() < self.fault_rate:
            error = _error(self.random.choice((errno.EIO, errno.ENOSPC)))
        return error

    def room_for(self, node: _Node, data: bytes, at: int) -> int:
        """How many of these bytes the disk still has room for."""
        if self.capacity_bytes is None:
            return len(data)
        free = max(0, self.capacity_bytes - self.size_bytes)
        return max(0, min(len(data), len(node.content) - at + free))

    # What a log does.

    def names(self, directory: Path) -> list[str]:
        """The names in the directory."""
        return sorted(path.name for path in self._nodes if path.parent == directory)

    def read(self, path: Path) -> bytes:
        """All bytes of a file."""
        return bytes(self._node(path).content)

    def read_start(self, path: Path, size_bytes: int) -> bytes:
        """The first bytes of a file, as many as there are."""
        return bytes(self._node(path).content[:size_bytes])

    def create(self, path: Path) -> SimFile:
        """A new, empty file; an old one of that name is emptied."""
        self.meet("create")
        if path in self._nodes:
            self._nodes[path].change(_Truncation(0))
        else:
            self._name(path, _Node())
        return SimFile(self._nodes[path], self)

    def open(self, path: Path) -> SimFile:
        """A file that is there, to be written."""
        self.meet("open")
        return SimFile(self._node(path), self)

    def allocate(self, path: Path, size_bytes: int) -> None:
        """Reserve room, or leave nothing behind."""
        self.meet("allocate")
        if path not in self._nodes:
            self._name(path, _Node())
        node = self._nodes[path]
        size = len(node.content)
        missing = bytes(max(0, size_bytes - size))
        if self.room_for(node, missing, size) < len(missing):
            self._name(path, None)
            raise _error(errno.ENOSPC)
        node.change(_Write(size, missing))

    def truncate(self, path: Path, size_bytes: int) -> None:
        """Cut a file to this length."""
        self.meet("truncate")
        self._node(path).change(_Truncation(size_bytes))

    def remove(self, path: Path) -> None:
        """Remove the name if it is there; who has the file open keeps it."""
        self.meet("remove")
        if path in self._nodes:
            self._name(path, None)

    def sync_directory(self, directory: Path) -> None:
        """Make names made and removed in this directory durable."""
        self.meet("sync_directory")
        for path, node in self._name_changes:
            if path.parent == directory:
                _set_name(self._durable_nodes, path, node)
        self._name_changes = [each for each in self._name_changes if each[0].parent != directory]

    def _node(self, path: Path) -> _Node:
        if path not in self._nodes:
            raise _error(errno.ENOENT)
        return self._nodes[path]

    def _name(self, path: Path, node: _Node | None) -> None:
        _set_name(self._nodes, path, node)
        self._name_changes.append((path, node))


def _set_name(names: dict[Path, _Node], path: Path, node: _Node | None) -> None:
    if node is None:
        names.pop(path, None)
    else:
        names[path] = node


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))
