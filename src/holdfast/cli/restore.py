"""`holdfast restore`: a backup becomes a data directory again."""

from contextlib import closing
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
from holdfast.cli.restore_directory import UnfinishedDirectory
from holdfast.clock import SystemClock
from holdfast.objects.store import ObjectStore
from holdfast.settings import Settings
from holdfast.storage.manifest import Manifest, newest, read_manifest
from holdfast.storage.open_objects import open_objects, probe
from holdfast.storage.restore import Restore

__all__ = ["restore"]


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

    What was cut short can be run again and goes on where it was. Start the server with the same
    --data-dir and --store afterwards.
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
        "packs": len(manifest.packs),
        "snapshots": len(manifest.snapshots),
        "bytes": manifest.size_bytes,
        **copied,
    }
    line = (
        f"Restored the backup {manifest.id} into {path}: position {manifest.position}, "
        f"{contents(manifest)}. Start it with: {_serve_command(settings)}"
    )
    say(document, line, as_json=json)


def _restore(
    manifest: Manifest, place: ObjectStore, target: ObjectStore, path: Path
) -> dict[str, int]:
    """Do what an earlier attempt has not done; how much was copied."""
    directory = UnfinishedDirectory.open(path, manifest.id, target.url, SystemClock())
    with closing(directory):
        if directory.is_finished:
            directory.finish()
            return {"packs_copied": 0, "snapshots_copied": 0, "bytes_copied": 0}
        probe(target)
        running = Restore(manifest, place, target, directory.identity)
        running.claim_store()
        shared_bytes = running.find_missing()
        with progress("copying packs and snapshots", shared_bytes) as bar:
            running.copy_packs(bar.advance)
            running.copy_snapshots(bar.advance)
        own_bytes = manifest.size_bytes - manifest.shared_bytes
        with progress("copying catalog and log", own_bytes) as bar:
            running.copy_catalog(directory.catalog_path, bar.advance)
            directory.log_path.mkdir(exist_ok=True)
            running.copy_log(directory.log_path, bar.advance)
        directory.finish()
    return {
        "packs_copied": len(running.missing),
        "snapshots_copied": len(running.missing_snapshots),
        "bytes_copied": shared_bytes + own_bytes,
    }


def _serve_command(settings: Settings) -> str:
    command = f"holdfast serve --data-dir {settings.server.data_dir}"
    return f"{command} --store {settings.storage.store}" if settings.storage.store else command
