"""What a table is, whatever its format: it takes in each batch once, and knows how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from holdfast.clock import SystemClock
from holdfast.errors import ObjectMissingError, SettingsError, StoreError
from holdfast.spark.archiving.layout import Layout
from holdfast.spark.archiving.names import CONTROL
from holdfast.spark.archiving.places import Place, busy
from holdfast.spark.archiving.state import Batch, DataFile, Identity, State

_IDENTITY: Final = f"{CONTROL}/table.json"
# Where nobody can be kept out, what another run left is taken for dead after a day.
STALE_MS: Final = 86_400_000


@dataclass(frozen=True)
class SmallFile:
    """A file of a table that could be merged with others."""

    path: str
    date: str
    size_bytes: int


class Table(Protocol):
    """A table at a place. One batch at a time is begun, then committed or not."""

    def open(self, *, alone: bool) -> State:
        """Bring what an earlier run began to its end or out of the way; how far the table is.

        `alone` says that no other run can be under way.
        """

    def begin(self, batch: Batch) -> tuple[str, str]:
        """Prepare for a batch: the folder of its files, and what their names begin with."""

    def discard(self, batch: Batch) -> None:
        """Give a batch up whose tasks have ended."""

    def commit(self, batch: Batch, files: Sequence[DataFile], layout: Layout) -> None:
        """Make a batch part of the table; a ConflictError if another run was faster."""

    def small_files(self, size_bytes: int) -> list[SmallFile]:
        """The files that are smaller."""

    def replace(
        self, batch: Batch, old: Sequence[SmallFile], new: Sequence[DataFile], layout: Layout
    ) -> None:
        """Put files with the same rows into the place of others."""


def new_batch(state: State, until: str) -> Batch:
    """The next batch of a table."""
    attempt = f"{SystemClock().random_u64():016x}"
    return Batch(state.number + 1, state.until, until, attempt)


def claim(place: Place, wanted: Identity) -> Identity:
    """See to it that the table at a place is this one; a new one is marked."""
    found = read_identity(place)
    if found is None:
        other = next((each.name for each in place.objects.list() if _counts(each.name)), None)
        if other is not None:
            raise SettingsError(
                f"'to': {place.name} is no table of this job, and not empty (it has {other!r})."
            )
        if place.objects.create(_IDENTITY, msgspec.json.format(msgspec.json.encode(wanted))):
            return wanted
        found = read_identity(place)
        if found is None:
            raise busy(place.name)
    found.check(wanted, place.name)
    return found


def read_identity(place: Place) -> Identity | None:
    """Whose table is at a place; None if none of ours is."""
    try:
        return msgspec.json.decode(place.objects.read(_IDENTITY), type=Identity)
    except ObjectMissingError:
        return None
    except msgspec.MsgspecError as error:
        raise StoreError(f"{_IDENTITY} of the table at {place.name} is damaged: {error}.") from None


def check_there(place: Place, files: Sequence[DataFile]) -> None:
    """Raise if the driver does not see what executors wrote: a table must not name such files."""
    for each in files:
        if not place.has(each.path, each.size_bytes):
            raise StoreError(
                f"'to': an executor wrote {each.path} below {place.name}, but it is not here; the "
                "place must be one that the driver and all executors share."
            )


def _counts(name: str) -> bool:
    """Whether a file keeps a place from being empty."""
    return name != f"{CONTROL}/lock" and not name.rpartition("/")[2].startswith(".")
