"""Open the object store at a place.

`s3://` takes what the place says, and for what is empty there the `AWS_*` variables. `gs://` and
`az://` are left to obstore, which reads `GOOGLE_APPLICATION_CREDENTIALS` (or
`GOOGLE_SERVICE_ACCOUNT`), and `AZURE_STORAGE_ACCOUNT_NAME` with `AZURE_STORAGE_ACCOUNT_KEY`,
`AZURE_STORAGE_SAS_KEY`, or `AZURE_CLIENT_ID`, `AZURE_CLIENT_SECRET` and `AZURE_TENANT_ID`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes, urlsplit

from obstore.exceptions import BaseError

from holdfast.errors import SettingsError
from holdfast.objects.bucket_connection import bucket_connection
from holdfast.objects.directory_objects import DirectoryObjects, PooledRanges
from holdfast.objects.obstore_errors import credential_advice, explained
from holdfast.objects.obstore_objects import AsyncRanges, ObstoreObjects

if TYPE_CHECKING:
    from holdfast.objects.place import StorePlace
    from holdfast.objects.store import ObjectStore, RangeReader


def open_store(place: StorePlace) -> ObjectStore:
    """The store at a place. Nothing is asked of it or written to it yet."""
    place = place.checked()
    directory = _directory(place.url)
    if directory is not None:
        return DirectoryObjects(directory)
    try:
        return ObstoreObjects(place.url, bucket_connection(place, os.environ))
    except (BaseError, OSError) as error:
        raise _unusable(error, place.url) from None


def open_range_reader(place: StorePlace) -> RangeReader:
    """The same store for reads on the event loop."""
    place = place.checked()
    directory = _directory(place.url)
    if directory is not None:
        return PooledRanges(DirectoryObjects(directory))
    try:
        return AsyncRanges(place.url, bucket_connection(place, os.environ))
    except (BaseError, OSError) as error:
        raise _unusable(error, place.url) from None


def _directory(url: str) -> Path | None:
    """The directory that a URL names, or None if it names a bucket."""
    if url.startswith("file:"):
        return Path(os.fsdecode(unquote_to_bytes(urlsplit(url).path)))
    return None if "://" in url else Path(url).expanduser()


def _unusable(error: Exception, url: str) -> SettingsError:
    """What cannot even be opened lacks a part of its credentials."""
    words = explained(error, url, "").message
    return SettingsError(f"{words} {credential_advice(url)}")
