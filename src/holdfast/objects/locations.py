"""Where an object store is, as plain values that can be sent to workers, and how to open it.

For `s3://`, empty values of the location come from the `AWS_*` variables. `gs://` and `az://` are
left to obstore, which reads `GOOGLE_APPLICATION_CREDENTIALS` (or `GOOGLE_SERVICE_ACCOUNT`), and
`AZURE_STORAGE_ACCOUNT_NAME` with `AZURE_STORAGE_ACCOUNT_KEY`, `AZURE_STORAGE_SAS_KEY`, or
`AZURE_CLIENT_ID`, `AZURE_CLIENT_SECRET` and `AZURE_TENANT_ID`.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote_to_bytes, urlsplit

from obstore.exceptions import BaseError

from holdfast.errors import SettingsError
from holdfast.objects.bucket_objects import (
    AsyncRanges,
    ObstoreObjects,
    bucket_connection,
    credential_advice,
    explained,
)
from holdfast.objects.directory_objects import DirectoryObjects, PooledRanges
from holdfast.protocol.names import clean_endpoint, clean_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.objects.store import ObjectStore, RangeReader


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A path, `file:///path`, or a bucket by `s3://`, `gs://` or `az://`.

    The other fields are for S3 only. Empty ones come from the environment of the process that
    opens the store.
    """

    url: str
    endpoint: str = ""
    region: str = ""
    addressing: Literal["auto", "path", "virtual"] = "auto"
    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)

    def checked(self) -> StoreLocation:
        """The location in its canonical form; a SettingsError if it is not a valid one."""
        if not self.url:
            raise SettingsError("store: expected a path or a URL, got nothing")
        if bool(self.access_key_id) != bool(self.secret_access_key):
            raise SettingsError("an S3 access key needs its id and its secret")
        if self.session_token and not self.access_key_id:
            raise SettingsError("an S3 session token needs the access key that it belongs to")
        try:
            url = clean_store(self.url)
        except ValueError as error:
            raise SettingsError(f"store: {error}, got {self.url!r}") from None
        try:
            endpoint = clean_endpoint(self.endpoint)
        except ValueError as error:
            raise SettingsError(f"s3_endpoint: {error}, got {self.endpoint!r}") from None
        return replace(self, url=url, endpoint=endpoint)


def open_store(location: StoreLocation) -> ObjectStore:
    """The store at a location. No request is sent and nothing is written yet."""
    location = location.checked()
    directory = _directory(location.url)
    if directory is not None:
        return DirectoryObjects(directory)
    with _usable(location.url):
        return ObstoreObjects(location.url, bucket_connection(location, os.environ))


def open_range_reader(location: StoreLocation) -> RangeReader:
    """The same store for reads on the event loop."""
    location = location.checked()
    directory = _directory(location.url)
    if directory is not None:
        return PooledRanges(DirectoryObjects(directory))
    with _usable(location.url):
        return AsyncRanges(location.url, bucket_connection(location, os.environ))


def _directory(url: str) -> Path | None:
    """The directory that a URL names, or None if it names a bucket."""
    if url.startswith("file:"):
        return Path(os.fsdecode(unquote_to_bytes(urlsplit(url).path)))
    return None if "://" in url else Path(url).expanduser()


@contextmanager
def _usable(url: str) -> Iterator[None]:
    """A store that cannot even be opened lacks part of its credentials."""
    try:
        yield
    except (BaseError, OSError) as error:
        message = explained(error, url, "").message
        raise SettingsError(f"{message} {credential_advice(url)}") from None
