"""Checking one pack against the catalog: `holdfast check` and the Spark audit both use this.

The pack is read from end to end. Its own directory and the catalog's extents are both sorted by
stream and offset, and are compared side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from holdfast.errors import HoldfastError, PackCorruptError
from holdfast.format.packs import describe_pack
from holdfast.protocol.content import SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.format.packs import Extent, PackExtent, PackInfo
    from holdfast.objects.pack_reader import Pack

L = TypeVar("L")
R = TypeVar("R")
# What a pack's own footer and metadata say; the rest of PackInfo only the catalog knows.
_COMPARED = (
    "size_bytes",
    "data_bytes",
    "messages",
    "rows",
    "has_delta",
    "after",
    "through",
    "salt",
    "created_ms",
)


class PackFindings(Protocol):
    """Takes what the check of one pack finds."""

    def pack_damaged(self, what: str) -> None:
        """Bytes in use are not what was written."""

    def catalog_wrong(self, what: str) -> None:
        """The catalog does not say what the pack says."""

    def unused(self, extent: Extent, fault: str) -> None:
        """The catalog does not list this extent; `fault` is empty if its bytes are sound."""


def check_pack(
    pack: Pack, known: PackInfo, extents: Iterable[PackExtent], findings: PackFindings
) -> Iterator[Extent]:
    """Read and compare everything; yields each extent after it was checked.

    `extents` are those of the catalog, by stream and offset. Raises a PackCorruptError if no more
    of the pack can be read.
    """
    _compare_info(pack, known, findings)
    pack.check_frame()
    contents = merge_join(
        pack.checked(), extents, lambda each: each[0][:2], lambda each: (each.stream, each.start)
    )
    for content, expected in contents:
        if content is None:
            assert expected is not None, "one of the two is there"
            findings.catalog_wrong(
                f"{_stream(expected)} has no bytes at {expected.start} in {pack.name}"
            )
            continue
        extent, end = content
        if expected is None:
            findings.unused(extent, fault_of(end) if isinstance(end, PackCorruptError) else "")
        else:
            _compare_extent(pack, extent, end, expected, findings)
        yield extent


def merge_join(
    left: Iterable[L],
    right: Iterable[R],
    left_key: Callable[[L], Any],
    right_key: Callable[[R], Any],
) -> Iterator[tuple[L | None, R | None]]:
    """Pairs of items with equal keys from two sorted iterables; None where one has no such key."""
    lefts, rights = iter(left), iter(right)
    one, other = next(lefts, None), next(rights, None)
    while one is not None or other is not None:
        if other is None or (one is not None and left_key(one) < right_key(other)):
            yield one, None
            one = next(lefts, None)
        elif one is None or right_key(other) < left_key(one):
            yield None, other
            other = next(rights, None)
        else:
            yield one, other
            one, other = next(lefts, None), next(rights, None)


def fault_of(error: HoldfastError) -> str:
    """The reason alone, for reports that name the object beside it."""
    return error.message.rpartition(" is damaged: ")[2].removesuffix(".")


def _compare_info(pack: Pack, known: PackInfo, findings: PackFindings) -> None:
    info = describe_pack(pack.name, pack.footer, pack.delta().meta)
    wrong = [name for name in _COMPARED if getattr(known, name) != getattr(info, name)]
    if wrong:
        findings.catalog_wrong(f"it disagrees with {pack.name} about {', '.join(wrong)}")


def _compare_extent(
    pack: Pack,
    extent: Extent,
    end: bytes | PackCorruptError,
    expected: PackExtent,
    findings: PackFindings,
) -> None:
    if isinstance(end, PackCorruptError):
        findings.pack_damaged(fault_of(end))
    elif expected.json and not end.endswith(SEPARATOR):
        findings.pack_damaged(f"{_stream(expected)} is JSON, but no message ends at {extent.end}")
    if expected.extent != extent:
        findings.catalog_wrong(
            f"the extent of {_stream(expected)} at {extent.start} is not as in {pack.name}"
        )


def _stream(extent: PackExtent) -> str:
    return f"stream {extent.stream:x}" + (f" ({extent.name})" if extent.name else "")
