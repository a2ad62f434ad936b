"""A request as an upstream received it, and the test's hold on the answer to it."""

import asyncio
import json
from threading import Condition
from typing import Any
from urllib.parse import parse_qs, urlsplit

DEADLINE_S = 20.0
# More than any answer has pieces.
_ALL = 1 << 30


class Request:
    """What was asked, how far the answer is, and whether the client stayed for it.

    Made in the upstream's thread; everything public may be called from any other.
    """

    def __init__(
        self,
        method: str,
        target: str,
        headers: list[tuple[str, str]],
        body: bytes,
        http_version: str,
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body
        self.http_version = http_version
        self._loop = asyncio.get_running_loop()
        self._allowed = 0
        self._gate = asyncio.Event()
        self._changed = Condition()
        self._sent = 0
        self._ended: str | None = None

    @property
    def path(self) -> str:
        """The path, without the query."""
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, list[str]]:
        """The query's values, by name."""
        return parse_qs(urlsplit(self.target).query, keep_blank_values=True)

    def values(self, name: str) -> list[str]:
        """All values of a header, in the order in which they came."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def header(self, name: str) -> str | None:
        """A header's value, if it came exactly once."""
        values = self.values(name)
        return values[0] if len(values) == 1 else None

    @property
    def json(self) -> Any:
        """What the body says."""
        return json.loads(self.body)

    def release(self, count: int = 1) -> None:
        """Let so many pieces go, of an answer that was asked for with `gate`."""
        self._loop.call_soon_threadsafe(self._release, count)

    def release_all(self) -> None:
        """Let the whole answer go, with its end."""
        self.release(_ALL)

    @property
    def sent(self) -> int:
        """How many pieces of the body have been handed to the connection."""
        return self._sent

    @property
    def disconnected(self) -> bool:
        """Whether the client left before the answer had ended."""
        return self._ended == "disconnected"

    def wait_for_disconnect(self, timeout_s: float = DEADLINE_S) -> None:
        """Wait until the client has left, which has to be before the answer's end."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._ended is not None, timeout_s), (
                f"{self} is still under way"
            )
        assert self.disconnected, f"{self} was answered to its end"

    def wait_for_end(self, timeout_s: float = DEADLINE_S) -> None:
        """Wait until the answer has been given, up to the end that was asked for."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._ended is not None, timeout_s), (
                f"{self} is still under way"
            )
        assert not self.disconnected, f"{self}: the client left"

    async def pass_gate(self) -> None:
        """Wait for the test to let the next piece go."""
        await self._gate.wait()
        self._allowed -= 1
        if not self._allowed:
            self._gate.clear()

    def count_piece(self) -> None:
        """A piece has been sent."""
        self._sent += 1

    def end(self, how: str) -> None:
        """The answer has been given, or nobody waits for it any more; the first one counts."""
        with self._changed:
            self._ended = self._ended or how
            self._changed.notify_all()

    def _release(self, count: int) -> None:
        self._allowed += count
        self._gate.set()

    def __str__(self) -> str:
        return f"{self.method} {self.target}"
