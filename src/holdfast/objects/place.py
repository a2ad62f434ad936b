"""Where an object store is and whose keys open it, as plain values that can be sent to workers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from holdfast.errors import SettingsError
from holdfast.protocol.names import clean_endpoint, clean_store


@dataclass(frozen=True, slots=True)
class StorePlace:
    """An object store: a path, `file:///path`, or a bucket by `s3://`, `gs://` or `az://`.

    The rest is for S3 only. What is empty comes from the environment of the process that opens the
    store.
    """

    url: str
    endpoint: str = ""
    region: str = ""
    addressing: Literal["auto", "path", "virtual"] = "auto"
    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)

    def checked(self) -> StorePlace:
        """The same in the form it is used in; a SettingsError if it can be no store."""
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
