"""How an answer is given, whatever the version of HTTP."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from tests.upstreams.replies import Reply
from tests.upstreams.requests import Request


class Wire(Protocol):
    """The way of one answer to its client."""

    def start(self, reply: Reply) -> None:
        """Send the head, and interim responses before it."""

    async def send(self, piece: bytes) -> None:
        """Send a piece of the body, when there is room for it."""

    def finish(self) -> None:
        """Send what says that the body is complete."""

    def cut(self) -> None:
        """Close the connection without having finished."""

    def reset(self) -> None:
        """End it the rude way: RST, or RST_STREAM where there are streams."""

    def send_raw(self, raw: bytes) -> None:
        """Send just this, and close the connection."""


Serve = Callable[[Request, Wire], Awaitable[None]]


async def answer(request: Request, reply: Reply, wire: Wire) -> None:
    """Give the answer. Cancelled when the client leaves."""
    if reply.gate == "headers":
        await request.pass_gate()
    if reply.raw is not None:
        wire.send_raw(reply.raw)
        return
    wire.start(reply)
    for at, piece in enumerate(reply.pieces()):
        if at == reply.after:
            break
        await _wait(request, reply)
        request.count_piece()
        await wire.send(piece)
    await _end(request, reply, wire)


async def _wait(request: Request, reply: Reply) -> None:
    if reply.gate:
        await request.pass_gate()
    if reply.delay_s:
        await asyncio.sleep(reply.delay_s)


async def _end(request: Request, reply: Reply, wire: Wire) -> None:
    if reply.end == "silent":
        await asyncio.Event().wait()
    if reply.gate:
        await request.pass_gate()
    {"complete": wire.finish, "cut": wire.cut, "reset": wire.reset}[reply.end]()
