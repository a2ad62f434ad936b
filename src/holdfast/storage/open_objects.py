"""The object store that the settings name: how it is opened, probed at start, and claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors import ObjectMissingError, SettingsError, StoreError
from holdfast.objects.bucket_objects import PROBING, ObstoreObjects
from holdfast.objects.locations import StoreLocation, open_range_reader, open_store
from holdfast.objects.store import MARKER, encode_marker, read_marker, store_owner
from holdfast.storage.snapshot_store import PART_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.objects.store import ObjectStore, RangeReader
    from holdfast.settings import StorageSettings
    from holdfast.storage.catalog_writer import CatalogWriter

_PROBE: Final = "holdfast-probe"


def store_location(storage: StorageSettings, default_directory: Path) -> StoreLocation:
    """The location in the settings, or the default directory."""
    return StoreLocation(
        url=storage.store or default_directory.absolute().as_uri(),
        endpoint=storage.s3_endpoint,
        region=storage.s3_region,
        addressing=storage.s3_addressing,
        access_key_id=storage.s3_access_key_id,
        secret_access_key=storage.s3_secret_access_key,
        session_token=storage.s3_session_token,
    )


def open_objects(storage: StorageSettings, default_directory: Path) -> ObjectStore:
    """The store for packs. No request is sent yet."""
    return open_store(store_location(storage, default_directory))


def open_uploads(storage: StorageSettings, default_directory: Path) -> ObjectStore:
    """The same store for snapshots, several of which are uploaded at once."""
    store = open_objects(storage, default_directory)
    return store.with_parts(PART_BYTES) if isinstance(store, ObstoreObjects) else store


def open_ranges(storage: StorageSettings, default_directory: Path) -> RangeReader:
    """The same store for reads on the event loop."""
    return open_range_reader(store_location(storage, default_directory))


def probe(store: ObjectStore) -> None:
    """List, write and remove once, within seconds.

    Raises a SettingsError that says what to change, or a StoreError if the store may recover.
    """
    if isinstance(store, ObstoreObjects):
        store = store.with_timeouts(PROBING)
    try:
        next(store.list(), None)
        store.put(_PROBE, b"")
        store.remove(_PROBE)
    except StoreError as error:
        if error.advice:
            raise SettingsError(f"{error.message} {error.advice}") from None
        raise


def claim(store: ObjectStore, identity: str) -> str:
    """Mark an unclaimed store with `identity`; returns the identity of the store's owner."""
    try:
        return read_marker(store)
    except ObjectMissingError:
        store.create(MARKER, encode_marker(identity))
        # Read it back: another server may have been faster.
        return read_marker(store)


def take_ownership(catalog: CatalogWriter, store: ObjectStore, new_identity: str) -> None:
    """Check that the store belongs to the catalog, or claim an empty one; raises otherwise.

    Two data directories in one store would remove each other's packs as garbage, and a server would
    remove those of backups. The catalog is written first: a crash in between leaves no orphaned
    marker.
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
