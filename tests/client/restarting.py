"""A server that comes back where it was, as one behind a supervisor does."""

import asyncio
import socket
from pathlib import Path
from random import SystemRandom
from typing import Self

from tests.server_process import ServerProcess

ANY_PORT = "127.0.0.1:0"
# Below those that the system gives to connections: nobody takes it while the server is away.
PORTS = range(20_000, 32_000)


def free_port() -> int:
    """A port that nobody listens on."""
    while True:
        port = SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class RestartingServer(ServerProcess):
    """Starts on the same port again and again."""

    def __init__(self, data_dir: Path, **settings: object) -> None:
        super().__init__(data_dir, **settings)
        self._arguments[self._arguments.index(ANY_PORT)] = f"127.0.0.1:{free_port()}"

    async def crash(self) -> None:
        """Die, and come back."""
        await asyncio.to_thread(self.kill)
        await asyncio.to_thread(self.start)

    async def restart(self) -> None:
        """End in good order, and come back."""
        assert await asyncio.to_thread(self.stop) == 0
        await asyncio.to_thread(self.start)

    def __enter__(self) -> Self:
        self.start()
        return self
