"""How much of what was written to a client it has not taken yet."""

from __future__ import annotations

import contextlib
import fcntl
import struct
import termios
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

_INT: Final = struct.Struct("i")


def unread_bytes(transport: asyncio.WriteTransport) -> int:
    """Bytes that wait in the transport and in the kernel's send queue.

    The kernel takes them from the transport in lumps of up to a megabyte, so the transport alone
    seems to stand still for seconds while a slow client reads on.
    """
    waiting = transport.get_write_buffer_size()
    socket = transport.get_extra_info("socket")
    if socket is not None:
        with contextlib.suppress(OSError, ValueError):
            queued = fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(_INT.size))
            waiting += _INT.unpack(queued)[0]
    return waiting
