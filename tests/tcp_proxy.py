"""A proxy between a client and a server on this machine, for what networks do to both.

    with TcpProxy(server.port) as proxy:  # connect to proxy.port instead
        with proxy.silence():  # connections are taken, but nothing gets through
            ...
        proxy.delay_s = 0.2  # every piece of an answer is late

What it delays or holds back arrives later, complete and in order.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from threading import Event, Thread
from types import TracebackType
from typing import Self

_PIECE_BYTES = 65_536


class TcpProxy:
    """Passes connections on; `before` sees each piece of what clients send, before the server."""

    def __init__(self, target_port: int, before: Callable[[bytes], object] | None = None) -> None:
        self._target_port = target_port
        self._before = before
        self._open = Event()
        self._open.set()
        self._sockets: set[socket.socket] = set()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.delay_s = 0.0
        Thread(target=self._accept, daemon=True).start()

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """Let nothing through for a while, in either direction."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def close(self) -> None:
        """End the proxy and all its connections."""
        self._closed = True
        self._open.set()
        # Closing alone would not wake the thread that accepts.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in list(self._sockets):
            _end(each)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                client.close()
                continue
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets.add(each)
            Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        upwards = Thread(target=self._pass_on, args=(client, server, True), daemon=True)
        upwards.start()
        self._pass_on(server, client, False)
        upwards.join()
        for each in (client, server):
            _end(each)
            self._sockets.discard(each)

    def _pass_on(self, source: socket.socket, target: socket.socket, to_server: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE_BYTES):
                self._open.wait()
                if not to_server and self.delay_s:
                    time.sleep(self.delay_s)
                if to_server and self._before is not None:
                    self._before(piece)
                # A server that has said all it has to say may not listen; its answer stands.
                with contextlib.suppress(OSError):
                    target.sendall(piece)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
