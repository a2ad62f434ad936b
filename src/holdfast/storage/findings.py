"""What a check finds: damage, which costs data or will, and notes, which do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

# Bytes looked at, of how many.
Progress = Callable[[int, int], None]
# A catalog that does not fit its packs has as many faults as extents; the first few tell it all.
_FINDINGS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found: where it is, and what it is."""

    severity: Literal["damage", "note"]
    where: str
    what: str


class Findings:
    """Collects what is found, and of many things in one place only the first ones."""

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self._counts: Counter[tuple[Literal["damage", "note"], str]] = Counter()

    def damage(self, where: str, what: str) -> None:
        """Something is lost, or wrong in a way that will lose something."""
        self._add(Finding("damage", where, what))

    def note(self, where: str, what: str) -> None:
        """Something worth knowing that does no harm."""
        self._add(Finding("note", where, what))

    @property
    def ok(self) -> bool:
        """Whether there is no damage."""
        return not any(severity == "damage" for severity, _ in self._counts)

    def of(self, severity: Literal["damage", "note"]) -> list[Finding]:
        """Everything found of one severity, in the order it was found."""
        found = [each for each in self._found if each.severity == severity]
        for (kind, where), count in self._counts.items():
            if kind == severity and count > _FINDINGS_MAX:
                found.append(Finding(kind, where, f"and {count - _FINDINGS_MAX:,} more like these"))
        return found

    def _add(self, finding: Finding) -> None:
        key = finding.severity, finding.where
        self._counts[key] += 1
        if self._counts[key] <= _FINDINGS_MAX:
            self._found.append(finding)
