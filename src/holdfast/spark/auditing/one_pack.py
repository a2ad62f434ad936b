"""One pack: whether every byte of it is what was written, and the catalog says of it what it says.

It is read from end to end. The two directories, the pack's own and the catalog's, are sorted alike
and compared side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.client.types import PackExtent, PackInfo
from holdfast.errors import PackCorruptError
from holdfast.format.packs import Delta, Extent
from holdfast.objects.pack_reader import Pack
from holdfast.objects.store import ObjectStore
from holdfast.protocol.content import SEPARATOR
from holdfast.spark.auditing.findings import PackReport
from holdfast.spark.packing.rewriting import extent_of

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
    """Looks at a pack; what it finds goes to a report."""

    def __init__(self, info: PackInfo, known: Sequence[PackExtent], report: PackReport) -> None:
        self._info = info
        self._known = known
        self._report = report

    def run(self, pack: Pack, delta: Delta) -> None:
        """Read everything; raises if no more of it can be read."""
        self._compare(pack, delta)
        pack.check_frame()
        report = self._report
        known = iter(self._known)
        expected = next(known, None)
        for extent, data in pack.contents():
            report.extents += 1
            while expected is not None and (expected.stream, expected.start) < extent[:2]:
                self._not_there(expected)
                expected = next(known, None)
            if expected is not None and (expected.stream, expected.start) == extent[:2]:
                self._look(extent, data, expected)
                expected = next(known, None)
            elif isinstance(data, PackCorruptError):
                # Whether a stream misses it is seen where all extents of the stream are.
                report.note(f"{what_is_wrong(pack.name, data)}; nothing uses it")
        while expected is not None:
            self._not_there(expected)
            expected = next(known, None)

    def _compare(self, pack: Pack, delta: Delta) -> None:
        footer = pack.footer
        lengths = [extent.length for extent in pack.directory()]
        said = {
            "size_bytes": footer.size_bytes,
            "data_bytes": sum(lengths),
            "messages": footer.messages,
            "rows": footer.rows,
            "has_delta": delta.meta.has_delta,
            "after": footer.after,
            "through": footer.through,
            "salt": f"{footer.salt:016x}",
            "created_ms": delta.meta.created_ms,
        }
        wrong = [name for name, value in said.items() if getattr(self._info, name) != value]
        if wrong:
            self._catalog_is_wrong(f"it does not say the same as {pack.name} of {', '.join(wrong)}")

    def _look(self, extent: Extent, data: bytes | PackCorruptError, expected: PackExtent) -> None:
        name = self._info.name
        who = f"stream {extent.stream:x} ({expected.name})"
        if isinstance(data, PackCorruptError):
            self._report.damage(what_is_wrong(name, data))
        elif expected.json and not data.endswith(SEPARATOR):
            self._report.damage(f"{who} is JSON, and no message ends at {extent.end}")
        if extent_of(expected) != extent:
            self._catalog_is_wrong(f"the extent of {who} at {extent.start} is not as in {name}")

    def _not_there(self, expected: PackExtent) -> None:
        self._catalog_is_wrong(
            f"stream {expected.stream:x} ({expected.name}) has no bytes at {expected.start} in "
            f"{self._info.name}"
        )

    def _catalog_is_wrong(self, what: str) -> None:
        self._report.damage(what, CATALOG)


def what_is_wrong(pack: str, error: PackCorruptError) -> str:
    """The error's words without the name, for where the name stands beside them."""
    return error.message.removeprefix(f"The pack {pack} is damaged: ").removesuffix(".")
