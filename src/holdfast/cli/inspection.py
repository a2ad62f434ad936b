"""What `holdfast check` does with a data directory or a store: look it over, and repair it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from holdfast.cli.check_log import LogRange, check_ends, check_log
from holdfast.clock import Clock
from holdfast.errors import CatalogError
from holdfast.log.directory import DataDirectory
from holdfast.objects.store import ObjectStore
from holdfast.storage.catalog_check import CATALOG
from holdfast.storage.findings import Finding, Findings, Progress
from holdfast.storage.live_packs import resolve, survey
from holdfast.storage.rebuild import rebuild
from holdfast.storage.verify import Verified, verify_catalog, verify_store


class Outcome(NamedTuple):
    """What a check found in the end, and the damage that a repair has removed before."""

    findings: Findings
    verified: Verified
    log_batches: int
    repaired: list[Finding]


class Inspection:
    """A check of a data directory with its store, or of a store alone."""

    def __init__(
        self,
        store: ObjectStore,
        directory: DataDirectory | None,
        clock: Clock,
        progress: Callable[[str], AbstractContextManager[Progress]],
    ) -> None:
        self._store = store
        self._directory = directory
        self._clock = clock
        self._progress = progress
        self._findings = Findings()
        self._log: LogRange | None = None

    def run(self, *, repair: bool) -> Outcome:
        """Look everything over; with `repair`, mend what can be mended and look again."""
        verified = self._look()
        damage = self._findings.of("damage")
        if not repair or not damage or self._directory is None:
            return self._outcome(verified, [])
        try:
            done = self._repair(self._directory.catalog_path, verified)
        except CatalogError as error:
            self._findings.damage(CATALOG, f"not repaired: {error.message}")
            return self._outcome(verified, [])
        if not done:
            return self._outcome(verified, [])
        self._findings = Findings()
        verified = self._look()
        self._findings.note(CATALOG, done)
        remaining = self._findings.of("damage")
        return self._outcome(verified, [each for each in damage if each not in remaining])

    def _outcome(self, verified: Verified, repaired: list[Finding]) -> Outcome:
        batches = self._log.batches if self._log else 0
        return Outcome(self._findings, verified, batches, repaired)

    def _look(self) -> Verified:
        directory, findings = self._directory, self._findings
        if directory is None:
            with self._progress("checking packs") as progress:
                return verify_store(self._store, findings, progress)
        with self._progress("checking the log") as progress:
            self._log = check_log(directory.log_path, findings, progress)
        with self._progress("checking packs") as progress:
            verified = self._verify(directory.catalog_path, progress)
        if self._log is not None:
            check_ends(self._log, verified.flushed, findings)
        return verified

    def _verify(self, catalog: Path, progress: Progress) -> Verified:
        findings = self._findings
        published = self._log.published if self._log else []
        if catalog.exists():
            try:
                verified = verify_catalog(self._store, catalog, findings, progress, published)
            except CatalogError as error:
                findings.damage(CATALOG, error.message)
                return verify_store(self._store, findings, progress, published)
            self._check_age(verified)
            return verified
        verified = verify_store(self._store, findings, progress, published)
        # Without packs it is a directory that was never flushed: the next start makes a catalog.
        if verified.packs:
            findings.damage(CATALOG, "it is missing; --repair rebuilds it from the packs")
        return verified

    def _check_age(self, verified: Verified) -> None:
        """A pack that no flush has finished holds nothing that is not in the log as well."""
        if self._log and verified.unused_through > max(verified.flushed, self._log.last):
            self._findings.damage(
                CATALOG,
                f"it is older than the packs: they go up to position {verified.unused_through}, "
                f"it knows {verified.flushed}, and the log does not have the rest. --repair "
                "rebuilds it from the packs",
            )

    def _repair(self, catalog: Path, verified: Verified) -> str:
        """Rebuild the catalog if it is at fault, or if sound packs can stand in for damaged ones.

        What was done in words, or none if nothing was; raises if it cannot be done.
        """
        log_first = (self._log.first if self._log else None) or 0
        at_fault = log_first > verified.flushed + 1 or any(
            each.where == CATALOG for each in self._findings.of("damage")
        )
        live = resolve(survey(self._store).sound, verified.spoilt)
        if not at_fault and (live.names == verified.in_use or live.names & verified.spoilt):
            self._findings.note(CATALOG, "it is not at fault, and was left as it is")
            return ""
        if log_first > live.through + 1 and live.missing is None:
            raise CatalogError(
                f"Positions {live.through + 1} to {log_first - 1} are neither in the log nor in a "
                "sound pack. Restore what holds them from a backup; the catalog was not replaced."
            )
        aside = rebuild(self._store, live, catalog, self._clock.now_ms())
        old = f"; the old one is {aside.name}" if aside else ""
        return f"rebuilt from {len(live.names)} packs, up to position {live.through}{old}"
