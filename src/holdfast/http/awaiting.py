"""Waiting for calls that answer by calling back, in a coroutine or without one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from holdfast.errors import HoldfastError
from holdfast.http.errors import answer_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.http.exchange import Slot

Answer = TypeVar("Answer")


async def answer_of(ask: Callable[[Callable[[Answer | HoldfastError], None]], None]) -> Answer:
    """What `ask` calls its argument with; raises if that is an error."""
    future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def done(result: Answer | HoldfastError) -> None:
        if future.done():
            return
        if isinstance(result, HoldfastError):
            future.set_exception(result)
        else:
            future.set_result(result)

    ask(done)
    return await future


def answer_later(
    slot: Slot,
    ask: Callable[[Callable[[Answer | HoldfastError], None]], None],
    then: Callable[[Answer], None],
) -> None:
    """Have `then` answer with what `ask` calls its argument with; errors are answered here.

    Nothing happens if the client has left by then.
    """
    gone = False

    def leave() -> None:
        nonlocal gone
        gone = True

    def done(result: Answer | HoldfastError) -> None:
        if gone:
            return
        slot.on_gone = None
        if isinstance(result, HoldfastError):
            answer_error(slot, result)
            return
        try:
            then(result)
        except HoldfastError as error:
            answer_error(slot, error)

    slot.on_gone = leave
    ask(done)
