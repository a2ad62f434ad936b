"""A pin on the packs of a server: nothing that was in use when it began is removed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.spark.connection import SparkClient

__all__ = ["pinned"]

# A job that is killed leaves its pin behind for so long.
TTL_S: Final = 900.0
_RENEWED_S: Final = TTL_S / 6


@contextmanager
def pinned(server: SparkClient, name: str) -> Iterator[None]:
    """Keep what is in use from being removed, and let go of it in the end."""
    server.run(lambda client: client.storage.pin_packs(name, TTL_S))
    over = Event()
    renewing = Thread(target=_renew, args=(server, name, over), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        over.set()
        renewing.join()
        # It ends by itself, and what the job has done is done.
        with suppress(HoldfastError):
            server.run(lambda client: client.storage.pin_packs(name, 0))


def _renew(server: SparkClient, name: str, over: Event) -> None:
    while not over.wait(_RENEWED_S):
        # If the server is away for longer than the pin lasts, a pack may go while it is read. That
        # is noticed, and nothing worse than a rewrite in vain.
        with suppress(HoldfastError):
            server.run(lambda client: client.storage.pin_packs(name, TTL_S))
