"""Checking one pack on an executor: `check_pack` with its findings in a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.errors import PackCorruptError
from holdfast.format.packs import Extent, PackExtent, PackInfo
from holdfast.objects.pack_check import check_pack
from holdfast.objects.pack_reader import Pack
from holdfast.objects.store import ObjectStore
from holdfast.spark.auditing.findings import PackReport

__all__ = ["CATALOG", "PackAudit", "open_pack"]

CATALOG: Final = "catalog"


def open_pack(objects: ObjectStore, info: PackInfo) -> Pack:
    """The pack, if it has the size that the catalog says."""
    end = objects.read(info.name, max(0, info.size_bytes - 1), 2)
    if len(end) != 1:
        fault = "longer" if end else "shorter"
        raise PackCorruptError(
            f"The pack {info.name} is damaged: it is {fault} than the {info.size_bytes} bytes "
            "that the catalog says."
        )
    return Pack(objects, info.name, info.size_bytes)


class PackAudit:
    """Checks a pack and adds what it finds to a report."""

    def __init__(self, info: PackInfo, known: Sequence[PackExtent], report: PackReport) -> None:
        self._info = info
        self._known = known
        self._report = report

    def run(self, pack: Pack) -> None:
        """Read everything; raises if no more of it can be read."""
        for _ in check_pack(pack, self._info, self._known, self):
            self._report.extents += 1

    def pack_damaged(self, what: str) -> None:
        self._report.damage(what)

    def catalog_wrong(self, what: str) -> None:
        self._report.damage(what, CATALOG)

    def unused(self, extent: Extent, fault: str) -> None:
        # Whether a stream misses the extent is seen where all extents of the stream are.
        if fault:
            self._report.note(f"{fault}; nothing uses it")
