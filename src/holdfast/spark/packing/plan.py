"""Which packs are rewritten together.

Rules:

- Packs with a delta are merged with their neighbours in the log, up to a size, so that the merged
  pack stands for one range of the log. One that has half of that size already is left alone.
- A pack of which too large a share is dead is rewritten by itself, if it is not merged.
- A pack without a delta holds one large stream, and is only ever rewritten by itself: one that
  stood for several and was left behind by a crash would confuse a rebuild of the catalog. If it is
  dead as a whole the server takes it out of use.
- What a merge holds in memory is bounded: 20 bytes for each message, the streams' rows, and a
  window of each pack.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.format.packs import PackInfo

__all__ = ["Group", "Limits", "plan_groups"]

ROWS_MAX: Final = 262_144
# Each takes up to 4 MiB while it is read.
PACKS_MAX: Final = 100


class Limits(NamedTuple):
    """What is worth a rewrite, and how much one of them takes."""

    target_bytes: int
    dead_share: float
    min_packs: int
    messages_max: int
    rows_max: int = ROWS_MAX
    packs_max: int = PACKS_MAX


@dataclass(frozen=True)
class Group:
    """Packs that become one, in the order of the log."""

    packs: tuple[PackInfo, ...]
    # Packs without a delta that are in use for the same range of the log.
    companions: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        """The names of its packs."""
        return [pack.name for pack in self.packs]

    @property
    def has_delta(self) -> bool:
        """Whether it stands for a range of the log, and not for one large stream."""
        return self.packs[0].has_delta

    @property
    def live_bytes(self) -> int:
        """What of it is in use."""
        return sum(map(live_bytes, self.packs))

    @property
    def dead_bytes(self) -> int:
        """What of it is not."""
        return sum(pack.dead_bytes for pack in self.packs)


def live_bytes(pack: PackInfo) -> int:
    """The bytes of a pack's messages that are in use."""
    return pack.data_bytes - pack.dead_bytes


def plan_groups(
    packs: Sequence[PackInfo], limits: Limits, spoilt: Collection[str] = frozenset()
) -> list[Group]:
    """What to rewrite, the most work first. `packs` are all in use, in the order of the log.

    `spoilt` are packs that could not be read; they are left alone.
    """
    groups = []
    for run in _runs([pack for pack in packs if pack.has_delta], limits, spoilt):
        if len(run) >= limits.min_packs:
            groups.append(_group(run, packs))
        else:
            groups += [_group([pack], packs) for pack in run if _is_dead(pack, limits)]
    groups += [
        Group((pack,))
        for pack in packs
        if not pack.has_delta
        and pack.name not in spoilt
        and live_bytes(pack)
        and _is_dead(pack, limits)
    ]
    return sorted(groups, key=lambda group: group.live_bytes, reverse=True)


def _runs(
    mains: Iterable[PackInfo], limits: Limits, spoilt: Collection[str]
) -> Iterator[list[PackInfo]]:
    """Neighbours that fit together; one that is full is a run of its own."""
    run: list[PackInfo] = []
    for pack in mains:
        if pack.name in spoilt:
            yield run
            run = []
            continue
        is_full = 2 * live_bytes(pack) >= limits.target_bytes
        if run and (is_full or run[-1].through != pack.after or not _fits([*run, pack], limits)):
            yield run
            run = []
        run.append(pack)
        if is_full:
            yield run
            run = []
    yield run


def _fits(run: Sequence[PackInfo], limits: Limits) -> bool:
    return (
        len(run) <= limits.packs_max
        and sum(map(live_bytes, run)) <= limits.target_bytes
        and sum(pack.messages for pack in run) <= limits.messages_max
        and sum(pack.rows for pack in run) <= limits.rows_max
    )


def _is_dead(pack: PackInfo, limits: Limits) -> bool:
    return bool(pack.dead_bytes) and pack.dead_bytes >= limits.dead_share * pack.data_bytes


def _group(run: Sequence[PackInfo], packs: Iterable[PackInfo]) -> Group:
    after, through = run[0].after, run[-1].through
    companions = frozenset(
        pack.name
        for pack in packs
        if not pack.has_delta and pack.after < through and pack.through > after
    )
    return Group(tuple(run), companions)
