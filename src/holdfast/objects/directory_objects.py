"""Objects as files in a directory, as durable as the log.

obstore's own local store never syncs and renames at once, so a power failure could leave an empty
object under its final name, which a rebuild of the catalog would report as damage. Here a file is
synced before it gets its name, and its directory after that.

Files and directories are accessible to their owner alone, whatever the umask allows.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import mmap
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import HoldfastError, StoreError
from holdfast.objects.store import FutureRanges, ObjectInfo, cut_short, missing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Where files are written before they are renamed; no object may have this name.
UNFINISHED: Final = ".unfinished"
_READ_THREADS: Final = 8
# What a thread reads at a time: few, because the disk may have to be waited for.
_GROUP_READS_MAX: Final = 4
# Smaller parts are quicker to copy than to map.
_MAPPED_BYTES_MIN: Final = 1024 * 1024
# Linux 5.14 and later; Python has no name for it.
_POPULATE_READ: Final = 22
# Errors an operator has to fix. Full and failing disks may recover by themselves.
_NEEDS_OPERATOR: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT}
)
_ADVICE: Final = "Set `store` to a directory that the server may write to."
# On macOS, fsync leaves data in the drive's cache.
_FULL_SYNC: Final = getattr(fcntl, "F_FULLFSYNC", None)


def _sync(descriptor: int) -> None:
    if _FULL_SYNC is not None:
        fcntl.fcntl(descriptor, _FULL_SYNC)
    else:
        os.fsync(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _read(descriptor: int, at: int, size: int) -> bytes:
    # One call is enough except for huge parts.
    data = os.pread(descriptor, size, at)
    while 0 < len(data) < size:
        more = os.pread(descriptor, size - len(data), at + len(data))
        if not more:
            break
        data += more
    return data


def _mapped(descriptor: int, at: int, size: int) -> memoryview | None:
    """The bytes as a memory map, without a copy; None if that is not possible.

    Objects never change, and a removed file stays readable while it is mapped. Everything is read
    now, so that a failing disk raises an error here and not a signal when the bytes are used.
    """
    before = at % mmap.ALLOCATIONGRANULARITY
    try:
        mapped = mmap.mmap(
            descriptor, before + size, mmap.MAP_PRIVATE, mmap.PROT_READ, offset=at - before
        )
        mapped.madvise(_POPULATE_READ)
    except (OSError, ValueError, AttributeError):
        # The file is too short, or the system does not support it.
        return None
    return memoryview(mapped)[before:]


class DirectoryObjects:
    """An object store in a local directory, which the first put creates."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.url = self.root.as_uri()
        self._known: set[Path] = set()

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self.put_parts(name, [data])

    def put_parts(self, name: str, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        with self._explained(name):
            final = self._place(name)
            with self._unfinished(parts) as path:
                path.replace(final)
                _sync_directory(final.parent)

    def put_many(self, objects: Sequence[tuple[str, bytes]]) -> None:
        """Put several small objects; if it raises, each of them may or may not be there.

        All are written before the first sync, and renamed before the first directory sync: one sync
        does most of the file system's work for the others.
        """
        with self._explained(objects[0][0]), ExitStack() as leftovers:
            finals = [self._place(name) for name, _ in objects]
            files = [leftovers.enter_context(self._written([data])) for _, data in objects]
            for descriptor, _ in files:
                _sync(descriptor)
            for (_, path), final in zip(files, finals, strict=True):
                path.replace(final)
            for directory in {final.parent for final in finals}:
                _sync_directory(directory)

    def create(self, name: str, data: bytes) -> bool:
        """Link instead of rename: it fails if the name is taken."""
        with self._explained(name):
            final = self._place(name)
            with self._unfinished([data]) as path:
                try:
                    final.hardlink_to(path)
                except FileExistsError:
                    return False
                _sync_directory(final.parent)
        return True

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        with self._opened(name) as descriptor:
            if size is None:
                size = max(0, os.fstat(descriptor).st_size - at)
            return _read(descriptor, at, size)

    def read_parts(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read each (at, size) as `read` does."""
        with self._opened(name) as descriptor:
            return [_read(descriptor, at, size) for at, size in ranges]

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        """Read parts of the file; large ones are mapped and stay in the system's cache."""
        if not ranges:
            return []
        with self._opened(name) as descriptor:
            found = [
                (_mapped(descriptor, at, size) if size >= _MAPPED_BYTES_MIN else None)
                or memoryview(_read(descriptor, at, size))
                for at, size in ranges
            ]
        if any(len(part) != size for part, (_, size) in zip(found, ranges, strict=True)):
            raise cut_short(self.url, name)
        return found

    def size(self, name: str) -> int:
        with self._explained(name, reading=True):
            path = self._path(name)
            if path.is_dir():
                raise FileNotFoundError
            return path.stat().st_size

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Walk the directory, with one level of names in memory at a time."""
        with self._explained(prefix):
            yield from self._walk(self.root / prefix, prefix)

    def remove(self, name: str) -> None:
        """Remove the file. The directory is not synced: a file that reappears is removed again."""
        with self._explained(name), suppress(FileNotFoundError, NotADirectoryError):
            self._path(name).unlink()

    def remove_unfinished(self, before_ms: int) -> int:
        """Remove files that a killed process left without a name."""
        removed = 0
        with self._explained(UNFINISHED), suppress(FileNotFoundError):
            for path in (self.root / UNFINISHED).iterdir():
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime_ns // 1_000_000 < before_ms:
                        path.unlink()
                        removed += 1
        return removed

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        with self._explained(name, reading=True):
            descriptor = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def _path(self, name: str) -> Path:
        assert not {"", ".", "..", UNFINISHED} & set(name.split("/")), f"no name: {name!r}"
        return self.root / name

    def _walk(self, directory: Path, prefix: str) -> Iterator[ObjectInfo]:
        try:
            with os.scandir(directory) as entries:
                # With its slash, a directory sorts where the names of its objects do.
                found = sorted((f"{e.name}/" if e.is_dir() else e.name, e) for e in entries)
        except FileNotFoundError:
            return
        for name, entry in found:
            if name.endswith("/"):
                if entry.name != UNFINISHED:
                    yield from self._walk(directory / entry.name, prefix + name)
                continue
            with suppress(FileNotFoundError):  # removed meanwhile
                stat = entry.stat()
                yield ObjectInfo(prefix + name, stat.st_size, stat.st_mtime_ns // 1_000_000)

    @contextmanager
    def _unfinished(self, parts: Iterable[bytes | bytearray | memoryview]) -> Iterator[Path]:
        """A synced temporary file, removed afterwards unless it was renamed."""
        with self._written(parts) as (descriptor, path):
            _sync(descriptor)
            yield path

    @contextmanager
    def _written(
        self, parts: Iterable[bytes | bytearray | memoryview]
    ) -> Iterator[tuple[int, Path]]:
        """The same file, still open and not synced."""
        directory = self.root / UNFINISHED
        self._make_directory(directory)
        descriptor, name = tempfile.mkstemp(dir=directory)
        path = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                yield descriptor, path
        finally:
            path.unlink(missing_ok=True)

    def _place(self, name: str) -> Path:
        """The object's path, in a directory that exists."""
        path = self._path(name)
        self._make_directory(path.parent)
        return path

    def _make_directory(self, directory: Path) -> None:
        """Create a directory and make its name durable, and those of its parents.

        An existing directory may come from a process that was killed before it synced. So each one
        is synced once, new or not, up to the root; above the root only new ones are.
        """
        if directory in self._known:
            return
        above = [directory, *directory.parents]
        made = [each for each in above if not each.exists()]
        for each in reversed(made):
            each.mkdir(0o777 if each in self.root.parents else 0o700, exist_ok=True)
        inside = above[: above.index(self.root)]
        for each in dict.fromkeys(each.parent for each in [*inside, *made]):
            _sync_directory(each)
        self._known.add(directory)

    @contextmanager
    def _explained(self, name: str, *, reading: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            code = error.errno
            if reading and code in {None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR}:
                raise missing(self.url, name) from None
            # A directory may have been removed: the next put checks again.
            self._known.clear()
            reason = error.strerror or str(error)
            at = f" at {name!r}" if name else ""
            raise StoreError(
                f"The object store {self.url} fails{at}: {reason}.",
                _ADVICE if code in _NEEDS_OPERATOR else "",
            ) from None


class _Wanted(NamedTuple):
    name: str
    at: int
    size: int
    found: asyncio.Future[bytes]


class PooledRanges(FutureRanges):
    """A range reader over a blocking store, with a few threads.

    What is requested in one round of the event loop is handed over in groups: that costs more than
    reading from the system's cache does.
    """

    def __init__(self, store: DirectoryObjects) -> None:
        super().__init__(store.url)
        self._store = store
        self._pool = ThreadPoolExecutor(_READ_THREADS, "range-reader")
        self._wanted: list[_Wanted] = []

    def _start(self, name: str, at: int, size: int) -> asyncio.Future[bytes]:
        loop = asyncio.get_running_loop()
        if not self._wanted:
            loop.call_soon(self._hand_over)
        found: asyncio.Future[bytes] = loop.create_future()
        self._wanted.append(_Wanted(name, at, size, found))
        return found

    def _hand_over(self) -> None:
        wanted, self._wanted = self._wanted, []
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        for first in range(0, len(wanted), _GROUP_READS_MAX):
            group = wanted[first : first + _GROUP_READS_MAX]
            work = loop.run_in_executor(self._pool, self._read_group, group)
            work.add_done_callback(partial(_deliver, group))

    def _read_group(self, group: list[_Wanted]) -> list[bytes | HoldfastError]:
        """Read in a thread; neighbours of one object are read from one descriptor."""
        results: list[bytes | HoldfastError] = []
        for name, parts in groupby(group, key=attrgetter("name")):
            ranges = [(each.at, each.size) for each in parts]
            try:
                results += self._store.read_parts(name, ranges)
            except HoldfastError as error:
                results += [error] * len(ranges)
        return results

    def close(self) -> None:
        """Fail pending reads; their threads end by themselves."""
        super().close()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _deliver(group: list[_Wanted], work: asyncio.Future[list[bytes | HoldfastError]]) -> None:
    if work.cancelled():
        return
    error = work.exception()
    results = [error] * len(group) if error is not None else work.result()
    for wanted, result in zip(group, results, strict=True):
        if wanted.found.done():
            continue
        if isinstance(result, BaseException):
            wanted.found.set_exception(result)
        else:
            wanted.found.set_result(result)
