"""Open the object store that the settings name, find out at start whether it works, and claim it.

`s3://` takes the settings that start with `s3_`, and for those that are empty the `AWS_*`
variables. `gs://` and `az://` are left to obstore, which reads `GOOGLE_APPLICATION_CREDENTIALS`
(or `GOOGLE_SERVICE_ACCOUNT`), and `AZURE_STORAGE_ACCOUNT_NAME` with `AZURE_STORAGE_ACCOUNT_KEY`,
`AZURE_STORAGE_SAS_KEY`, or `AZURE_CLIENT_ID`, `AZURE_CLIENT_SECRET` and `AZURE_TENANT_ID`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import msgspec
from obstore.exceptions import BaseError

from holdfast.errors import ObjectMissingError, SettingsError, StoreError, UnknownFormatError
from holdfast.storage.buckets import bucket_connection
from holdfast.storage.directory_objects import DirectoryObjects, PooledRanges
from holdfast.storage.obstore_errors import credential_advice, explained
from holdfast.storage.obstore_objects import PROBING, AsyncRanges, ObstoreObjects
from holdfast.storage.snapshot_store import PART_BYTES

if TYPE_CHECKING:
    from holdfast.settings import StorageSettings
    from holdfast.storage.catalog_writer import CatalogWriter
    from holdfast.storage.objects import ObjectStore, RangeReader

MARKER: Final = "holdfast-store.json"
FORMAT_VERSION: Final = 1
_PROBE: Final = "holdfast-probe"


class _Marker(msgspec.Struct):
    """What the marker says. Later formats may add to it, so other fields are passed over."""

    format: int
    id: str = ""


def open_objects(storage: StorageSettings, default_directory: Path) -> ObjectStore:
    """The store for packs. Nothing is asked of it or written to it yet."""
    directory = _directory(storage, default_directory)
    if directory is not None:
        return DirectoryObjects(directory)
    try:
        return ObstoreObjects(storage.store, bucket_connection(storage, os.environ))
    except (BaseError, OSError) as error:
        raise _unusable(error, storage.store) from None


def open_uploads(storage: StorageSettings, default_directory: Path) -> ObjectStore:
    """The same store for snapshots, of which several are uploaded at once."""
    store = open_objects(storage, default_directory)
    return store.with_parts(PART_BYTES) if isinstance(store, ObstoreObjects) else store


def open_ranges(storage: StorageSettings, default_directory: Path) -> RangeReader:
    """The same store for reads on the event loop."""
    directory = _directory(storage, default_directory)
    if directory is not None:
        return PooledRanges(DirectoryObjects(directory))
    try:
        return AsyncRanges(storage.store, bucket_connection(storage, os.environ))
    except (BaseError, OSError) as error:
        raise _unusable(error, storage.store) from None


def probe(store: ObjectStore) -> None:
    """List, write and remove once, within seconds.

    A SettingsError says what has to be changed before this can work; a StoreError, that the store
    may yet come back.
    """
    if isinstance(store, ObstoreObjects):
        store = store.with_patience(PROBING)
    try:
        next(store.list(), None)
        store.put(_PROBE, b"")
        store.remove(_PROBE)
    except StoreError as error:
        if error.advice:
            raise SettingsError(f"{error.message} {error.advice}") from None
        raise


def claim(store: ObjectStore, identity: str) -> str:
    """Mark an unmarked store as the one of `identity`; whose store it is in any case."""
    try:
        text = store.read(MARKER)
    except ObjectMissingError:
        store.create(MARKER, msgspec.json.encode(_Marker(FORMAT_VERSION, identity)))
        # Read again: another server may have been faster.
        text = store.read(MARKER)
    try:
        marker = msgspec.json.decode(text, type=_Marker)
    except msgspec.DecodeError:
        marker = _Marker(0)
    if marker.format > FORMAT_VERSION:
        raise UnknownFormatError(
            f"{store.url} is in format {marker.format}; this version knows {FORMAT_VERSION}."
        )
    if marker.format != FORMAT_VERSION or not marker.id:
        raise UnknownFormatError(f"{MARKER} in {store.url} is not a marker of Holdfast.")
    return marker.id


def store_owner(store: ObjectStore) -> str:
    """The mark of a store that packs are flushed to; empty if it has none."""
    try:
        store.size(MARKER)
    except ObjectMissingError:
        return ""
    return claim(store, "")


def take_ownership(catalog: CatalogWriter, store: ObjectStore, new_identity: str) -> None:
    """See that the store belongs to the catalog, or claim an empty one; raise if it is not ours.

    Two data directories in one store would collect one another's packs as garbage, and so would a
    server the packs of backups. The catalog knows first: a crash in between leaves no orphan mark.
    """
    owner, known = store_owner(store), str(catalog.fact("store"))
    if owner and owner != known:
        raise SettingsError(
            f"The object store {store.url} belongs to another data directory. Set 'store' to the "
            "one that this data was flushed to; if it is that one and only the catalog was lost, "
            "run 'holdfast check --repair'."
        )
    if owner:
        return
    if not catalog.packs("TRUE"):
        for prefix in ("packs/", "backups/"):
            if next(store.list(prefix), None) is not None:
                raise SettingsError(
                    f"The object store {store.url} holds {prefix.rstrip('/')} that are not of this "
                    "data directory. Set 'store' to an empty place, such as another prefix."
                )
    if not known:
        catalog.set_fact("store", new_identity)
        known = new_identity
    if claim(store, known) != known:
        raise SettingsError(f"The object store {store.url} was just claimed by another server.")


def _directory(storage: StorageSettings, default: Path) -> Path | None:
    """The directory that the setting names, or None if it names a bucket."""
    if not storage.store:
        return default
    if storage.store.startswith("file:"):
        return Path(unquote(urlsplit(storage.store).path))
    return None if "://" in storage.store else Path(storage.store).expanduser()


def _unusable(error: Exception, url: str) -> SettingsError:
    """What cannot even be opened lacks a part of its credentials."""
    words = explained(error, url, "").message
    return SettingsError(f"{words} {credential_advice(url)}")
