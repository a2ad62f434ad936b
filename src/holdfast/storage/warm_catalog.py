"""The server's catalog: its look-ups do not make the event loop wait for the disk.

A look-up runs on the event loop, in about 20 µs, while all of the catalog is in the page cache. A
thread checks that every second with `mincore`. While parts of it are not, a look-up raises a
`CatalogWait` for those who can wait: a thread makes the same look-up first, which brings its pages
into the page cache, and then they start again from their beginning. The result of the thread is not
used, so what is looked up is as new as ever.

Rules:

- Only calls made through `look_up` and `attempt` wait. They must not change anything before their
  last look-up, since they are repeated.
- Everything else is looked up at once, as in a catalog in the page cache.
"""

from __future__ import annotations

import logging
import threading
from contextlib import closing, suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast.errors import HoldfastError
from holdfast.failpoints import failpoint
from holdfast.storage.catalog import BY_NAME, Catalog
from holdfast.storage.catalog_schema import BY_NUMBER
from holdfast.storage.page_cache import CachedFiles
from holdfast.storage.pending import Pending

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from holdfast.clock import Clock
    from holdfast.storage.catalog import Look

    Job = Callable[["_Reader"], Any]

T = TypeVar("T")
_log = logging.getLogger(__name__)
# Disks answer several requests at a time.
_THREADS: Final = 4
# Jobs that a thread gets at a time; each hand-over costs about as much as ten look-ups.
_JOBS_MAX: Final = 32
# A call that still waits after this many repetitions is made at once.
_WAITS_MAX: Final = 32
_CHECK_S: Final = 1.0
# A check runs for at most this share of the time.
_CHECK_SHARE: Final = 0.02


class CatalogWait(Exception):  # noqa: N818 (not an error)
    """Look-ups have to wait for the disk."""

    def __init__(self, looks: list[Look]) -> None:
        super().__init__(looks[0][0])
        self.looks = looks


class WarmCatalog(Catalog):
    """A catalog for an event loop, with threads that read ahead of it."""

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(path)
        self._clock = clock
        self._files = CachedFiles(
            [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]
        )
        self._post: Callable[..., object] | None = None
        # What the current call need not wait for; None if it cannot wait at all.
        self._warmed: Collection[Look] | None = None
        self._jobs: list[tuple[Job, Pending[Any]]] = []
        self._handed: SimpleQueue[list[tuple[Job, Pending[Any]]] | None] = SimpleQueue()

    def start(self, post: Callable[..., object]) -> None:
        """Start the threads; `post` runs a call on the event loop from any thread."""
        self._post = post
        # Daemons: a disk that does not respond must not hold up the end of the process.
        for number in range(_THREADS):
            threading.Thread(
                target=self._serve, args=[_Reader(self.path)], name=f"catalog-{number}", daemon=True
            ).start()
        self.may_wait = True
        self._check()

    def close(self) -> None:
        self.may_wait = False
        if self._post is not None:
            self._post = None
            for _ in range(_THREADS):
                self._handed.put(None)
        super().close()

    def read(
        self, statement: str, values: Sequence[object] | Mapping[str, object] = ()
    ) -> list[Any]:
        """The rows of a query; raises a CatalogWait if the current call has to wait for them."""
        if self._warmed is not None:
            look = (statement, tuple(values))
            if look not in self._warmed:
                raise CatalogWait([look])
        return super().read(statement, values)

    def attempt(self, call: Callable[[], T], warmed: Collection[Look] = ()) -> T:
        """Make a call; raises a CatalogWait at a look-up that is not in `warmed`."""
        outer, self._warmed = self._warmed, warmed if self.may_wait else None
        try:
            return call()
        finally:
            self._warmed = outer

    def expect(self, looks: Iterable[Look]) -> None:
        if self._warmed is None:
            return
        missing = [look for look in looks if look not in self._warmed]
        if missing:
            raise CatalogWait(missing)
        self._warmed = None

    async def look_up(self, call: Callable[[], T]) -> T:
        warmed: set[Look] = set()
        for _ in range(_WAITS_MAX):
            try:
                return self.attempt(call, warmed)
            except CatalogWait as wait:
                looks = wait.looks
            warmed.update(looks)
            warmed.update(await self.warm(partial(_Reader.follow, looks=looks)) or ())
        return call()

    def warm(self, job: Callable[[_Reader], T]) -> Pending[T | None]:
        """Run a job in a thread, with a catalog of its own; the result is None if it fails."""
        pending: Pending[T | None] = Pending()
        if not self._jobs:
            # At the end of this round of the event loop, together with others.
            self._clock.call_soon(self._hand_over)
        self._jobs.append((job, pending))
        return pending

    def _hand_over(self) -> None:
        jobs, self._jobs = self._jobs, []
        for first in range(0, len(jobs), _JOBS_MAX):
            self._handed.put(jobs[first : first + _JOBS_MAX])

    def _done(self, results: list[tuple[Pending[Any], Any]]) -> None:
        for pending, result in results:
            pending.set(result)

    def _check(self) -> None:
        if self._post is not None:
            self.warm(self._are_resident).then(self._checked)

    def _checked(self, result: tuple[bool, float] | HoldfastError | None) -> None:
        if self._post is None:
            return
        is_resident, took_s = result if isinstance(result, tuple) else (False, 0.0)
        self.may_wait = not is_resident
        self._clock.call_later(max(_CHECK_S, took_s / _CHECK_SHARE), self._check)

    # In the threads.

    def _are_resident(self, _: Catalog) -> tuple[bool, float]:
        """Whether all files of the catalog are in the page cache, and how long it took to see."""
        began_s = self._clock.monotonic_s()
        return self._files.are_resident(), self._clock.monotonic_s() - began_s

    def _serve(self, catalog: _Reader) -> None:
        with closing(catalog):
            while (jobs := self._handed.get()) is not None:
                results = [(pending, _result(job, catalog)) for job, pending in jobs]
                post = self._post
                if post is None:
                    return
                with suppress(RuntimeError):
                    # The event loop may be closed by now.
                    post(self._done, results)


class _Reader(Catalog):
    """The catalog of a thread, which lists the look-ups made."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._looks: list[Look] = []

    def read(
        self, statement: str, values: Sequence[object] | Mapping[str, object] = ()
    ) -> list[Any]:
        self._looks.append((statement, tuple(values)))
        return super().read(statement, values)

    def follow(self, looks: list[Look]) -> list[Look]:
        """Make look-ups; where one finds a fork, those of its sources follow. Returns all."""
        self._looks = []
        for statement, values in looks:
            rows = self.read(statement, values)
            if rows and statement in {BY_NAME, BY_NUMBER}:
                self.find_sources(self.decoded(rows[0][0]))
        made, self._looks = self._looks, []
        return made


def _result(job: Job, catalog: _Reader) -> Any:
    failpoint("catalog.warm")
    try:
        return job(catalog)
    except HoldfastError:
        # The event loop's look-up meets the same error, and reports it.
        return None
    except Exception:  # noqa: BLE001 (whoever waits goes on, and so does the thread)
        _log.exception("reading the catalog ahead failed")
        return None
