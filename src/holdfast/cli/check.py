"""`holdfast check`: whether the data is sound, and the catalog rebuilt where it is not."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.backup_place import AsJson, careful, say
from holdfast.cli.flags import NO_FLAGS, ConfigFile, SettingFlags, load_settings
from holdfast.cli.inspection import Inspection, Outcome
from holdfast.cli.logs import set_up_logging
from holdfast.cli.progress import Bar, progress
from holdfast.cli.wording import as_bytes
from holdfast.clock import SystemClock
from holdfast.errors import DataDirectoryLockedError, SettingsError
from holdfast.log.directory import DataDirectory
from holdfast.objects.store import store_owner
from holdfast.settings import Settings
from holdfast.storage.findings import Finding, Progress
from holdfast.storage.garbage import PACKS_PREFIX
from holdfast.storage.open_objects import open_objects

__all__ = ["as_document", "as_text", "check"]

EXIT_DAMAGE = 1
EXIT_INTERRUPTED = 130
# The bar moves in this many steps: more would only take time.
BAR_STEPS = 500


def check(
    *,
    repair: Annotated[
        bool,
        Parameter(negative="", help="Rebuild the catalog from the packs where it is damaged."),
    ] = False,
    json: AsJson = False,
    flags: SettingFlags = NO_FLAGS,
    config: ConfigFile = None,
) -> int:
    """Verify every byte of a data directory that no server uses, or of a store alone.

    Exits with 0 if there is no damage and with 1 if there is. Without --repair nothing is changed.
    """
    settings = load_settings(config, flags)
    # What recovery would warn about is found and said here as well.
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
    say(as_document(outcome), as_text(outcome, seconds), as_json=json)
    return 0 if outcome.findings.ok else EXIT_DAMAGE


def _inspect(settings: Settings, clock: SystemClock, *, repair: bool) -> Outcome:
    path = settings.server.data_dir
    store = open_objects(settings.storage, path / "objects")
    if not path.exists() and settings.storage.store:
        if not store_owner(store) and next(store.list(PACKS_PREFIX), None) is None:
            raise SettingsError(f"{store.url} holds nothing of Holdfast: no packs and no marker")
        if not repair:
            return Inspection(store, None, clock, _bar).run(repair=False)
        # The disk was lost, the store was not: everything that was flushed comes back.
        directory = DataDirectory.open(path)
    else:
        directory = _open_directory(path)
    try:
        return Inspection(store, directory, clock, _bar).run(repair=repair)
    finally:
        directory.close()


def _open_directory(path: Path) -> DataDirectory:
    """Lock the directory, which must be one: nothing is made here that is not there."""
    for part in ("format", "log"):
        if not (path / part).exists():
            raise SettingsError(
                f"{path} is not a data directory: it has no {part!r}. Choose one with --data-dir"
            )
    try:
        return DataDirectory.open(path)
    except DataDirectoryLockedError as error:
        raise DataDirectoryLockedError(
            f"{error.message} What a running server has can be checked in a backup of it."
        ) from None


@contextmanager
def _bar(what: str) -> Iterator[Progress]:
    """A bar that appears once it is known how much there is to do."""
    bar: Bar | None = None
    shown = 0
    with ExitStack() as stack:

        def report(done: int, total: int) -> None:
            nonlocal bar, shown
            if bar is None:
                bar = stack.enter_context(progress(what, total))
            if done - shown >= total // BAR_STEPS or done == total:
                bar.advance(done - shown)
                shown = done

        yield report


def as_text(outcome: Outcome, seconds: float) -> str:
    """What was found, a line each, and a summary."""
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


def as_document(outcome: Outcome) -> dict[str, object]:
    """The same, as `--json` prints it."""
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
