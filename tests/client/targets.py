"""The servers that the contract of the client is shown with."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx

from tests.client.node_process import node_server
from tests.server_process import ServerProcess
from tests.tcp_proxy import TcpProxy

TEXT = "text/plain"
JSON = "application/json"
BINARY = "application/octet-stream"

# What was read from packs is not kept, and streams leave memory at once.
ALL_COLD = {
    "hot_bytes_soft": 1,
    "block_cache_bytes": 0,
    "streams_cached_max": 1,
    "merge_packs": 4,
    "garbage_grace": 0,
}


@dataclass(frozen=True)
class Target:
    """A server, and what it can do beyond the protocol."""

    url: str
    # Whether it tells where messages end, and so which message starts at which offset.
    tells_boundaries: bool


def new_name(ending: str = "") -> str:
    """The name of a stream that nobody else uses."""
    return f"test/{uuid4().hex}{ending}"


@contextmanager
def cold_url(data_dir: Path) -> Iterator[str]:
    """Run a server that flushes before every read, so that it reads from packs; its URL."""
    with ServerProcess(data_dir, **ALL_COLD) as server:
        with httpx.Client(base_url=server.url, timeout=10) as client:

            def flush_before_reads(piece: bytes) -> None:
                if piece.startswith(b"GET "):
                    client.post("/cluster/flush").raise_for_status()

            with TcpProxy(server.port, before=flush_before_reads) as proxy:
                yield f"http://127.0.0.1:{proxy.port}"


@contextmanager
def reference_target() -> Iterator[Target]:
    """Run the reference server."""
    with node_server() as url:
        yield Target(url, tells_boundaries=False)
