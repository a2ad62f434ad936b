"""Which packs to merge next: size-tiered, over neighbours in the log.

Rules:

- Only packs with a delta are merged, and only runs without a gap in the log, so that the merged
  pack again stands for one range of it and its delta is one delta.
- A run is merged once it has `merge_packs` packs of one tier. Smaller ones between them go along,
  so none gets stuck; they do not count, so a large pack is not rewritten for a few small ones.
- A pack of which half is dead is rewritten by itself.
- What a merge holds in memory is bounded: a run that would exceed the limits is cut shorter.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.storage.catalog_writer import PackRow

DATA_BYTES_MAX: Final = 512 * 1024 * 1024
MESSAGES_MAX: Final = 4_000_000
ROWS_MAX: Final = 262_144
_TIER_BYTES: Final = (1 << 20, 8 << 20, 64 << 20, 512 << 20)
_DEAD_BYTES_MIN: Final = 1 << 20


def next_merge(packs: Sequence[PackRow], merge_packs: int, spoilt: set[str]) -> list[PackRow]:
    """The packs to merge into one, or none. `packs` are in the order of the log.

    `spoilt` are packs that could not be read; they are left alone.
    """
    mains = [pack for pack in packs if pack.has_delta]
    for least, most in pairwise((0, *_TIER_BYTES)):
        run: list[PackRow] = []
        for pack in mains:
            if pack.size_bytes >= most or pack.name in spoilt:
                run = []
                continue
            if run and run[-1].through != pack.after:
                run = []
            if run and not _fits([*run, pack]):
                # It cannot grow any more: half of what is wanted is better than nothing, and two
                # of a size are better than that, since doubling costs little in the long run.
                if _count(run, least) >= max(2, merge_packs // 2) or _are_alike(run):
                    return run
                while run and not _fits([*run, pack]):
                    run = run[1:]
            run.append(pack)
            if _count(run, least) >= merge_packs:
                return run
    return _half_dead(mains, spoilt)


def _count(run: Sequence[PackRow], least: int) -> int:
    return sum(pack.size_bytes >= least for pack in run)


def _are_alike(run: Sequence[PackRow]) -> bool:
    sizes = [pack.size_bytes for pack in run]
    return len(sizes) > 1 and 2 * min(sizes) > max(sizes)


def _fits(run: Sequence[PackRow]) -> bool:
    return (
        sum(pack.data_bytes - pack.dead_bytes for pack in run) <= DATA_BYTES_MAX
        and sum(pack.messages for pack in run) <= MESSAGES_MAX
        and sum(pack.rows for pack in run) <= ROWS_MAX
    )


def _half_dead(mains: Sequence[PackRow], spoilt: set[str]) -> list[PackRow]:
    for pack in mains:
        if (
            pack.dead_bytes >= _DEAD_BYTES_MIN
            and 2 * pack.dead_bytes >= pack.data_bytes
            and pack.name not in spoilt
        ):
            return [pack]
    return []
