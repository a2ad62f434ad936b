"""An iterator whose next items are made while the present one is used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, TypeVar

T = TypeVar("T")
_DEPTH: Final = 2
_END: Final = object()


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, made in a thread of their own, a few of them ahead."""
    made: queue.Queue[object] = queue.Queue(_DEPTH)
    unwanted = threading.Event()

    def make() -> None:
        last: object = _END
        try:
            for item in items:
                made.put(item)
                if unwanted.is_set():
                    break
        except BaseException as error:  # noqa: BLE001 (raised where the items are used)
            last = _Failure(error)
        made.put(last)

    thread = threading.Thread(target=make, name="holdfast-ahead", daemon=True)
    thread.start()
    try:
        while (item := made.get()) is not _END:
            if isinstance(item, _Failure):
                raise item.error
            yield item  # type: ignore[misc]
    finally:
        unwanted.set()
        # Whoever waits for room gets it, and sees that nobody wants more.
        with suppress(queue.Empty):
            while True:
                made.get_nowait()
        thread.join()


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error
