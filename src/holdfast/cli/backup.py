"""`holdfast backup`: copy a data directory to a backup location, even while a server uses it."""

from __future__ import annotations

import json as json_module
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.config import NO_FLAGS, AsJson, ConfigFile, SettingFlags, load_settings
from holdfast.cli.terminal import as_bytes, progress
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, SettingsError, StoreError, UnknownFormatError
from holdfast.log.directory import FORMAT, Files
from holdfast.log.end import EndFile
from holdfast.log.export import export_log, find_last_segment
from holdfast.objects.store import ObjectStore
from holdfast.settings import Settings, StorageSettings, all_settings
from holdfast.storage.backup import Backup
from holdfast.storage.manifest import FoundBackup, Manifest, find_backups
from holdfast.storage.open_objects import open_objects, probe
from holdfast.subscriptions.keys import KEYS_FILE

BackupUrl = Annotated[
    str,
    Parameter(
        help="Where the backups are: a directory, s3://bucket/prefix, gs://bucket/prefix or "
        "az://container/prefix. The s3_* settings and AWS_* variables apply here too."
    ),
]


def open_place(settings: StorageSettings, url: str) -> ObjectStore:
    """Open the store at a URL with the same credentials as the server's own store."""
    (setting,) = (item for item in all_settings() if item.name == "store")
    try:
        store = setting.convert(url, lax=True)
    except ValueError as error:
        raise SettingsError(f"{url!r} cannot hold backups: {error}") from None
    if not store:
        raise SettingsError("the location of the backups is missing: name a directory or a URL")
    return open_objects(replace(settings, store=store), Path(store))


@contextmanager
def careful() -> Iterator[None]:
    """Clean up after SIGTERM as after Ctrl-C, and report what to change if a store fails."""

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except StoreError as error:
        raise HoldfastError(f"{error.message} {error.advice}".strip()) from None
    except OSError as error:
        # Stores raise StoreError, so this is about a local file.
        raise HoldfastError(f"{error.filename or 'A file'}: {error.strerror or error}.") from error
    finally:
        signal.signal(signal.SIGTERM, before)


def report(document: Mapping[str, object], line: str, *, as_json: bool) -> None:
    print(json_module.dumps(document, ensure_ascii=False) if as_json else line, flush=True)


def contents(manifest: Manifest) -> str:
    """A one-line summary of a backup."""
    log_bytes = sum(segment.size_bytes for segment in manifest.log)
    return (
        f"{manifest.streams} streams, {len(manifest.packs)} packs "
        f"({as_bytes(manifest.pack_bytes)}), {len(manifest.snapshots)} snapshots "
        f"and a log of {manifest.log_appends} appends ({as_bytes(log_bytes)})"
    )


def backup(
    url: BackupUrl,
    /,
    *,
    show: Annotated[
        bool, Parameter(name="--list", negative="", help="List the existing backups instead.")
    ] = False,
    json: AsJson = False,
    flags: SettingFlags = NO_FLAGS,
    config: ConfigFile = None,
) -> None:
    """Back up the data directory; a server may be using it meanwhile.

    Pass the server's own settings (--config, --data-dir, --store). Packs that are
    already in the backup location are not copied again.
    """
    settings = load_settings(config, flags)
    with careful():
        place = open_place(settings.storage, url)
        if show:
            _list(place, as_json=json)
            return
        _check_directory(settings)
        probe(place)
        made, copied = _back_up(settings, place)
    document = {"url": place.url, **_described(made), **copied}
    line = (
        f"Backup {made.id} at {place.url}: position {made.position}, {contents(made)}; "
        f"{as_bytes(copied['bytes_copied'])} copied, with {copied['packs_copied']} new packs "
        f"and {copied['snapshots_copied']} new snapshots."
    )
    report(document, line, as_json=json)


def _check_directory(settings: Settings) -> None:
    """Raise unless this is a data directory in a format that this version reads."""
    path = settings.server.data_dir
    if settings.server.durability == "memory":
        raise SettingsError('A server with durability "memory" has no data directory to back up.')
    try:
        found = (path / "format").read_text("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        raise HoldfastError(
            f"{path} is not a Holdfast data directory. Name the server's with --data-dir."
        ) from None
    if found != FORMAT:
        raise UnknownFormatError(
            f"The data directory {path} has the format {found.strip()[:40]!r}, and this version "
            f"of Holdfast reads {FORMAT.strip()!r}. Use the version that wrote it, or a newer one."
        )


def _back_up(settings: Settings, place: ObjectStore) -> tuple[Manifest, dict[str, int]]:
    path: Path = settings.server.data_dir
    clock = SystemClock()
    source = open_objects(settings.storage, path / "objects")
    log_path = path / "log"
    files, recorded = Files(), EndFile(Files(), log_path)
    # Read first: a server that stops meanwhile records an end that the copy may not reach.
    end = recorded.read()
    with Backup(path / "catalog.sqlite", source, place, clock) as running:
        with progress("copying the log", None) as advance:
            has_log = log_path.is_dir()
            segments = export_log(files, log_path, clock, running.flushed) if has_log else ()
            running.copy_log(segments, advance)
        with progress("copying the catalog", None) as advance:
            running.copy_catalog(advance)
        last_segment = find_last_segment(files, log_path) if has_log else 0
        recorded.check(end, last_segment, running.position)
        copied_bytes = running.find_missing()
        with progress("copying packs and snapshots", copied_bytes) as advance:
            running.copy_packs(advance)
            running.copy_snapshots(advance)
        running.copy_keys(path / KEYS_FILE)
        made = running.finish()
    return made, {
        "packs_copied": len(running.missing.packs),
        "snapshots_copied": len(running.missing.snapshots),
        "bytes_copied": copied_bytes + made.size_bytes - made.shared_bytes,
    }


def _described(made: Manifest) -> dict[str, object]:
    return {
        "id": made.id,
        "created": made.created,
        "holdfast": made.holdfast,
        "position": made.position,
        "streams": made.streams,
        "stored_bytes": made.stored_bytes,
        "log_appends": made.log_appends,
        "packs": len(made.packs),
        "snapshots": len(made.snapshots),
        "bytes": made.size_bytes,
    }


def _list(place: ObjectStore, *, as_json: bool) -> None:
    found = find_backups(place)
    if as_json:
        entries = [
            _described(each.manifest) if each.manifest else {"id": each.id, "error": each.trouble}
            for each in found
        ]
        print(json_module.dumps(entries, ensure_ascii=False))
    elif found:
        print(f"{'backup':<24}{'streams':>10}{'packs':>8}{'size':>12}")
        for each in found:
            print(_row(each))
    else:
        print(f"There is no backup at {place.url}.")


def _row(found: FoundBackup) -> str:
    made = found.manifest
    if made is None:
        return f"{found.id:<24} {found.trouble}"
    size = as_bytes(made.size_bytes)
    return f"{made.id:<24}{made.streams:>10}{len(made.packs):>8}{size:>12}"
