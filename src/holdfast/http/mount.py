"""The interface for a package above `http` that adds paths to the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from prometheus_client.core import Metric

    from holdfast.http.access.scopes import Identity
    from holdfast.http.app import App
    from holdfast.http.exchange import Request
    from holdfast.http.routes import Match, Router


class Mount(Protocol):
    """Paths of a package above, and the work behind them.

    In order: `start` once the shard takes writes, `stop` when the server begins to shut down, and
    `close` once nothing is pending any more.
    """

    # Paths that start with these are offered to `match`.
    prefixes: tuple[bytes, ...]
    # Requests below this path keep all their headers. The body of a POST to it is handled while it
    # arrives, up to this size.
    forwarded_path: bytes
    forwarded_bytes_max: int
    # A YAML file with the mount's part of the OpenAPI document, in the form of `openapi.yaml`; None
    # if it has no routes.
    openapi: Path | None

    def match(self, path: bytes, router: Router) -> Match | None:
        """Where a path leads; None if it is not the mount's after all."""

    def check_reader(self, app: App, request: Request) -> Identity:
        """Check again a request for a live read that the mount has admitted; raises."""

    def admit_to_packs(self, app: App, request: Request) -> Identity | None:
        """Raise unless the request may read packs, which hold the mount's streams as well.

        Called only where access control is off.
        """

    def start(self) -> None:
        """Continue what an earlier server left unfinished."""

    def stop(self) -> None:
        """Begin nothing new, and end what is under way."""

    async def close(self) -> None:
        """Release all resources."""

    def metrics(self) -> Iterator[Metric]:
        """The mount's metric families."""
