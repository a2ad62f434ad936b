"""What a layer above adds to the server: paths of its own, and work of its own behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import Metric

    from holdfast.clock import Clock
    from holdfast.engine.shard import Shard
    from holdfast.http.routes import Match, Router
    from holdfast.settings import Settings

    OpenMount = Callable[[Shard, Settings, Clock], "Mount"]


class Mount(Protocol):
    """A part of the server whose work http knows nothing of, only its paths and limits.

    In order: `start` once the shard takes writes, `stop` when the server begins to shut down, and
    `close` once nothing is pending any more.
    """

    # Paths that start so are offered to `place`.
    prefixes: tuple[bytes, ...]

    def place(self, path: bytes, router: Router) -> Match | None:
        """Where a path leads; None if it is somebody else's after all."""

    def start(self) -> None:
        """Take up what an earlier server left."""

    def stop(self) -> None:
        """Begin nothing more, and end what is under way."""

    async def close(self) -> None:
        """Let go of everything."""

    def metrics(self) -> Iterator[Metric]:
        """What it counts."""
