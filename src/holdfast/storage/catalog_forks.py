"""Forks that inherit something, found in the catalog without a look at other streams."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.format.records import INDEX_BITS
from holdfast.storage.catalog_schema import CatalogFile, open_for_reading

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.storage.catalog_scan import Scanned

# A fork's number holds the position of its creation. By number for what is new, else by name.
_FORKS: Final = (
    "SELECT name, number, inherited FROM forks {by} WHERE number >= :from AND number < :to "
    "AND name >= :least AND name < :beyond ORDER BY name"
)
_BY_NUMBER: Final = _FORKS.format(by="NOT INDEXED")
_BY_NAME: Final = _FORKS.format(by="INDEXED BY sqlite_autoindex_forks_1")


class ForkEntry(NamedTuple):
    """A fork, and how many bytes of its sources can be read from it."""

    name: str
    number: int
    inherited: int


def find_forks(path: Path, scanned: Scanned) -> list[ForkEntry]:
    """The forks with these names that were created in (after, until], by name."""
    values = scanned.values | {
        "from": (scanned.after + 1) << INDEX_BITS if scanned.after else 0,
        "to": (scanned.until + 1) << INDEX_BITS,
    }
    with closing(CatalogFile(path, open_for_reading(path))) as catalog:
        found = catalog.read(_BY_NUMBER if scanned.after else _BY_NAME, values)
    return [ForkEntry(*each) for each in found]
