"""Connections to checked addresses only.

Between checking a name and connecting to it the name may change its address, at its owner's will.
So the name is resolved once, here: every address it has is checked, and the connection is made to
one of those that were. TLS and the Host header go on using the name.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import httpcore

from holdfast.errors import OutboundError
from holdfast.net.addresses import parse_address
from holdfast.net.sockets import SocketStream, connect
from holdfast.net.targets import Policy

# The addresses of a host and port, best first.
Resolver = Callable[[str, int], Awaitable[list[str]]]

ADDRESSES_TRIED_MAX: Final = 4
_Option = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]


async def system_resolver(host: str, port: int) -> list[str]:
    """Ask the system, in a thread."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in found]


class PinnedBackend(httpcore.AsyncNetworkBackend):
    """Opens connections for the pool, after the policy's check of every address."""

    def __init__(self, policy: Policy, resolve: Resolver) -> None:
        self._policy = policy
        self._resolve = resolve

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (named by httpcore)
        local_address: str | None = None,
        socket_options: Iterable[_Option] | None = None,
    ) -> SocketStream:
        """Connect to one of the host's addresses, if all of them may be connected to."""
        addresses = await self._addresses(host, port)
        for address in addresses:
            self._policy.check_address(host, port, address)
        tried = addresses[:ADDRESSES_TRIED_MAX]
        share_s = None if timeout is None else timeout / len(tried)
        failure: Exception | None = None
        for address in tried:
            try:
                return await connect(address, port, share_s)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        assert failure is not None, "at least one address was tried"
        raise failure

    async def _addresses(self, host: str, port: int) -> list[str]:
        if parse_address(host) is not None:
            return [host]
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError):  # UnicodeError: labels that the codec for names refuses
            found = []
        if not found:
            raise OutboundError(f"The name {host} has no address.", sent=False)
        return list(dict.fromkeys(found))

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 (named by httpcore)
        socket_options: Iterable[_Option] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Never: there is no URL for it."""
        raise OutboundError("Unix sockets are not called.")

    async def sleep(self, seconds: float) -> None:
        """Wait between attempts; the pool is told to make none."""
        await asyncio.sleep(seconds)
