"""A real S3 server for tests: moto in a process of its own, on a port that the system chose.

    with MotoServer() as moto:
        bucket = moto.new_bucket()
        with moto.outage():  # connections are refused; nothing is lost
            ...

`moto.settings(bucket)` are the settings of a Holdfast server that uses the bucket.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from types import TracebackType
from typing import Self

import httpx

START_DEADLINE_S = 30.0
# Moto takes any keys. They are nobody's.
KEY_ID = "test-key-id"
SECRET = "test-secret-key"


class MotoServer:
    """One moto process; `start` and `stop` take the port up and down, the objects stay."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.moto_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._buckets = 0
        self.port = int(self._answer("up").split()[1])

    @property
    def endpoint(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.port}"

    def create_bucket(self, name: str) -> None:
        """Make a bucket."""
        httpx.put(f"{self.endpoint}/{name}").raise_for_status()

    def new_bucket(self) -> str:
        """Make a bucket with a name of its own."""
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        self.create_bucket(name)
        return name

    def settings(self, bucket: str, prefix: str = "some/prefix") -> dict[str, str]:
        """Settings of the storage group that name this bucket."""
        return {
            "store": f"s3://{bucket}/{prefix}".rstrip("/"),
            "s3_endpoint": self.endpoint,
            "s3_access_key_id": KEY_ID,
            "s3_secret_access_key": SECRET,
        }

    def stop(self) -> None:
        """Refuse connections from now on, and cut those that are open."""
        self._say("down")

    def start(self) -> None:
        """Take connections again."""
        self._say("up")

    def set_clock_behind(self, seconds: float) -> None:
        """Give new objects times of a clock that is behind."""
        self._say(f"behind {seconds}")

    def seen_keys(self) -> set[str]:
        """The ids of the keys that requests were signed with since the last time."""
        return set(self._say("keys").split()[1:])

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Be down for a while."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.terminate()
        self._process.wait()

    def _say(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._answer(command.split(maxsplit=1)[0])

    def _answer(self, expected: str) -> str:
        assert self._process.stdout is not None
        deadline = Timer(START_DEADLINE_S, self._process.kill)
        deadline.start()
        try:
            line = self._process.stdout.readline()
        finally:
            deadline.cancel()
        assert line.startswith(expected), f"moto said {line!r} instead of {expected}"
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
