"""The place of a table: a directory or an S3 bucket that the driver and executors share.

Small objects are written through the object stores that packs use, and so are data files in a
bucket. In a directory, data files are written in place and renamed.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import unquote_to_bytes, urlsplit

import obstore

from holdfast.errors import ConflictError, ObjectMissingError, SettingsError, StoreError
from holdfast.objects.bucket_objects import UPLOADS, bucket_connection, explained
from holdfast.objects.locations import StoreLocation, open_store
from holdfast.objects.store import ObjectStore
from holdfast.spark.archiving.layout import CONTROL

_PART_BYTES: Final = 8 * 1024 * 1024
# Concurrent copies inside a bucket, which the S3 service carries out.
_MOVES_AT_ONCE: Final = 16
_LOCK: Final = "lock"


@dataclass(frozen=True)
class TablePlace:
    """The root of a table. It can be pickled; executors open it themselves."""

    store: StoreLocation

    @classmethod
    def of(cls, url: str, endpoint: str, region: str, env: Mapping[str, str]) -> TablePlace:
        """The place that a job's options name, with the keys of this process's environment.

        The keys are sent to executors, as Spark does with those of its own S3 readers.
        """
        # A relative path is the driver's: executors have other working directories.
        found = StoreLocation(url if "://" in url else str(Path(url).expanduser().absolute()))
        if url.startswith("s3://"):
            found = StoreLocation(
                url,
                endpoint=endpoint or _of(env, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
                region=region or _of(env, "AWS_REGION", "AWS_DEFAULT_REGION"),
                access_key_id=_of(env, "AWS_ACCESS_KEY_ID"),
                secret_access_key=_of(env, "AWS_SECRET_ACCESS_KEY"),
                session_token=_of(env, "AWS_SESSION_TOKEN"),
            )
        elif endpoint or region:
            raise SettingsError("'to_endpoint' and 'to_region' are for places in S3.")
        try:
            found = found.checked()
        except SettingsError as error:
            raise SettingsError(f"'to': {error.message.removeprefix('store: ')}.") from None
        return cls(found)

    @cached_property
    def directory(self) -> Path | None:
        """The directory, or None for a bucket."""
        url = self.store.url
        if url.startswith("file:"):
            return Path(os.fsdecode(unquote_to_bytes(urlsplit(url).path))).absolute()
        return None if "://" in url else Path(url)

    @property
    def name(self) -> str:
        """The name in messages, and for Delta."""
        return self.store.url if self.directory is None else str(self.directory)

    @property
    def url(self) -> str:
        """The URL, without percent-encoding, as PyIceberg wants it."""
        return self.store.url if self.directory is None else f"file://{self.directory}"

    @cached_property
    def objects(self) -> ObjectStore:
        return open_store(self.store)

    def check_shared(self) -> None:
        """Raise on an executor that does not see what the driver has prepared."""
        if self.directory is not None and not (self.directory / CONTROL).is_dir():
            raise StoreError(
                f"'to': an executor does not see {self.name}, where the driver has prepared the "
                "table; the place must be shared by the driver and all executors."
            )

    def s3_options(
        self, endpoint: str, region: str, key_id: str, secret: str, token: str
    ) -> dict[str, str]:
        """How to reach an S3 bucket, under the option names of a library; empty for a directory."""
        if not self.store.url.startswith("s3://"):
            return {}
        given = {
            endpoint: self.store.endpoint,
            region: self.store.region or "us-east-1",
            key_id: self.store.access_key_id,
            secret: self.store.secret_access_key,
            token: self.store.session_token,
        }
        return {name: value for name, value in given.items() if value}

    def __getstate__(self) -> dict[str, object]:
        return {"store": self.store}

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """Open a file to write. It is durable when the block ends, and removed if that raises."""
        if self.directory is None:
            with tempfile.TemporaryFile() as file:
                yield file
                file.seek(0)
                self.objects.put_parts(name, iter(lambda: file.read(_PART_BYTES), b""))
            return
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    @contextmanager
    def reading(self, name: str) -> Iterator[Any]:
        """Open a file for pyarrow to read."""
        import pyarrow as pa  # noqa: PLC0415 (planning needs no Arrow)

        if self.directory is None:
            with _ObjectFile(self.objects, name) as file:
                yield pa.PythonFile(file, "r")
        else:
            with pa.memory_map(str(self.directory / name)) as file:
                yield file

    def has(self, name: str, size_bytes: int | None = None) -> bool:
        """Whether a file exists, with this size if one is given."""
        try:
            found = self.objects.size(name)
        except ObjectMissingError:
            return False
        return size_bytes is None or found == size_bytes

    def move(self, moves: Sequence[tuple[str, str]]) -> None:
        """Rename files, except those that were renamed before."""
        if self.directory is None:
            with ThreadPoolExecutor(_MOVES_AT_ONCE) as pool:
                list(pool.map(self._move_object, moves))
            return
        parents = set()
        for before, after in moves:
            path = self.directory / after
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                (self.directory / before).rename(path)
            except FileNotFoundError:
                if not path.is_file():
                    raise _vanished(before, self.name) from None
            parents.add(path.parent)
        for parent in parents:
            _sync_directory(parent)

    def _move_object(self, move: tuple[str, str]) -> None:
        before, after = move
        bucket = bucket_connection(self.store, os.environ)(UPLOADS)
        try:
            obstore.copy(bucket, before, after)
        except FileNotFoundError:
            if not self.has(after):
                raise _vanished(before, self.name) from None
        except (obstore.exceptions.BaseError, OSError) as error:
            raise explained(error, self.name, before) from None
        self.objects.remove(before)

    def remove_below(self, prefix: str) -> None:
        """Remove everything whose name starts with a prefix that ends in a slash."""
        if self.directory is not None:
            shutil.rmtree(self.directory / prefix, ignore_errors=True)
            return
        for each in list(self.objects.list(prefix)):
            self.objects.remove(each.name)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Lock other runs out during the block; raises ConflictError if one is active.

        Yields False where locks do not exist, as in a bucket. The lock ends with the process.
        """
        if self.directory is None:
            yield False
            return
        path = self.directory / CONTROL / _LOCK
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("ab")
        except OSError as error:
            raise StoreError(f"'to': {self.name} cannot be written: {error.strerror}.") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise busy(self.name) from None
            except OSError:  # a file system without locks
                yield False
                return
            yield True


class _ObjectFile(io.RawIOBase):
    """An object as a file, of which only what is read is fetched."""

    def __init__(self, objects: ObjectStore, name: str) -> None:
        super().__init__()
        self._objects = objects
        self._name = name
        self._size = objects.size(name)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._at)
        size = left if size < 0 else min(size, left)
        found = self._objects.read(self._name, self._at, size) if size else b""
        self._at += len(found)
        return found


def _of(env: Mapping[str, str], *names: str) -> str:
    return next((env[name] for name in names if env.get(name)), "")


def busy(name: str) -> ConflictError:
    """The error for two concurrent runs."""
    return ConflictError(
        f"Another run is archiving to {name}: this one has committed nothing; run it again when "
        "the other one has ended."
    )


def _vanished(file: str, name: str) -> StoreError:
    return StoreError(f"The file {file} of the table at {name} is gone.")


def _sync_directory(path: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
