"""Findings of an audit, and the check of a stream's extents across all packs.

Everything that packs and catalog say about streams is shuffled as rows (`StreamFact`), and reaches
`StreamsCheck` sorted by stream. A stream is checked as a whole, so memory holds the extents of one.

- `STATE`: a stream's row in a delta: `at` is the end of the pack's range of the log, `end` the
  tail, `start` the first byte, `name` the name. The one furthest in the log counts.
- `ENDED`: the same for a stream that ended in the range.
- `EXTENT`: an extent in use: `at` and `end` are its offsets, `start` is the first byte needed and
  `tail` the stream's end, both from the catalog. `pack` is the number of the pack in the list made
  at the beginning; -1 if the pack came into use later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from holdfast.format.packs import Extent, PackInfo

# Per pack, or per part of the streams; further ones are counted.
FINDINGS_MAX: Final = 1000
CATALOG: Final = "catalog"


class AuditFinding(NamedTuple):
    """`damage` affects bytes that are needed, or the catalog; a `note` does not."""

    kind: Literal["damage", "note"]
    # A pack, a stream or the catalog.
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass
class PackReport:
    """The findings in one pack; takes those of `check_pack`.

    `gone`: the pack went out of use before it could be read. `is_whole`: its delta was read.
    """

    info: PackInfo
    gone: bool = False
    is_whole: bool = False
    extents: int = 0
    used_bytes: int = 0
    companions: frozenset[str] = frozenset()
    supersedes: frozenset[str] = frozenset()
    findings: list[AuditFinding] = field(default_factory=list)
    # How many there were, once they have been taken out.
    found: int = 0
    left_out: int = 0

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def dead_bytes(self) -> int:
        """The bytes of messages that were not in use when it was read."""
        return self.info.data_bytes - self.used_bytes

    def pack_damaged(self, what: str) -> None:
        self._add(AuditFinding("damage", self.name, what))

    def catalog_wrong(self, what: str) -> None:
        self._add(AuditFinding("damage", CATALOG, what))

    def unused(self, extent: Extent, fault: str) -> None:
        # Whether a stream misses the extent is seen where all extents of the stream are.
        if fault:
            self._add(AuditFinding("note", self.name, f"{fault}; nothing uses it"))

    def _add(self, finding: AuditFinding) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        elif finding.kind == "damage":
            self.left_out += 1


@dataclass(frozen=True)
class StreamFinding:
    """A fault in the extents of a stream.

    It counts once a second pass finds it again: the catalog changes while it is read.
    """

    stream: int
    code: Literal["misses", "absent", "doubled", "ended", "beyond", "behind", "rowless"]
    # The offset where the fault begins, which does not change while the stream grows.
    at: int
    name: str
    what: str

    @property
    def key(self) -> tuple[int, str, int]:
        """Equal for the same fault in two passes."""
        return self.stream, self.code, self.at

    def finding(self) -> AuditFinding:
        named = f" ({self.name})" if self.name else ""
        return AuditFinding("damage", f"stream {self.stream:x}{named}", self.what)


@dataclass
class StreamsReport:
    """The findings in a part of the streams."""

    streams: int = 0
    findings: list[StreamFinding] = field(default_factory=list)
    # How many there were, once they have been taken out.
    found: int = 0
    left_out: int = 0

    def add(self, finding: StreamFinding) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.left_out += 1


# In the order in which the facts of a stream are sorted.
STATE: Final = 0
ENDED: Final = 1
EXTENT: Final = 2


class StreamFact(NamedTuple):
    """Something that a pack or the catalog says about a stream."""

    stream: int
    kind: int
    at: int
    end: int = 0
    start: int = 0
    tail: int = 0
    pack: int = -1
    name: str = ""


class StreamsCheck:
    """Takes facts sorted by stream, and checks each stream once it is complete."""

    def __init__(self) -> None:
        self.report = StreamsReport()
        self._held: list[StreamFact] = []

    def take(self, facts: Iterable[StreamFact]) -> None:
        held = self._held
        for fact in facts:
            if held and held[0].stream != fact.stream:
                self._check(held)
                held = []
            held.append(fact)
        self._held = held

    def finish(self) -> StreamsReport:
        """Check the last stream, and return the report."""
        if self._held:
            self._check(self._held)
            self._held = []
        return self.report

    def _check(self, facts: Sequence[StreamFact]) -> None:
        extents = sorted((fact for fact in facts if fact.kind == EXTENT), key=lambda fact: fact.at)
        state = max(
            (fact for fact in facts if fact.kind != EXTENT),
            key=lambda fact: (fact.at, fact.kind),
            default=None,
        )
        if state is not None and state.kind == ENDED:
            if extents:
                self._add(
                    state, "ended", 0, "it has ended, but the catalog has bytes of it in a pack"
                )
            return
        self.report.streams += 1
        if state is None:
            self._add(extents[0], "rowless", 0, "no pack has the row for its bytes")
        elif extents:
            self._compare(state, extents)
        elif state.end > state.start:
            what = f"it misses bytes {state.start} to {state.end}, all that it has"
            self._add(state, "absent", 0, what)
        if extents:
            self._walk(state, extents)

    def _compare(self, state: StreamFact, extents: Sequence[StreamFact]) -> None:
        """The catalog knows at least what the packs say, and possibly more by now."""
        tail, start = max(each.tail for each in extents), max(each.start for each in extents)
        if tail < state.end:
            what = f"it ends at {state.end}, but at {tail} according to the catalog"
            self._add(state, "behind", tail, what)
        if start < state.start:
            what = f"it starts at {state.start}, but at {start} according to the catalog"
            self._add(state, "behind", start, what)

    def _walk(self, state: StreamFact | None, extents: Sequence[StreamFact]) -> None:
        starts = [each.start for each in extents]
        at = needed = max(starts if state is None else [*starts, state.start])
        fact = state or extents[0]
        last: StreamFact | None = None
        for each in extents:
            if each.end <= needed:
                # The extent was read before the stream was trimmed.
                continue
            if each.at > at:
                self._add(fact, "misses", at, f"it misses bytes {at} to {each.at}")
            elif last is not None and each.at < at and min(each.pack, last.pack) >= 0:
                self._add(fact, "doubled", each.at, f"it has byte {each.at} twice")
            if each.end > at:
                at, last = each.end, each
        if state is not None and at < state.end:
            self._add(fact, "misses", at, f"it misses bytes {at} to {state.end}, its end")
        known = max(each.tail for each in extents)
        if at > known:
            self._add(fact, "beyond", known, f"it ends at {known}, but has bytes up to {at}")

    def _add(self, fact: StreamFact, code: str, at: int, what: str) -> None:
        self.report.add(StreamFinding(fact.stream, code, at, fact.name, what))  # type: ignore[arg-type]
