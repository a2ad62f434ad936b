"""`holdfast backup`: copy a data directory to a place, whether a server is serving it or not."""

import json as json_module
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.backup_place import (
    AsJson,
    BackupUrl,
    careful,
    contents,
    open_place,
    say,
)
from holdfast.cli.flags import NO_FLAGS, ConfigFile, SettingFlags, load_settings
from holdfast.cli.progress import progress
from holdfast.cli.wording import as_bytes
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, SettingsError, UnknownFormatError
from holdfast.log.directory import FORMAT, DiskFiles
from holdfast.log.export import export_log
from holdfast.objects.store import ObjectStore
from holdfast.settings import Settings
from holdfast.storage.backup import Backup
from holdfast.storage.manifest import Found, Manifest, find_backups
from holdfast.storage.open_objects import open_objects, probe

__all__ = ["backup"]


def backup(
    url: BackupUrl,
    /,
    *,
    show: Annotated[
        bool, Parameter(name="--list", negative="", help="List the backups there are instead.")
    ] = False,
    json: AsJson = False,
    flags: SettingFlags = NO_FLAGS,
    config: ConfigFile = None,
) -> None:
    """Copy the data directory to a place, while a server may be serving it.

    Give it the settings of the server (--config, --data-dir, --store). Packs that are at the place
    already are not copied again, so a second backup takes only what is new.
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
    say(document, line, as_json=json)


def _check_directory(settings: Settings) -> None:
    """Refuse what is no data directory, or not one that this version can copy."""
    path = settings.server.data_dir
    if settings.server.durability == "memory":
        raise SettingsError(
            'A server with durability "memory" has no data directory: there is nothing to back up.'
        )
    try:
        found = (path / "format").read_text("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        raise HoldfastError(
            f"{path} is no data directory of Holdfast. Name the server's with --data-dir."
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
    with Backup(path / "catalog.sqlite", source, place, clock) as running:
        with progress("copying the log", None) as bar:
            segments = export_log(DiskFiles(), log_path, clock, running.flushed)
            running.copy_log(segments if log_path.is_dir() else (), bar.advance)
        with progress("copying the catalog", None) as bar:
            running.copy_catalog(bar.advance)
        copied_bytes = running.find_missing()
        with progress("copying packs and snapshots", copied_bytes) as bar:
            running.copy_packs(bar.advance)
            running.copy_snapshots(bar.advance)
        made = running.finish()
    return made, {
        "packs_copied": len(running.copied),
        "snapshots_copied": len(running.copied_snapshots),
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


def _row(found: Found) -> str:
    made = found.manifest
    if made is None:
        return f"{found.id:<24} {found.trouble}"
    size = as_bytes(made.size_bytes)
    return f"{made.id:<24}{made.streams:>10}{len(made.packs):>8}{size:>12}"
