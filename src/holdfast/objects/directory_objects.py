"""Objects as files below a directory, durable like the log's.

obstore's own local store is not used here: it never syncs, and renames before anybody could, so
that after a power failure an object could be there by name and empty, which a rebuild of the
catalog would take for damage. Here a file is synced before it gets its name, and its directory
after.
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
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError, StoreError
from holdfast.objects.store import ObjectInfo, closing, cut_short, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

# Where files are written before they get their names; no object can have this name.
UNFINISHED: Final = ".unfinished"
_READ_THREADS: Final = 8
# Smaller parts are quicker to copy than to map.
_MAPPED_BYTES_MIN: Final = 1024 * 1024
# Linux 5.14 and later; Python has no name for it.
_POPULATE_READ: Final = 22
# What an operator can mend. A full disk or a failing one is not among them: it may get better.
_OURS_TO_CHANGE: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT}
)
_ADVICE: Final = "Set `store` to a directory that the server may write to."
# macOS keeps what was synced in the drive's cache unless told otherwise.
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
    """At most `size` bytes from byte `at` on."""
    # One call without a buffer in between is all it takes, but for huge parts.
    data = os.pread(descriptor, size, at)
    while 0 < len(data) < size:
        more = os.pread(descriptor, size - len(data), at + len(data))
        if not more:
            break
        data += more
    return data


def _mapped(descriptor: int, at: int, size: int) -> memoryview | None:
    """These bytes without a copy of them, as they lie in memory; None where that cannot be had.

    Objects never change, and one that is removed stays for whoever has it open. All of it is read
    now: a disk that fails is an error then, and not a signal when the bytes are looked at.
    """
    before = at % mmap.ALLOCATIONGRANULARITY
    try:
        mapped = mmap.mmap(
            descriptor, before + size, mmap.MAP_PRIVATE, mmap.PROT_READ, offset=at - before
        )
        mapped.madvise(_POPULATE_READ)
    except (OSError, ValueError, AttributeError):
        # The file ends first, or this system knows nothing of it.
        return None
    return memoryview(mapped)[before:]


class DirectoryObjects:
    """An object store in a local directory, which is made when the first object is put."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.url = self.root.as_uri()
        self._known: set[Path] = set()

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        """Write the file, sync it, give it its name."""
        self.put_parts(name, [data])

    def put_parts(self, name: str, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        """The same, part by part."""
        with self._explained(name):
            final = self._place(name)
            with self._unfinished(parts) as path:
                path.replace(final)
                _sync_directory(final.parent)

    def put_many(self, objects: Sequence[tuple[str, bytes]]) -> None:
        """Several small objects at once; if it raises, each of them may be there or not.

        All are written before the first is synced, and named before the first directory is: what
        the file system does for one sync, it has done for most of the others then.
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
        """The same, with a link instead of a renaming: it fails if the name is taken."""
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
        """Read a part of the file."""
        with self._opened(name) as descriptor:
            if size is None:
                size = max(0, os.fstat(descriptor).st_size - at)
            return _read(descriptor, at, size)

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        """Read parts of the file, one after the other; large ones stay in the system's cache."""
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
        """The length of the file."""
        with self._explained(name, reading=True):
            path = self._path(name)
            if path.is_dir():
                raise FileNotFoundError
            return path.stat().st_size

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Walk the directory; one level of names is in memory at a time."""
        with self._explained(prefix):
            yield from self._walk(self.root / prefix, prefix)

    def remove(self, name: str) -> None:
        """Remove the file. Its directory stays, and is not synced: it may be removed again."""
        with self._explained(name), suppress(FileNotFoundError, NotADirectoryError):
            self._path(name).unlink()

    def remove_unfinished(self, before_ms: int) -> int:
        """Remove files that a killed process did not get to name."""
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
        """A descriptor of the file, for reading."""
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
        """A synced file without its name, which is gone afterwards."""
        with self._written(parts) as (descriptor, path):
            _sync(descriptor)
            yield path

    @contextmanager
    def _written(
        self, parts: Iterable[bytes | bytearray | memoryview]
    ) -> Iterator[tuple[int, Path]]:
        """A file without its name, open and not synced yet, which is gone afterwards."""
        directory = self.root / UNFINISHED
        self._make_directory(directory)
        descriptor, name = tempfile.mkstemp(dir=directory)
        path = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fchmod(descriptor, 0o640)
                yield descriptor, path
        finally:
            path.unlink(missing_ok=True)

    def _place(self, name: str) -> Path:
        """Where the object goes, in a directory that is there."""
        path = self._path(name)
        self._make_directory(path.parent)
        return path

    def _make_directory(self, directory: Path) -> None:
        """Make a directory whose own name is durable, and so are those above it.

        One that exists may have been made by a process that was killed before it synced, so each
        is synced once whether it is new or not, up to the root, and beyond it those that were new.
        """
        if directory in self._known:
            return
        above = [directory, *directory.parents]
        made = [each for each in above if not each.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        inside = above[: above.index(self.root)]
        for each in dict.fromkeys(each.parent for each in [*inside, *made]):
            _sync_directory(each)
        self._known.add(directory)

    @contextmanager
    def _explained(self, name: str, *, reading: bool = False) -> Iterator[None]:
        """Turn what the operating system says into errors of ours."""
        try:
            yield
        except OSError as error:
            code = error.errno
            if reading and code in {None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR}:
                raise missing(self.url, name) from None
            # Somebody may have removed a directory: the next put looks again.
            self._known.clear()
            reason = error.strerror or str(error)
            at = f" at {name!r}" if name else ""
            raise StoreError(
                f"The object store {self.url} fails{at}: {reason}.",
                _ADVICE if code in _OURS_TO_CHANGE else "",
            ) from None


class PooledRanges:
    """A range reader over a store that blocks: a few threads do the waiting."""

    def __init__(self, store: DirectoryObjects) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(_READ_THREADS, "range-reader")
        self._under_way: set[asyncio.Future[bytes]] = set()
        self._closed = False

    def read(
        self, name: str, at: int, size: int, done: Callable[[bytes | HoldfastError], None]
    ) -> None:
        """Read in a thread."""
        loop = asyncio.get_running_loop()
        if self._closed:
            loop.call_soon(done, closing(self._store.url))
            return
        future = loop.run_in_executor(self._pool, self._store.read, name, at, size)
        self._under_way.add(future)
        future.add_done_callback(partial(self._finish, done))

    def close(self) -> None:
        """Answer reads under way with an error; their threads end by themselves."""
        self._closed = True
        for future in self._under_way:
            future.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _finish(
        self, done: Callable[[bytes | HoldfastError], None], future: asyncio.Future[bytes]
    ) -> None:
        self._under_way.discard(future)
        if future.cancelled():
            done(closing(self._store.url))
            return
        error = future.exception()
        if error is None:
            done(future.result())
        elif isinstance(error, HoldfastError):
            done(error)
        else:
            done(HoldfastError(f"Reading from {self._store.url} failed: {error!r}."))
