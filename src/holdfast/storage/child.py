"""The storage process: `python -m holdfast.storage.child`, started by the server.

It lives as long as its standard input: when the server ends, however it ends, the closed pipe ends
this process at once. That is safe at any point, and necessary: this process inherits the lock of
the data directory, so a new server waits until it is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.allocator import give_freed_memory_back
from holdfast.clock import SteadyClock
from holdfast.errors import HoldfastError, SwapRefusedError
from holdfast.format.packs import NewPack
from holdfast.objects.pack_merge import MergePlan
from holdfast.storage.catalog_writer import CatalogWriter
from holdfast.storage.commands import (
    HEARTBEAT_S,
    Alive,
    Ask,
    Done,
    Failed,
    FromChild,
    HeldSnapshots,
    Hello,
    LogLine,
    Setup,
    SwapPacks,
    WhichAreHeld,
    WorkReport,
    decode_to_child,
    framed,
    read_frame,
)
from holdfast.storage.open_objects import open_objects, take_ownership
from holdfast.storage.worker import StorageWorker

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("holdfast.storage")
_COLLECT_S: Final = 600.0
# After a collection that stopped early, so that a flush does not wait for long.
_COLLECT_MORE_S: Final = 10.0
_MERGE_RETRY_S: Final = 10.0
# Swaps of jobs that are checked at the same time; others wait.
_VERIFIED_AT_ONCE: Final = 2
# The server has priority for the processor.
_NICENESS: Final = 5


_out = 1
_sending = threading.Lock()


class _Merged(NamedTuple):
    """The result of a merge: a written pack, or an error."""

    result: NewPack | HoldfastError
    seconds: float


class _Verified(NamedTuple):
    """A swap whose new packs were read, or the error."""

    id: int
    swap: SwapPacks
    packs: list[NewPack] | HoldfastError


class Child:
    """The main loop: commands first, then merging, and garbage from time to time."""

    def __init__(self, setup: Setup, inbox: SimpleQueue[Any], held: SimpleQueue[list[str]]) -> None:
        # Grace periods and pins must not end early because somebody sets the machine's time.
        self._clock = SteadyClock()
        self._inbox = inbox
        self._held = held
        self._store = open_objects(setup.storage, Path(setup.objects_path))
        self._catalog = CatalogWriter(Path(setup.catalog_path))
        self._is_ours = False
        self._worker = StorageWorker(
            self._catalog,
            self._store,
            self._clock,
            merge_packs=setup.storage.merge_packs,
            garbage_grace_s=setup.storage.garbage_grace_s,
            producers_max=setup.limits.producers_max,
            producer_idle_s=setup.limits.producer_idle_s,
            read_file=lambda path: Path(path).read_bytes(),
            held_snapshots=self._held_snapshots,
            between_ranges=self._go_on_merging,
        )
        self._verifying = ThreadPoolExecutor(_VERIFIED_AT_ONCE, "swap")
        self._merged: _Merged | None = None
        self._collect_at_s = self._merge_at_s = self._clock.monotonic_s()

    def run(self) -> None:
        send(Hello(self._worker.flushed))
        while True:
            with contextlib.suppress(Empty):
                self._handle(self._inbox.get(timeout=self._idle_s()))
            if self._inbox.empty():
                self._housekeeping()
            send(WorkReport(self._worker.counters))

    def _housekeeping(self) -> None:
        self._tend(self._collect_garbage, self._start_merge)

    def _go_on_merging(self) -> None:
        """Finish a merge and start the next one, between two ranges of a flush."""
        self._tend(self._finish_merge, self._start_merge)

    def _tend(self, *work: Callable[[], None]) -> None:
        """Merge packs or collect garbage; failures there must not stop flushes."""
        try:
            for each in work:
                each()
        except HoldfastError as error:
            self._merge_at_s = self._clock.monotonic_s() + _MERGE_RETRY_S
            _log.warning("merging or collecting garbage failed: %s", error.message)
        except Exception:  # noqa: BLE001 (see above)
            self._merge_at_s = self._clock.monotonic_s() + _MERGE_RETRY_S
            _log.exception("merging or collecting garbage ended in a defect")

    def _collect_garbage(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s >= self._collect_at_s:
            self._collect_at_s = now_s + _COLLECT_S
            self._check_owner()
            if self._worker.collect():
                self._collect_at_s = now_s + _COLLECT_MORE_S

    def _idle_s(self) -> float:
        """Seconds until the next scheduled work."""
        due_s = [self._collect_at_s]
        now_s = self._clock.monotonic_s()
        if self._merge_at_s > now_s:
            due_s.append(self._merge_at_s)
        return max(0.0, min(due_s) - now_s)

    def _held_snapshots(self, names: list[str]) -> list[str]:
        """Ask the server, and wait: it responds at once, and this process ends with it."""
        send(WhichAreHeld(names))
        return self._held.get()

    def _handle(self, item: Ask | _Merged | _Verified) -> None:
        if isinstance(item, _Merged):
            self._finish_merge()
        elif isinstance(item, _Verified):
            swap = item.swap
            self._respond(item.id, lambda: self._worker.finish_swap(swap, item.packs))
        elif isinstance(item.command, SwapPacks):
            # Reading from the packs may take long, and a flush must not wait for it.
            self._verifying.submit(self._verify, item.id, item.command)
        else:
            command = item.command
            self._respond(item.id, lambda: self._worker.handle(command))

    def _verify(self, number: int, swap: SwapPacks) -> None:
        try:
            packs = self._worker.verify_swap(swap)
        except BaseException as error:  # noqa: BLE001 (a panic of obstore's is no Exception)
            _log.exception("reading the packs of a swap ended in a defect")
            packs = SwapRefusedError(f"The packs cannot be read: {error!r}.")
        self._inbox.put(_Verified(number, swap, packs))

    def _respond(self, number: int, work: Callable[[], None]) -> None:
        """Carry out a command and report the result to the server."""
        try:
            self._check_owner()
            work()
        except HoldfastError as error:
            send(Failed(number, error.code, error.message))
        except Exception as error:  # noqa: BLE001 (the server retries, and says so)
            _log.exception("a command of the server failed")
            send(Failed(number, HoldfastError.code, f"{type(error).__name__}: {error}"))
        else:
            # Counters first: this process may end before it can send them.
            send(WorkReport(self._worker.counters))
            send(Done(number, self._worker.flushed))

    def _check_owner(self) -> None:
        """Claim or recognise the store before anything is written or removed."""
        if not self._is_ours:
            take_ownership(self._catalog, self._store, f"{self._clock.random_u64():016x}")
            self._is_ours = True

    def _start_merge(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s < self._merge_at_s:
            return
        self._merge_at_s = now_s
        plan = self._worker.plan_merge() if self._is_ours else None
        if plan is not None:
            threading.Thread(target=self._merge, args=(plan,), daemon=True).start()

    def _finish_merge(self) -> None:
        """Put the pack of a merge into use, unless that was done between two ranges of a flush."""
        merged, self._merged = self._merged, None
        if merged is not None and not self._worker.finish_merge(merged.result, merged.seconds):
            self._merge_at_s = self._clock.monotonic_s() + _MERGE_RETRY_S

    def _merge(self, plan: MergePlan) -> None:
        started_s = self._clock.monotonic_s()
        try:
            result = self._worker.write_merge(plan)
        except BaseException as error:  # noqa: BLE001 (a panic of obstore's is no Exception)
            _log.exception("a merge ended in a defect")
            result = HoldfastError(f"{type(error).__name__}: {error}")
        self._merged = _Merged(result, self._clock.monotonic_s() - started_s)
        self._inbox.put(self._merged)


class _ToServer(logging.Handler):
    """Sends log records to the server's log."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # File names may not be valid text.
            line = self.format(record).encode("utf-8", "backslashreplace").decode()
            send(LogLine(record.levelno, line))
        except Exception:  # noqa: BLE001 (as every handler does)
            self.handleError(record)


def send(message: FromChild) -> None:
    """Send a message; if the server is gone this process is about to end."""
    data = framed(message)
    with _sending, contextlib.suppress(OSError):
        while data:
            data = data[os.write(_out, data) :]


def _receive(inbox: SimpleQueue[Any], held: SimpleQueue[list[str]]) -> None:
    """Queue the server's messages, and end with the server."""
    status = 1
    try:
        while (body := read_frame(sys.stdin.buffer.read)) is not None:
            message = decode_to_child(body)
            if isinstance(message, HeldSnapshots):
                held.put(message.names)
            else:
                inbox.put(message)
        status = 0
    finally:
        os._exit(status)


def _beat() -> None:
    """Send heartbeats."""
    pause = threading.Event()
    while True:
        pause.wait(HEARTBEAT_S)
        send(Alive())


def main() -> None:
    # Ctrl-C in a terminal reaches this process too, but the server decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    give_freed_memory_back()
    inbox: SimpleQueue[Any] = SimpleQueue()
    held: SimpleQueue[list[str]] = SimpleQueue()
    threading.Thread(target=_receive, args=(inbox, held), daemon=True).start()
    threading.Thread(target=_beat, daemon=True).start()
    setup = inbox.get()
    handler = _ToServer()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logging.basicConfig(level=setup.log.level.upper(), handlers=[handler])
    try:
        Child(setup, inbox, held).run()
    except HoldfastError as error:
        _log.error("the storage process cannot work: %s", error.message)
    except BaseException:  # noqa: BLE001 (it ends in any case, and says why)
        _log.exception("the storage process ended in a defect")
    # Not through the interpreter: a thread may be reading from the pipe.
    os._exit(1)


if __name__ == "__main__":
    # Messages have the pipe for themselves: whatever else is printed goes to stderr.
    _out = os.dup(1)
    os.dup2(2, 1)
    main()
