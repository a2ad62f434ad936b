"""Servers forked from one process that has imported them already.

The tests start hundreds of servers, and importing one takes longer than most tests. `spawn` returns
a process much like `subprocess.Popen` does. A few tests still start the real command.

Run as a program, this module is the process that forks. A request on its standard input is JSON
with three file descriptors: stdout and stderr of the new process, and a pipe for its exit status.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

ROOT = Path(__file__).parents[1]
PRELOADED = ("holdfast.cli.serve", "holdfast.storage.cold", "encodings.idna")


class ForkedProcess:
    """A running `holdfast` command; the part of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, stdout: IO[str], status: int) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._status = status

    def send_signal(self, number: int) -> None:
        # It may have ended without its status having arrived.
        with contextlib.suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        if self.returncode is None:
            with contextlib.suppress(BlockingIOError):
                self._read_status()
        return self.returncode

    def wait(self, timeout: float = 3600) -> int:
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("holdfast", timeout)
            time.sleep(0.005)
        return status

    def _read_status(self) -> None:
        text = os.read(self._status, 32)
        os.close(self._status)
        # Without a status the process that forks was killed, and so is everything it started.
        self.returncode = os.waitstatus_to_exitcode(int(text)) if text else -signal.SIGKILL


def spawn(arguments: list[str], stderr: IO[str]) -> ForkedProcess:
    """Run `holdfast` with these arguments, in this process's environment and directory."""
    reading, writing = os.pipe()
    status, status_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_inheritable(reading, False)
    request = {"arguments": arguments, "env": dict(os.environ), "cwd": str(Path.cwd())}
    connection = _connection()
    text = json.dumps(request).encode()
    connection.sendall(len(text).to_bytes(4))
    socket.send_fds(connection, [text[:1]], [writing, stderr.fileno(), status_end])
    connection.sendall(text[1:])
    os.close(writing)
    os.close(status_end)
    pid = int.from_bytes(_read_exactly(connection, 4))
    return ForkedProcess(pid, os.fdopen(reading), status)


_started: list[tuple[int, socket.socket]] = []


def _connection() -> socket.socket:
    """The socket to the process that forks, which is started on first use."""
    if not _started or _started[0][0] != os.getpid():
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server"], stdin=theirs, cwd=ROOT
        )
        theirs.close()
        _started[:] = [(os.getpid(), ours)]

        def stop() -> None:
            ours.close()
            process.wait()

        atexit.register(stop)
    return _started[0][1]


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def _serve_forks() -> None:
    """Fork a process for each request until the other end of the socket is closed."""
    connection = socket.socket(fileno=os.dup(0))
    statuses: dict[int, int] = {}
    woken, waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waking)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Ctrl-C is meant for the tests, which end their servers themselves.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([connection, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report_ended(statuses)
        if connection in ready:
            try:
                size = int.from_bytes(_read_exactly(connection, 4))
            except EOFError:
                return
            first, fds, _, _ = socket.recv_fds(connection, 1, 3)
            request = json.loads(first + _read_exactly(connection, size - 1))
            stdout, stderr, status = fds
            pid = os.fork()
            if pid == 0:
                connection.close()
                for fd in (woken, waking, status, *statuses.values()):
                    os.close(fd)
                _run(request, stdout, stderr)
            statuses[pid] = status
            os.close(stdout)
            os.close(stderr)
            connection.sendall(pid.to_bytes(4))


def _report_ended(statuses: dict[int, int]) -> None:
    for pid in list(statuses):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            os.write(statuses[pid], b"%d" % status)
            os.close(statuses.pop(pid))


def _run(request: dict[str, Any], stdout: int, stderr: int) -> NoReturn:
    """Become the command."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["holdfast", *request["arguments"]]
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - until the process ends
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - the same
    try:
        status = main(request["arguments"])
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - whatever it is, this process must not fork again
        traceback.print_exc()
        status = 1
    os._exit(status)


if __name__ == "__main__":
    for name in PRELOADED:
        import_module(name)
    from holdfast.cli.main import main

    _serve_forks()
