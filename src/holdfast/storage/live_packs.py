"""Which packs of a store are live, as the packs themselves tell it: without a catalog.

Rules:

- A pack without a sound footer, directory and delta counts for nothing.
- Packs with a delta stand for ranges of the log. The live ones are a chain of ranges from position
  0 on without a gap, as far as there is one. Where several packs start at the same position the
  one that reaches furthest is taken: a flush or merge that did not finish leaves a pack that a
  later attempt covers, and a merged pack covers those it was made of.
- Whatever overlaps with the chain is superseded by it if a pack of the chain says so, and an orphan
  otherwise. A sound pack beyond the chain's end means that something between them is missing.
- Packs without a delta are live if a live pack names them as companions, or if they supersede one
  that would be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import ObjectMissingError, PackCorruptError
from holdfast.objects.pack_check import fault_of
from holdfast.objects.pack_reader import Pack
from holdfast.storage.garbage import PACKS_PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from holdfast.objects.store import ObjectStore


class SoundPack(NamedTuple):
    """What a pack says of itself, without its contents."""

    name: str
    size_bytes: int
    after: int
    through: int
    created_ms: int
    has_delta: bool
    supersedes: frozenset[str]
    companions: frozenset[str]


class Survey(NamedTuple):
    """Every pack in a store: the sound ones, and what is wrong with the others."""

    sound: dict[str, SoundPack]
    unsound: dict[str, str]


class LivePacks(NamedTuple):
    """The packs that hold the state, and those that were superseded by them."""

    # With a delta, in the order of the log.
    mains: list[SoundPack]
    companions: list[SoundPack]
    # Each with the name of the live pack that supersedes it.
    superseded: list[tuple[SoundPack, str]]
    # The first and the last position that are in no pack although later ones are.
    missing: tuple[int, int] | None

    @property
    def through(self) -> int:
        """The position in the log up to which everything is in packs."""
        return self.mains[-1].through if self.mains else 0

    @property
    def names(self) -> set[str]:
        """The names of all live packs."""
        return {pack.name for pack in (*self.mains, *self.companions)}


def survey(store: ObjectStore) -> Survey:
    """Look at every pack in the store: at everything but its index and data."""
    found = Survey({}, {})
    for info in store.list(PACKS_PREFIX):
        try:
            pack = Pack(store, info.name, info.size_bytes)
            pack.directory()
            meta = pack.delta().meta
        except PackCorruptError as error:
            found.unsound[info.name] = fault_of(error)
        except ObjectMissingError:
            # Removed since it was listed.
            continue
        else:
            found.sound[info.name] = SoundPack(
                info.name,
                info.size_bytes,
                pack.footer.after,
                pack.footer.through,
                meta.created_ms,
                meta.has_delta,
                frozenset(meta.supersedes),
                frozenset(meta.companions),
            )
    return found


def resolve(sound: dict[str, SoundPack], spoilt: Collection[str] = frozenset()) -> LivePacks:
    """Find the live packs. Those in `spoilt`, whose data is damaged, only if there is no other."""
    mains = [pack for pack in sound.values() if pack.has_delta and pack.through > pack.after]
    chain = _chain(mains, sound, spoilt)
    through = chain[-1].through if chain else 0
    companions = _companions(chain, sound)
    live = {pack.name for pack in (*chain, *companions)}
    superseded = {
        name: pack.name
        for pack in (*companions, *chain)
        for name in pack.supersedes
        if name in sound and name not in live
    }
    return LivePacks(
        chain,
        companions,
        [(sound[name], by) for name, by in sorted(superseded.items())],
        _missing(mains, through),
    )


class _Worth(NamedTuple):
    """How good it is to go on with a pack: compared from the first field on, more is better."""

    # How far the log is covered then, and less the packs on the way that are spoilt.
    reach: int
    spoilt: int
    through: int
    companions_missing: int
    is_latest: bool
    created_ms: int
    name: str


def _chain(
    mains: Iterable[SoundPack], sound: dict[str, SoundPack], spoilt: Collection[str]
) -> list[SoundPack]:
    """Neighbours in the log from position 0 on, as far as any reach.

    Taking the pack that reaches furthest at each position could end in a dead end, where a merge
    was left unfinished and one of its sources went into another; so this goes from the end back.
    """
    superseded = {name for pack in mains for name in pack.supersedes}
    # By the position that packs start after, the best of them.
    best: dict[int, tuple[_Worth, SoundPack]] = {}
    for pack in sorted(mains, key=lambda pack: pack.after, reverse=True):
        onward = best[pack.through][0] if pack.through in best else None
        worth = _Worth(
            onward.reach if onward else pack.through,
            (onward.spoilt if onward else 0) - (pack.name in spoilt),
            pack.through,
            -len(pack.companions - sound.keys()),
            pack.name not in superseded,
            pack.created_ms,
            pack.name,
        )
        if pack.after not in best or worth > best[pack.after][0]:
            best[pack.after] = worth, pack
    chain, at = [], 0
    while at in best:
        chain.append(best[at][1])
        at = chain[-1].through
    return chain


def _companions(chain: Sequence[SoundPack], sound: dict[str, SoundPack]) -> list[SoundPack]:
    """The packs without a delta that belong to the chain.

    One that is named and not there is no fault as such: it goes once all its streams are gone.
    """
    named = {name for pack in chain for name in pack.companions}
    covered = {name for pack in chain for name in pack.supersedes}
    extras = {name: pack for name, pack in sound.items() if not pack.has_delta}
    live = {name: extras[name] for name in (named - covered) & extras.keys()}
    # Who supersedes others knows all of them, so one round is enough if the latest come first.
    for pack in sorted(extras.values(), key=lambda pack: pack.created_ms, reverse=True):
        replaced = pack.supersedes & (named - covered)
        if replaced and pack.name not in live and pack.name not in covered:
            live[pack.name] = pack
            covered |= pack.supersedes
            for name in pack.supersedes & live.keys():
                del live[name]
    return [live[name] for name in sorted(live)]


def _missing(mains: Iterable[SoundPack], through: int) -> tuple[int, int] | None:
    beyond = [pack for pack in mains if pack.through > through]
    if not beyond:
        return None
    starts = [pack.after for pack in beyond if pack.after > through]
    return through + 1, min(starts, default=max(pack.through for pack in beyond))
