"""A small HTTP/1.1 client for many writers at once: cheap, pipelined, plain about lost answers."""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Self

# Against hangs: far longer than any answer takes.
DEADLINE_S = 20.0


class Lost(Exception):  # noqa: N818 - not a failure here: it is what a kill looks like
    """The connection ended before the answer was complete: the outcome is not known."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def tail(self) -> int:
        """The offset in `Stream-Next-Offset`."""
        return int(self.headers["stream-next-offset"])


class Wire:
    """One connection; requests may be sent ahead of the answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Self:
        """Connect to a server on this machine."""
        try:
            return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))
        except OSError as error:
            raise Lost from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        # A server that is gone has closed it as well.
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        """Send a request; `stream_seq="1"` becomes `Stream-Seq: 1`."""
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def answer(self, *, is_head: bool = False) -> Answer:
        """Read the next answer."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self._answer(is_head)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Lost from error

    async def _answer(self, is_head: bool) -> Answer:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = head.rstrip().split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        if headers.get("transfer-encoding") == "chunked" and not is_head:
            body = await self._chunks()
        else:
            size = 0 if is_head else int(headers.get("content-length", "0"))
            body = await self._reader.readexactly(size)
        return Answer(int(status_line.split()[1]), headers, body)

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            body += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)
        return body

    async def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        """Send a request and read its answer."""
        self.send(method, path, body, **headers)
        return await self.answer(is_head=method == "HEAD")

    async def read_all(self, path: str) -> tuple[list[bytes], bool]:
        """All bytes of a stream, page by page, and whether it is closed."""
        pages, offset = [], "-1"
        while True:
            page = await self.request("GET", f"{path}?offset={offset}")
            assert page.status == 200, page
            pages.append(page.body)
            offset = page.headers["stream-next-offset"]
            if "stream-up-to-date" in page.headers:
                return pages, "stream-closed" in page.headers
