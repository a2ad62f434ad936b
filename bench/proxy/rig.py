"""A server with the proxy on, and its upstream."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench.client import Client, UnexpectedAnswerError
from bench.process import LOAD_CPU, free_port, pinned, stop
from bench.storage.node import Node, node

SECRET = "the-secret-of-the-benchmark-long-enough"


@dataclass(frozen=True, slots=True)
class Rig:
    """What the steps work with."""

    node: Node
    upstream_port: int

    def create(self, client: Client, path: str) -> tuple[int, str]:
        """Have the proxy call the upstream; the answer's status and the path of the stream."""
        answer = client.request("POST", "/v1/proxy", headers=headers(self.upstream_port, path))
        if answer.status != 201:
            raise UnexpectedAnswerError(f"the proxy answered {answer.status}: {answer.body!r}")
        url = urlsplit(answer.headers["location"])
        return answer.status, f"{url.path}?{url.query}"


def headers(upstream_port: int, path: str) -> dict[str, str]:
    """What a request to the proxy says."""
    return {
        "Authorization": f"Bearer {SECRET}",
        "Upstream-URL": f"http://127.0.0.1:{upstream_port}{path}",
        "Upstream-Method": "GET",
    }


@contextmanager
def rig(key: str) -> Iterator[Rig]:
    """A fresh server on its core, an upstream on the other."""
    port = free_port()
    command = [sys.executable, "-m", "bench.proxy.upstream", str(port)]
    upstream = subprocess.Popen(
        pinned(LOAD_CPU, command), stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert upstream.stdout is not None, "it is a pipe"
        upstream.stdout.readline()
        with node(f"proxy-{key}") as made:
            made.start(
                "--proxy-secret",
                SECRET,
                "--proxy-allowlist",
                "http://127.0.0.1:*",
                "--proxy-client-upstreams-max",
                "10000",
                "--sse-lifetime",
                "600",
            )
            yield Rig(made, port)
    finally:
        stop(upstream)
        if upstream.stdout is not None:
            upstream.stdout.close()


def rss_kib(pid: int) -> int:
    """Memory of a process, in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise OSError(f"process {pid} does not say how much memory it has")
