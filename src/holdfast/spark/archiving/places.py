"""Where a table is: a directory or a bucket, as driver and executors see it.

Small objects go through the stores that packs are kept in, data files as well if the place is a
bucket. In a directory they are written where they belong and renamed.
"""

from __future__ import annotations

import fcntl
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
from holdfast.spark.archiving.names import CONTROL

_PART_BYTES: Final = 8 * 1024 * 1024
# Copies inside a bucket, each of which the bucket does by itself.
_MOVES_AT_ONCE: Final = 16
_LOCK: Final = "lock"


@dataclass(frozen=True)
class Place:
    """The root of a table. It can be sent to executors, which open it by themselves."""

    store: StoreLocation

    @classmethod
    def of(cls, url: str, endpoint: str, region: str, env: Mapping[str, str]) -> Place:
        """The place that the options name, with the keys of this process's environment.

        Executors are given the keys, as Spark does with those for its own readers of S3.
        """
        found = StoreLocation(url)
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
        """The directory that it is; None for a bucket."""
        url = self.store.url
        if url.startswith("file:"):
            return Path(os.fsdecode(unquote_to_bytes(urlsplit(url).path))).absolute()
        return None if "://" in url else Path(url).expanduser().absolute()

    @property
    def name(self) -> str:
        """How it is called in sentences, and by Delta."""
        return self.store.url if self.directory is None else str(self.directory)

    @property
    def url(self) -> str:
        """As a URL, with no character changed: PyIceberg takes it by the letter."""
        return self.store.url if self.directory is None else f"file://{self.directory}"

    @cached_property
    def objects(self) -> ObjectStore:
        """Its objects by name."""
        return open_store(self.store)

    def __getstate__(self) -> dict[str, object]:
        return {"store": self.store}

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """A file to write; it is durable when the block ends, and not there if that raises."""
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
        """A file to read, as pyarrow takes it."""
        import pyarrow as pa  # noqa: PLC0415 (what only plans needs no Arrow)

        if self.directory is None:
            yield pa.BufferReader(self.objects.read(name))
        else:
            with pa.memory_map(str(self.directory / name)) as file:
                yield file

    def has(self, name: str, size_bytes: int | None = None) -> bool:
        """Whether there is such a file, of that size if it is told."""
        try:
            found = self.objects.size(name)
        except ObjectMissingError:
            return False
        return size_bytes is None or found == size_bytes

    def move(self, moves: Sequence[tuple[str, str]]) -> None:
        """Rename files; those that were renamed before stay as they are."""
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
        """Keep other runs out while the block runs; a ConflictError if one is there.

        False where nobody can be kept out: in a bucket. The lock goes with the process.
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


def _of(env: Mapping[str, str], *names: str) -> str:
    return next((env[name] for name in names if env.get(name)), "")


def busy(name: str) -> ConflictError:
    """The error for two runs at the same time."""
    return ConflictError(
        f"Another run is archiving to {name}: nothing was committed by this one; run it again "
        "when that one has ended."
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
