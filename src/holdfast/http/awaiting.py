"""Waiting for calls that answer by calling back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable

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
