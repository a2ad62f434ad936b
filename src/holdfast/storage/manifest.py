"""The manifest of a backup, and the layout of backups in a store.

    packs/…                              shared by all backups
    snapshots/…                          shared by all backups
    backups/<id>/catalog.sqlite          missing if the server had none yet
    backups/<id>/log/0000000001.seg      missing if the catalog covers everything
    backups/<id>/subscription-keys.json  missing if there are none
    backups/<id>/manifest.json           written last: without it there is no backup

Ids start with the time in UTC, so that they sort by age.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holdfast.errors import HoldfastError, ObjectMissingError, UnknownFormatError

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.format.records import Snapshot
    from holdfast.objects.store import ObjectStore

FORMAT_VERSION: Final = 1
BACKUPS_PREFIX: Final = "backups/"
_MANIFEST: Final = re.compile(r"backups/([0-9A-Za-z-]+)/manifest\.json")
_ID: Final = re.compile(r"[0-9A-Za-z-]+")
_TIME: Final = len("20261115T201500Z")


class CopiedPack(msgspec.Struct, frozen=True):
    """A pack that a backup needs; packs contain their own checksums."""

    name: str
    size_bytes: int


class CopiedObject(CopiedPack, frozen=True):
    """Another object of a backup; the checksum is XXH3-64 in 16 hexadecimal digits."""

    xxh3: str


def copied_snapshot(snapshot: Snapshot) -> CopiedObject:
    """The object of a snapshot, which others may share."""
    size_bytes, checksum = snapshot.whole
    return CopiedObject(snapshot.object, size_bytes, f"{checksum:016x}")


class CopiedSegment(CopiedObject, frozen=True):
    first_position: int
    last_position: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a backup consists of. Later versions may add fields, which are ignored."""

    format: int = FORMAT_VERSION
    id: str
    # The version of Holdfast that made it.
    holdfast: str
    # When it was begun: all that was acknowledged before is in it.
    created: str
    # The last position in the log that is in it.
    position: int
    # The mark of the object store the packs were copied from.
    store: str
    # Of packs and log together; backups of earlier versions counted what was in packs alone.
    streams: int
    stored_bytes: int
    catalog: CopiedObject | None
    log: list[CopiedSegment]
    packs: list[CopiedPack]
    # Their bodies have the checksums that streams and log name.
    snapshots: list[CopiedObject] = []
    # Appends in the log, which are in no pack yet.
    log_appends: int = 0
    # The secret keys of subscriptions.
    keys: CopiedObject | None = None

    @property
    def pack_bytes(self) -> int:
        return sum(pack.size_bytes for pack in self.packs)

    @property
    def shared_bytes(self) -> int:
        """The size of the packs and snapshots, which other backups may share."""
        return self.pack_bytes + sum(snapshot.size_bytes for snapshot in self.snapshots)

    @property
    def size_bytes(self) -> int:
        """The total size, including shared packs and snapshots."""
        files = [each for each in (self.catalog, self.keys) if each is not None]
        return self.shared_bytes + sum(each.size_bytes for each in (*files, *self.log))


class FoundBackup(NamedTuple):
    """A backup in a store; `trouble` says why its manifest cannot be read."""

    id: str
    manifest: Manifest | None
    trouble: str = ""


class _Version(msgspec.Struct):
    format: int


def new_id(clock: Clock, now_ms: int) -> str:
    moment = datetime.fromtimestamp(now_ms // 1000, UTC)
    return f"{moment:%Y%m%dT%H%M%SZ}-{clock.random_u64() & 0xFFFFFF:06x}"


def timestamp(now_ms: int) -> str:
    """RFC 3339 with milliseconds, so that it sorts."""
    moment = datetime.fromtimestamp(now_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{now_ms % 1000:03d}Z"


def backup_prefix(backup: str) -> str:
    return f"{BACKUPS_PREFIX}{backup}/"


def write_manifest(store: ObjectStore, manifest: Manifest) -> None:
    """Write the manifest, once everything it names is durable in the store."""
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    store.put(f"{backup_prefix(manifest.id)}manifest.json", data)


def read_manifest(store: ObjectStore, backup: str) -> Manifest:
    """Raises if there is no such backup or this version cannot read it."""
    text = _read_text(store, backup)
    try:
        version = msgspec.json.decode(text, type=_Version).format
        if 1 <= version <= FORMAT_VERSION:
            return msgspec.json.decode(text, type=Manifest)
    except msgspec.DecodeError as error:
        raise HoldfastError(
            f"The manifest of the backup {backup} at {store.url} is damaged: {error}."
        ) from None
    raise UnknownFormatError(
        f"The backup {backup} at {store.url} has the format {version}, and this version of "
        f"Holdfast reads up to {FORMAT_VERSION}. Use the version that made it, or a newer one."
    )


def _read_text(store: ObjectStore, backup: str) -> bytes:
    if _ID.fullmatch(backup):
        with suppress(ObjectMissingError):
            return store.read(f"{backup_prefix(backup)}manifest.json")
    raise HoldfastError(
        f"There is no backup {backup!r} at {store.url}. "
        "'holdfast backup --list URL' shows those that there are."
    )


def backup_ids(store: ObjectStore) -> list[str]:
    """The ids in a store, oldest first; those of the same second in any order."""
    matches = (_MANIFEST.fullmatch(info.name) for info in store.list(BACKUPS_PREFIX))
    return sorted(match[1] for match in matches if match)


def newest(store: ObjectStore) -> Manifest:
    """The backup that was started last."""
    ids = backup_ids(store)
    if not ids:
        raise HoldfastError(f"There is no backup at {store.url}.")
    same_second = [each for each in ids if each[:_TIME] == ids[-1][:_TIME]]
    return max((read_manifest(store, each) for each in same_second), key=lambda each: each.created)


def find_backups(store: ObjectStore) -> list[FoundBackup]:
    """All backups in a store, oldest first."""
    found = []
    for backup in backup_ids(store):
        try:
            found.append(FoundBackup(backup, read_manifest(store, backup)))
        except HoldfastError as error:
            found.append(FoundBackup(backup, None, error.message))
    return sorted(
        found, key=lambda each: (each.id[:_TIME], each.manifest.created if each.manifest else "")
    )
