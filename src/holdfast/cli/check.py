"""`holdfast check`: verify a data directory or a store, and rebuild a damaged catalog."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
from cyclopts import Parameter

from holdfast.cli.backup import careful, report
from holdfast.cli.config import NO_FLAGS, AsJson, ConfigFile, SettingFlags, load_settings
from holdfast.cli.terminal import EXIT_INTERRUPTED, Advance, as_bytes, progress, set_up_logging
from holdfast.clock import Clock, SystemClock
from holdfast.errors import CatalogError, DataDirectoryLockedError, LogCorruptError, SettingsError
from holdfast.format.records import Kind, decode, decode_snapshot
from holdfast.format.segments import HEADER_BYTES, BatchFrame
from holdfast.log.directory import DataDirectory, Files
from holdfast.log.end import EndFile
from holdfast.log.recovery import Segment, find_chain, read_segment
from holdfast.objects.store import ObjectStore, store_owner
from holdfast.settings import Settings
from holdfast.storage.catalog_check import CATALOG, Finding, Findings, Progress
from holdfast.storage.check import Published, Verified, verify_catalog, verify_store
from holdfast.storage.garbage import PACKS_PREFIX
from holdfast.storage.open_objects import open_objects
from holdfast.storage.rebuild import rebuild, resolve, survey

EXIT_DAMAGE = 1
# Redrawing the bar more often than this would only cost time.
BAR_STEPS = 500


def check(
    *,
    repair: Annotated[
        bool,
        Parameter(negative="", help="Rebuild a damaged catalog from the packs."),
    ] = False,
    json: AsJson = False,
    flags: SettingFlags = NO_FLAGS,
    config: ConfigFile = None,
) -> int:
    """Verify every byte of a data directory that no server is using, or of a store alone.

    Exits with 0 if there is no damage and 1 if there is. Without --repair nothing is changed.
    """
    settings = load_settings(config, flags)
    # The check reports the same problems that recovery would log as warnings.
    set_up_logging(replace(settings.log, level="error"))
    clock = SystemClock()
    started_s = clock.monotonic_s()
    try:
        with careful():
            outcome = _inspect(settings, clock, repair=repair)
    except KeyboardInterrupt:
        print("holdfast: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    seconds = clock.monotonic_s() - started_s
    report(as_document(outcome), as_text(outcome, seconds), as_json=json)
    return 0 if outcome.findings.ok else EXIT_DAMAGE


def _inspect(settings: Settings, clock: SystemClock, *, repair: bool) -> CheckResult:
    path = settings.server.data_dir
    store = open_objects(settings.storage, path / "objects")
    if not path.exists() and settings.storage.store:
        if not store_owner(store) and next(store.list(PACKS_PREFIX), None) is None:
            raise SettingsError(f"{store.url} is not a Holdfast store: no packs and no marker")
        if not repair:
            return Inspection(store, None, clock, _bar).run(repair=False)
        # The disk was lost but not the store: everything that was flushed comes back.
        directory = DataDirectory.open(path)
    else:
        directory = _open_directory(path)
    try:
        return Inspection(store, directory, clock, _bar).run(repair=repair)
    finally:
        directory.close()


def _open_directory(path: Path) -> DataDirectory:
    """Lock the directory, which must be a data directory: nothing is created here."""
    if not (path / "format").exists():
        raise SettingsError(
            f"{path} is not a data directory: it has no 'format'. Choose one with --data-dir"
        )
    try:
        return DataDirectory.open(path)
    except DataDirectoryLockedError as error:
        raise DataDirectoryLockedError(
            f"{error.message} To check the data of a running server, check a backup of it."
        ) from None


@contextmanager
def _bar(what: str) -> Iterator[Progress]:
    """A bar that appears once the total is known."""
    advance: Advance | None = None
    shown = 0
    with ExitStack() as stack:

        def show(done: int, total: int) -> None:
            nonlocal advance, shown
            if advance is None:
                advance = stack.enter_context(progress(what, total))
            if done - shown >= total // BAR_STEPS or done == total:
                advance(done - shown)
                shown = done

        yield show


def as_text(outcome: CheckResult, seconds: float) -> str:
    """One line for each finding, and a summary."""
    findings = outcome.findings
    damage = findings.of("damage")
    lines = [
        *(f"repaired: {_words(each)}" for each in outcome.repaired),
        *(f"damage: {_words(each)}" for each in damage),
        *(f"note: {_words(each)}" for each in findings.of("note")),
    ]
    verified = outcome.verified
    result = "no damage" if findings.ok else f"damage found ({len(damage)})"
    lines.append(
        f"checked {verified.packs:,} packs and {verified.snapshots:,} snapshots, "
        f"{as_bytes(verified.size_bytes)}, "
        f"{verified.streams:,} streams, {outcome.log_batches:,} log batches "
        f"in {seconds:.1f} s: {result}"
    )
    return "\n".join(lines)


def _words(finding: Finding) -> str:
    return f"{finding.where}: {' '.join(finding.what.split())}"


def as_document(outcome: CheckResult) -> dict[str, object]:
    findings, verified = outcome.findings, outcome.verified
    return {
        "ok": findings.ok,
        "packs": verified.packs,
        "snapshots": verified.snapshots,
        "streams": verified.streams,
        "bytes": verified.size_bytes,
        "log_batches": outcome.log_batches,
        "damage": _entries(findings.of("damage")),
        "notes": _entries(findings.of("note")),
        "repaired": _entries(outcome.repaired),
    }


def _entries(found: list[Finding]) -> list[dict[str, str]]:
    return [{"where": each.where, "what": each.what} for each in found]


class CheckResult(NamedTuple):
    """The findings that remain, and the damage that a repair removed."""

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

    def run(self, *, repair: bool) -> CheckResult:
        """Check everything; with `repair`, repair what can be repaired and check again."""
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

    def _outcome(self, verified: Verified, repaired: list[Finding]) -> CheckResult:
        batches = self._log.batches if self._log else 0
        return CheckResult(self._findings, verified, batches, repaired)

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
            check_ends(self._log, verified.flushed, directory.log_path, findings)
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
        """Report a catalog that misses packs whose data is not in the log either.

        The pack of an unfinished flush is fine: the log still has its data.
        """
        if self._log and verified.unused_through > max(verified.flushed, self._log.last):
            self._findings.damage(
                CATALOG,
                f"it is older than the packs: they end at position {verified.unused_through}, it "
                f"ends at {verified.flushed}, and the log does not have the rest. --repair "
                "rebuilds it from the packs",
            )

    def _repair(self, catalog: Path, verified: Verified) -> str:
        """Rebuild the catalog if it is damaged, or if sound packs can replace damaged ones.

        Returns what was done, or "" if nothing was; raises if it cannot be done.
        """
        log_first = (self._log.first if self._log else None) or 0
        is_damaged = log_first > verified.flushed + 1 or any(
            each.where == CATALOG for each in self._findings.of("damage")
        )
        live = resolve(survey(self._store), verified.spoilt)
        if not is_damaged and (live.names == verified.in_use or live.names & verified.spoilt):
            self._findings.note(CATALOG, "it is not damaged, and was left as it is")
            return ""
        if log_first > live.through + 1 and live.missing is None:
            raise CatalogError(
                f"Positions {live.through + 1} to {log_first - 1} are neither in the log nor in a "
                "sound pack. Restore what holds them from a backup; the catalog was not replaced."
            )
        aside = rebuild(self._store, live, catalog, self._clock.now_ms())
        old = f"; the old one is {aside.name}" if aside else ""
        return f"rebuilt from {len(live.names)} packs, up to position {live.through}{old}"


LOG: Final = "log"
_KINDS: Final = frozenset(Kind)


class LogRange(NamedTuple):
    """The positions in a log, `first` to `last`; `first` is None if it has no segment."""

    first: int | None
    last: int
    batches: int
    last_segment: int
    # Where there are bytes after the last batch, and what they are.
    tail: tuple[str, str] | None
    # The snapshots that its records publish.
    published: list[Published]


def check_log(directory: Path, findings: Findings, progress: Progress) -> LogRange | None:
    """Check every segment; None if their order cannot be determined."""
    files = Files()
    try:
        chain = find_chain(files, directory)
    except LogCorruptError as error:
        findings.damage(LOG, error.message)
        return None
    for path in chain.orphans:
        findings.note(f"{LOG}/{path.name}", "not part of the log: an unfinished or lost segment")
    segments = chain.segments
    total = sum(segment.path.stat().st_size for segment in segments)
    done = batches = 0
    published: list[Published] = []
    tail = None
    first = segments[0].header.first_position if segments else None
    expected = first or 1
    for segment in segments:
        end = HEADER_BYTES
        try:
            for frame in read_segment(files, segment, expected):
                published += _check_records(segment.path, frame, findings)
                expected, end, batches = frame.position + 1, frame.end, batches + 1
            if segment.end is None:
                tail = _check_tail(segment, end)
        except LogCorruptError as error:
            findings.damage(f"{LOG}/{segment.path.name}", error.message)
            # The next segment's header says where it starts.
            expected = _next_start(segments, segment) or expected
        done += segment.path.stat().st_size
        progress(done, total)
    return LogRange(first, expected - 1, batches, chain.last_segment, tail, published)


def check_ends(log: LogRange, flushed: int, directory: Path, findings: Findings) -> None:
    """The log must start where the packs end, or before, and reach its recorded end."""
    recorded = EndFile(Files(), directory)
    end = recorded.read()
    if end is None and recorded.path.exists():
        findings.note(recorded.path.name, "it is not whole: the end of the log is not verified")
    try:
        recorded.check(end, log.last_segment, max(log.last, flushed))
    except LogCorruptError as error:
        findings.damage(LOG, error.message)
        return
    if log.tail is not None:
        findings.note(*log.tail)
    if log.first is None:
        if flushed:
            findings.note(LOG, f"it is empty; all data is in packs, up to position {flushed}")
    elif log.first > flushed + 1:
        findings.damage(
            LOG,
            f"it starts at position {log.first}, and positions {flushed + 1} to {log.first - 1} "
            "are neither in it nor in packs that the catalog knows: segments or packs are missing. "
            "If only the catalog is behind, use --repair; otherwise restore a backup",
        )
    elif log.last < flushed:
        findings.note(
            LOG, f"it ends at position {log.last}, and packs hold everything up to {flushed}"
        )


def _check_records(path: Path, frame: BatchFrame, findings: Findings) -> list[Published]:
    """Decode every record of a batch, and return the snapshots that it publishes."""
    published: list[Published] = []
    unknown: set[int] = set()
    try:
        for record in decode(frame.body):
            if record.kind not in _KINDS:
                unknown.add(record.kind)
            elif record.kind == Kind.SNAPSHOT:
                snapshot = decode_snapshot(record.payload)
                published.append(Published(frame.position, record.stream, snapshot))
    except (ValueError, msgspec.DecodeError) as error:
        findings.damage(
            f"{LOG}/{path.name}", f"the batch at position {frame.position} is malformed: {error}"
        )
        return []
    if unknown:
        kinds = ", ".join(str(kind) for kind in sorted(unknown))
        findings.damage(
            f"{LOG}/{path.name}",
            f"the batch at position {frame.position} has records of unknown kinds: {kinds}",
        )
    return published


def _check_tail(segment: Segment, end: int) -> tuple[str, str] | None:
    """Bytes after the last batch of the log were never acknowledged."""
    with segment.path.open("rb") as file:
        file.seek(end)
        rest = file.read()
    if not any(rest):
        return None
    what = f"an unfinished batch at byte {end}; the next start removes it"
    return f"{LOG}/{segment.path.name}", what


def _next_start(segments: list[Segment], damaged: Segment) -> int | None:
    following = (each for each in segments if each.number > damaged.number)
    return next((each.header.first_position for each in following), None)
