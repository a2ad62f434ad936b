"""The swap, as seen from a job: asked for once, and its outcome found out if the answer is lost."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from typing import Final, Literal

from holdfast.errors import HoldfastError, SwapRefusedError
from holdfast.format.packs import PackInfo
from holdfast.spark.connection import SparkClient

__all__ = ["in_use", "swap"]

# The server reads the new pack from end to end before it answers, which may take longer than a
# client waits for an answer.
_PATIENCE_S: Final = 600
_ASKED_S: Final = 2


def swap(
    server: SparkClient, new: str, old: Sequence[str]
) -> Literal["done", "refused", "unknown"]:
    """Have a pack take the place of others.

    `refused` is certain: the pack is not in use, and never will be. Raises what the server says of
    the request itself, such as that the token is not good for it.
    """
    try:
        server.run(lambda client: client.storage.swap_packs([new], old))
    except SwapRefusedError:
        # An answer may have been lost on the way, and the request sent again.
        return "done" if _has_come(new, _packs(server)) else "refused"
    except HoldfastError as error:
        if error.status < 500:
            raise
        return _find_out(server, new, old)
    return "done"


def in_use(server: SparkClient, names: Sequence[str]) -> bool:
    """Whether all of these packs are in use."""
    return {pack.name for pack in _packs(server)}.issuperset(names)


def _find_out(
    server: SparkClient, new: str, old: Sequence[str]
) -> Literal["done", "refused", "unknown"]:
    """What became of a swap whose answer is not known."""
    pause = Event()
    for _ in range(_PATIENCE_S // _ASKED_S):
        packs = _packs(server)
        if _has_come(new, packs):
            return "done"
        if not {pack.name for pack in packs}.issuperset(old):
            # A pack that went out of use never comes back: it cannot be done any more.
            return "refused"
        pause.wait(_ASKED_S)
    return "unknown"


def _has_come(new: str, packs: Sequence[PackInfo]) -> bool:
    """Whether the pack is in use, or was and has been merged into another already."""
    return any(new == pack.name or new in pack.superseded for pack in packs)


def _packs(server: SparkClient) -> list[PackInfo]:
    return server.collect(lambda client: client.storage.packs())
