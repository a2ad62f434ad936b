"""`holdfast restore`: turn a backup into a data directory again.

While a restore is under way the target is locked. Its file `format` holds a text that a server
refuses to start on, and `restoring` names the backup, so that an interrupted restore can be run
again and continues. The real `format` is written last.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import closing
from pathlib import Path
from typing import Annotated, Self

import msgspec
from cyclopts import Parameter

from holdfast.cli.backup import (
    BackupUrl,
    careful,
    contents,
    open_place,
    report,
)
from holdfast.cli.config import NO_FLAGS, AsJson, ConfigFile, SettingFlags, load_settings
from holdfast.cli.terminal import progress
from holdfast.clock import Clock, SystemClock
from holdfast.errors import DataDirectoryLockedError, SettingsError
from holdfast.log.directory import (
    FILE_MODE,
    FORMAT,
    UNFINISHED_FORMAT,
    Files,
    make_directory,
    write_file,
    write_holder,
)
from holdfast.objects.store import ObjectStore
from holdfast.settings import Settings
from holdfast.storage.backup import Restore
from holdfast.storage.manifest import Manifest, newest, read_manifest
from holdfast.storage.open_objects import open_objects, probe
from holdfast.subscriptions.keys import KEYS_FILE


def restore(
    url: BackupUrl,
    /,
    *,
    backup: Annotated[str, Parameter(help="Id of the backup. (default the newest)")] = "",
    json: AsJson = False,
    flags: SettingFlags = NO_FLAGS,
    config: ConfigFile = None,
) -> None:
    """Restore a backup into an empty data directory and an empty object store.

    An interrupted restore can be run again and continues where it stopped.
    Afterwards start the server with the same --data-dir and --store.
    """
    settings = load_settings(config, flags)
    path = settings.server.data_dir
    with careful():
        place = open_place(settings.storage, url)
        manifest = read_manifest(place, backup) if backup else newest(place)
        target = open_objects(settings.storage, path / "objects")
        copied = _restore(manifest, place, target, path)
    document: dict[str, object] = {
        "url": place.url,
        "id": manifest.id,
        "data_dir": str(path.resolve()),
        "store": target.url,
        "position": manifest.position,
        "streams": manifest.streams,
        "log_appends": manifest.log_appends,
        "packs": len(manifest.packs),
        "snapshots": len(manifest.snapshots),
        "bytes": manifest.size_bytes,
        **copied,
    }
    line = (
        f"Restored backup {manifest.id} into {path}: position {manifest.position}, "
        f"{contents(manifest)}. Start the server with: {_serve_command(settings)}"
    )
    report(document, line, as_json=json)


def _restore(
    manifest: Manifest, place: ObjectStore, target: ObjectStore, path: Path
) -> dict[str, int]:
    """Do what earlier attempts have not done, and return how much was copied."""
    directory = UnfinishedDirectory.open(path, manifest.id, target.url, SystemClock())
    with closing(directory):
        if directory.is_finished:
            directory.finish()
            return {"packs_copied": 0, "snapshots_copied": 0, "bytes_copied": 0}
        probe(target)
        running = Restore(manifest, place, target, directory.identity)
        running.claim_store()
        shared_bytes = running.find_missing()
        with progress("copying packs and snapshots", shared_bytes) as advance:
            running.copy_packs(advance)
            running.copy_snapshots(advance)
        own_bytes = manifest.size_bytes - manifest.shared_bytes
        with progress("copying catalog and log", own_bytes) as advance:
            running.copy_catalog(directory.catalog_path, advance)
            make_directory(directory.log_path)
            running.copy_log(directory.log_path, advance)
            running.copy_keys(path / KEYS_FILE, advance)
        directory.finish()
    return {
        "packs_copied": len(running.missing.packs),
        "snapshots_copied": len(running.missing.snapshots),
        "bytes_copied": shared_bytes + own_bytes,
    }


def _serve_command(settings: Settings) -> str:
    command = f"holdfast serve --data-dir {settings.server.data_dir}"
    return f"{command} --store {settings.storage.store}" if settings.storage.store else command


# Files that an empty target may have: an old lock, and the directory of a fresh file system.
_IGNORED = frozenset({"lock", "lost+found", "format.new", "restoring.new"})


class _Mark(msgspec.Struct):
    """The content of the file `restoring`."""

    backup: str
    store: str
    identity: str


class UnfinishedDirectory:
    """The target of a restore, held until `close`."""

    def __init__(self, path: Path, lock: int, mark: _Mark, *, is_finished: bool) -> None:
        self.path = path
        self.catalog_path = path / "catalog.sqlite"
        self.log_path = path / "log"
        # The id in the marker of its object store.
        self.identity = mark.identity
        # An earlier attempt did everything except removing its mark.
        self.is_finished = is_finished
        self._lock = lock

    @classmethod
    def open(cls, path: Path, backup: str, store: str, clock: Clock) -> Self:
        """Make, lock and mark the directory; raises unless it is empty or marked the same."""
        mark = _Mark(backup, store, f"{clock.random_u64():016x}")
        # Check before changing anything, and again under the lock.
        _found_mark(path, mark)
        make_directory(path)
        lock = _lock(path)
        try:
            found = _found_mark(path, mark)
            if found is None:
                write_file(path / "format", UNFINISHED_FORMAT.encode())
                write_file(path / "restoring", msgspec.json.encode(mark))
            is_finished = found is not None and _format(path) == FORMAT
        except BaseException:
            os.close(lock)
            raise
        return cls(path, lock, found or mark, is_finished=is_finished)

    def finish(self) -> None:
        """Turn the complete directory into a data directory."""
        files = Files()
        if not self.is_finished:
            files.sync_directory(self.log_path)
            files.sync_directory(self.path)
            write_file(self.path / "format", FORMAT.encode())
        (self.path / "restoring").unlink()
        files.sync_directory(self.path)

    def close(self) -> None:
        write_holder(self._lock, "")
        os.close(self._lock)


def _lock(path: Path) -> int:
    """Take the server's lock, so that no server starts meanwhile."""
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DataDirectoryLockedError(
            f"{path} is in use by a server or another restore. Choose another with --data-dir."
        ) from None
    write_holder(descriptor, str(os.getpid()))
    return descriptor


def _format(path: Path) -> str | None:
    try:
        return (path / "format").read_text("utf-8", "replace")
    except FileNotFoundError:
        return None


def _found_mark(path: Path, wanted: _Mark) -> _Mark | None:
    """The mark of an earlier attempt at this restore; None if the directory is empty or missing."""
    try:
        found = msgspec.json.decode((path / "restoring").read_bytes(), type=_Mark)
    except FileNotFoundError:
        _check_empty(path)
        return None
    except msgspec.DecodeError as error:
        raise SettingsError(
            f"{path / 'restoring'} is damaged: {error}. Empty the directory and start again."
        ) from None
    if (found.backup, found.store) != (wanted.backup, wanted.store):
        raise SettingsError(
            f"{path} holds an unfinished restore of backup {found.backup} with the object store "
            f"{found.store}. Continue it with --backup {found.backup}, or empty both and start "
            "again."
        )
    return found


def _check_empty(path: Path) -> None:
    if not path.exists():
        return
    names = {each.name for each in path.iterdir()} - _IGNORED
    if names == {"format"} and _format(path) == UNFINISHED_FORMAT:
        return
    if names:
        raise SettingsError(
            f"{path} is not empty: it holds {min(names)!r}, for example. A backup can be restored "
            "only into an empty directory; choose another with --data-dir."
        )
