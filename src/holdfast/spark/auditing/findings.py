"""What an audit finds, as executors report it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from holdfast.format.packs import PackInfo

__all__ = ["FINDINGS_MAX", "Finding", "PackReport", "StreamFinding", "StreamsReport"]

# Of one pack, or of one part of the streams; the rest is counted.
FINDINGS_MAX: Final = 1000


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be.

    `damage` is to bytes that somebody may need, or to what the catalog says; a `note` is not.
    """

    kind: Literal["damage", "note"]
    # A pack, a stream, or the catalog.
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass
class PackReport:
    """What was found in a pack.

    `gone` says that it went out of use before it could be read; `is_whole` that its delta is known.
    """

    info: PackInfo
    gone: bool = False
    is_whole: bool = False
    extents: int = 0
    used_bytes: int = 0
    companions: frozenset[str] = frozenset()
    supersedes: frozenset[str] = frozenset()
    findings: list[Finding] = field(default_factory=list)
    left_out: int = 0

    @property
    def name(self) -> str:
        """The pack's name."""
        return self.info.name

    @property
    def dead_bytes(self) -> int:
        """What of its messages was not in use when it was read."""
        return self.info.data_bytes - self.used_bytes

    def damage(self, what: str, where: str = "") -> None:
        """Something is wrong with it, or with what the catalog says of it."""
        self._add(Finding("damage", where or self.name, what))

    def note(self, what: str) -> None:
        """Something is wrong that nobody will notice."""
        self._add(Finding("note", self.name, what))

    def _add(self, finding: Finding) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        elif finding.kind == "damage":
            self.left_out += 1


@dataclass(frozen=True)
class StreamFinding:
    """Something that is not as it should be with the extents of a stream.

    It is believed once a second look finds it again: the catalog changes while it is read.
    """

    stream: int
    code: Literal["misses", "absent", "doubled", "ended", "beyond", "behind", "rowless"]
    # The offset where it begins, which stays as it is while the stream grows.
    at: int
    name: str
    what: str

    @property
    def key(self) -> tuple[int, str, int]:
        """What two looks have in common."""
        return self.stream, self.code, self.at

    def finding(self) -> Finding:
        """The same, believed."""
        named = f" ({self.name})" if self.name else ""
        return Finding("damage", f"stream {self.stream:x}{named}", self.what)


@dataclass
class StreamsReport:
    """What was found in a part of the streams."""

    streams: int = 0
    findings: list[StreamFinding] = field(default_factory=list)
    left_out: int = 0

    def add(self, finding: StreamFinding) -> None:
        """Keep it, or count it."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.left_out += 1
