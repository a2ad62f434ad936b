"""What is known of an archived table and its batches, as plain values."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.errors import SettingsError

# Where nothing was archived yet.
BEGINNING: Final = ""


class Identity(msgspec.Struct, frozen=True):
    """Whose table it is, and how it was made; kept with it, and never changed."""

    format: str
    bucket: str
    # The id of the server's store: an address may change.
    store_id: str
    # Which streams: a list, a pattern, or neither.
    streams: list[str]
    stream_pattern: str
    json_as: str
    partition_by: str
    # Where the bucket ended when the table was begun: what was gone by then is not missed.
    begun_at: str = ""
    # What its rows are.
    holds: str = "messages"

    def check(self, wanted: Identity, place: str) -> None:
        """Raise unless a job that wants this may go on with the table."""
        if self.holds != wanted.holds:
            raise SettingsError(
                f"'to': the table at {place} holds {self.holds}, not {wanted.holds}."
            )
        if self.format != wanted.format:
            raise SettingsError(
                f"'format': the table at {place} is one of {self.format}, not {wanted.format}."
            )
        if self.bucket != wanted.bucket:
            raise SettingsError(
                f"'to': the table at {place} is the archive of the bucket {self.bucket!r}, "
                f"not of {wanted.bucket!r}."
            )
        if self.store_id != wanted.store_id:
            raise SettingsError(
                f"'to': the table at {place} is the archive of another server's bucket "
                f"{self.bucket!r} (its store has the id {self.store_id!r}, not "
                f"{wanted.store_id!r})."
            )
        for name in ("streams", "stream_pattern", "json_as", "partition_by"):
            mine, theirs = getattr(self, name), getattr(wanted, name)
            if mine != theirs:
                raise SettingsError(
                    f"{name!r}: the table at {place} was made with {mine!r}, which cannot become "
                    f"{theirs!r}; archive to another place."
                )


class State(msgspec.Struct, frozen=True):
    """How far a table has come."""

    # The cursor up to which the bucket is in it.
    until: str = BEGINNING
    # How often something was committed.
    number: int = 0
    columns: dict[str, str] = {}


class DataFile(msgspec.Struct, frozen=True):
    """A file that an executor wrote; `path` is relative to the table's place."""

    path: str
    # Empty if the table is not partitioned.
    date: str
    rows: int
    size_bytes: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    first_stream_id: str
    last_stream_id: str


class Batch(msgspec.Struct, frozen=True):
    """A stretch of the bucket, (after, until], on its way into the table."""

    number: int
    after: str
    until: str
    # Tells this attempt at it from others.
    attempt: str
