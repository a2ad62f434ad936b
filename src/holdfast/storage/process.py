"""The storage process as the server sees it: it starts the process, talks to it, and restarts it.

Two pipes carry the messages of `commands`. A thread for each process reads its messages and posts
them to the event loop; everything else here runs on the loop. Commands that are pending when it
dies fail with an error, and callers retry them like after any failure.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import HoldfastError, StoreError, error_classes
from holdfast.storage.commands import (
    Ask,
    Done,
    Failed,
    FromChild,
    HeldSnapshots,
    Hello,
    LogLine,
    WhichAreHeld,
    WorkCounters,
    WorkReport,
    decode_from_child,
    framed,
    read_frame,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock
    from holdfast.storage.commands import Command, Setup, ToChild
    from holdfast.storage.garbage import HeldOf

    Reply = Callable[[int | HoldfastError], None]

_log = logging.getLogger("holdfast.storage")
_RESTART_S_MIN: Final = 0.1
_RESTART_S_MAX: Final = 5.0
_STOP_S: Final = 1.0
_SILENCE_S_MAX: Final = 60.0


class StorageProcess:
    """A `Worker` in a child process."""

    def __init__(self, setup: Setup, clock: Clock, inherited: tuple[int, ...]) -> None:
        self._setup = setup
        self._clock = clock
        self._inherited = inherited
        self._post: Callable[..., object] | None = None
        self._held_snapshots: HeldOf | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: dict[int, Reply] = {}
        self._last_id = 0
        self._restart_s = _RESTART_S_MIN
        self._stopping = False
        self._started_s = self._heard_s = 0.0
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self.restarts = 0
        # Of earlier processes, and of the current one.
        self._past = WorkCounters()
        self._present = WorkCounters()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def counters(self) -> WorkCounters:
        """The total over all processes so far."""
        return self._past + self._present

    def start(self, post: Callable[..., object], held_snapshots: HeldOf) -> None:
        """Start the process; `post` runs a call on the event loop from any thread."""
        self._post = post
        self._held_snapshots = held_snapshots
        self._spawn()

    def submit(self, command: Command, done: Reply) -> None:
        """Send a command; `done` gets an error at once if there is no process."""
        if self._process is None:
            done(StoreError("The storage process is not running; it is being started again."))
            return
        self._last_id += 1
        self._pending[self._last_id] = done
        self._send(Ask(self._last_id, command))

    def stop(self) -> None:
        """End the process and wait for it. Blocks; call it after the last `submit`."""
        self._stopping = True
        process, self._process = self._process, None
        if process is None:
            return
        self._outbox.put(None)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _spawn(self) -> None:
        if self._stopping:
            return
        try:
            process = subprocess.Popen(
                # -P: import nothing from the current directory.
                [sys.executable, "-P", "-m", "holdfast.storage.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=self._inherited,
            )
        except OSError as error:
            _log.error("the storage process cannot be started: %s", error)
            self._spawn_later()
            return
        self._process = process
        self._started_s = self._heard_s = self._clock.monotonic_s()
        self._outbox = SimpleQueue()
        self._send(self._setup)
        for target in (self._receive, self._write):
            arguments = (process, self._outbox) if target == self._write else (process,)
            threading.Thread(
                target=target, args=arguments, name="holdfast-storage", daemon=True
            ).start()
        self._clock.call_later(_SILENCE_S_MAX, self._watch, process)

    def _spawn_later(self) -> None:
        self._clock.call_later(self._restart_s, self._spawn)
        self._restart_s = min(2 * self._restart_s, _RESTART_S_MAX)

    def _send(self, message: ToChild) -> None:
        self._outbox.put(framed(message))

    @staticmethod
    def _write(process: subprocess.Popen[bytes], outbox: SimpleQueue[bytes | None]) -> None:
        """Write messages, in a thread since the pipe may be full."""
        assert process.stdin is not None
        # If the process has died, the reading thread notices.
        with contextlib.suppress(OSError):
            while (frame := outbox.get()) is not None:
                while frame:
                    frame = frame[os.write(process.stdin.fileno(), frame) :]
        with contextlib.suppress(OSError):
            process.stdin.close()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process that hangs; another one is started."""
        if process is not self._process or self._stopping:
            return
        silent_s = self._clock.monotonic_s() - self._heard_s
        if silent_s >= _SILENCE_S_MAX:
            _log.error("the storage process has said nothing for %.0f s and is ended", silent_s)
            process.kill()
        else:
            self._clock.call_later(_SILENCE_S_MAX - silent_s, self._watch, process)

    def _receive(self, process: subprocess.Popen[bytes]) -> None:
        """Post messages and the end of the process to the event loop, from a thread."""
        assert process.stdout is not None
        while (body := read_frame(process.stdout.read)) is not None:
            self._hand_over(self._received, decode_from_child(body))
        process.stdout.close()
        self._hand_over(self._died, process, process.wait())

    def _hand_over(self, call: Callable[..., object], *args: Any) -> None:
        assert self._post is not None
        try:
            self._post(call, *args)
        except RuntimeError:
            # The event loop is closed.
            if not self._stopping:
                raise

    def _received(self, message: FromChild) -> None:
        self._heard_s = self._clock.monotonic_s()
        match message:
            case Hello():
                _log.debug("the storage process is ready, flushed through %d", message.flushed)
            case Done():
                self._pending.pop(message.id)(message.flushed)
            case Failed():
                self._pending.pop(message.id)(_rebuilt(message))
            case WorkReport():
                self._present = message.counters
            case WhichAreHeld():
                assert self._held_snapshots is not None, "the process was started"
                self._send(HeldSnapshots([*self._held_snapshots(message.names)]))
            case LogLine():
                _log.log(message.level, "%s", message.message)

    def _died(self, process: subprocess.Popen[bytes], status: int) -> None:
        if self._stopping or process is not self._process:
            return
        self._outbox.put(None)
        self._process = None
        if self._clock.monotonic_s() - self._started_s > _RESTART_S_MAX:
            self._restart_s = _RESTART_S_MIN
        self._past, self._present = self.counters, WorkCounters()
        self.restarts += 1
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        _log.error("the storage process %s; starting another", how)
        pending, self._pending = self._pending, {}
        for done in pending.values():
            done(StoreError(f"The storage process {how}."))
        self._spawn_later()


def _rebuilt(failure: Failed) -> HoldfastError:
    """The error that was raised in the process."""
    cls = error_classes().get(failure.code, HoldfastError)
    error = cls.__new__(cls)
    HoldfastError.__init__(error, failure.message)
    return error
