"""Upstreams that answer without having taken the body, which the ASGI host is still giving."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import holdfast
from tests.proxy.proxying import ALLOWLIST, PATH, SECRET

# More than all buffers on the way take.
BODY_BYTES = 24_000_000
PIECE_BYTES = 65_536
REFUSAL = b"HTTP/1.1 413 Too Large\r\nContent-Length: 7\r\nConnection: close\r\n\r\nrefused"


@asynccontextmanager
async def refusing(moment: asyncio.Event):
    """The port of an upstream that takes no body, and refuses it when the moment has come."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await moment.wait()
        writer.write(REFUSAL)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


class Host:
    """An ASGI host that gives a long body, as fast as it is taken."""

    def __init__(self) -> None:
        self.left = BODY_BYTES
        self.told: list[dict] = []

    async def receive(self) -> dict:
        await asyncio.sleep(0)
        if not self.left:
            await asyncio.Event().wait()
        size = min(self.left, PIECE_BYTES)
        self.left -= size
        return {"type": "http.request", "body": bytes(size), "more_body": self.left > 0}

    async def send(self, message: dict) -> None:
        self.told.append(message)

    async def is_stuck(self) -> None:
        """Wait until no more is taken."""
        before, rounds = self.left, 0
        while rounds < 20:
            await asyncio.sleep(0.01)
            rounds = rounds + 1 if self.left == before else 0
            before = self.left


@pytest.mark.spec("proxy 4.2-12")
def test_the_client_is_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        moment, host = asyncio.Event(), Host()
        app = holdfast.asgi(data_dir=tmp_path, proxy_secret=SECRET, proxy_allowlist=ALLOWLIST)
        async with asyncio.timeout(20), app, refusing(moment) as port:
            headers = {
                "host": "streams.example",
                "authorization": f"Bearer {SECRET}",
                "upstream-method": "POST",
                "upstream-url": f"http://127.0.0.1:{port}/",
                "content-length": str(BODY_BYTES),
            }
            scope = {
                "type": "http",
                "method": "POST",
                "path": PATH,
                "query_string": b"",
                "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            }
            call = asyncio.create_task(app(scope, host.receive, host.send))
            await host.is_stuck()
            assert 0 < host.left < BODY_BYTES - (1 << 20)
            moment.set()
            await call
        start, *body = host.told
        assert start["status"] == 502
        assert (b"upstream-status", b"413") in start["headers"]
        assert b"".join(each["body"] for each in body) == b"refused"

    asyncio.run(scenario())
