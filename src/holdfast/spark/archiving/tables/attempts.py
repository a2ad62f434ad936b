"""Files that a killed run left where they would have belonged, in tables that list their own.

Nobody sees them, since the table does not name them. Each attempt leaves a mark before its first
file and takes it away at its end; so after a kill it is known that there is something to look for.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

from holdfast.clock import SystemClock
from holdfast.spark.archiving.names import CONTROL
from holdfast.spark.archiving.places import Place
from holdfast.spark.archiving.state import Batch
from holdfast.spark.archiving.tables.table import STALE_MS

_MARKS: Final = f"{CONTROL}/attempts/"


def mark(place: Place, batch: Batch) -> None:
    """Say that files of this attempt may be there."""
    place.objects.put(f"{_MARKS}{batch.attempt}", b"")


def unmark(place: Place, batch: Batch) -> None:
    """Say that there are none any more, but those that the table names."""
    place.objects.remove(f"{_MARKS}{batch.attempt}")


def remove_files(place: Place, folder: str, attempts: Container[str], named: set[str]) -> None:
    """Remove files of these attempts, whose names start with them, unless the table names them."""
    for each in list(place.objects.list(folder)):
        attempt = each.name.rpartition("/")[2].partition("-")[0]
        if attempt in attempts and each.name not in named:
            place.objects.remove(each.name)


def remove_stale(place: Place, folder: str, named: Callable[[], set[str]], *, alone: bool) -> None:
    """Remove what attempts that have ended left behind."""
    before_ms = SystemClock().now_ms() - STALE_MS
    marks = [
        each.name for each in place.objects.list(_MARKS) if alone or each.modified_ms < before_ms
    ]
    if not marks:
        return
    remove_files(place, folder, {each.removeprefix(_MARKS) for each in marks}, named())
    for each in marks:
        place.objects.remove(each)
