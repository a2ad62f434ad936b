"""The proxy's steps: the time to the first byte, many slow upstreams, many idle ones."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from bench.client import Client, UnexpectedResponseError
from bench.process import LOAD_CPU, cpu_of_tree, free_port, pinned, stop
from bench.scenario import Plan
from bench.storage.figures import MB, Figure, Measured, Sizes, Step
from bench.storage.node import Node, node, rss_mb
from holdfast.protocol.frames import COMPLETE, DATA, FrameParser

SECRET = "the-secret-of-the-benchmark-long-enough"


@dataclass(frozen=True, slots=True)
class Rig:
    """What the steps work with."""

    node: Node
    upstream_port: int

    def create(self, client: Client, path: str) -> tuple[int, str]:
        """Have the proxy call the upstream; the response's status and the path of the stream."""
        response = client.request("POST", "/v1/proxy", headers=headers(self.upstream_port, path))
        if response.status != 201:
            raise UnexpectedResponseError(
                f"the proxy answered {response.status}: {response.body!r}"
            )
        url = urlsplit(response.headers["location"])
        return response.status, f"{url.path}?{url.query}"


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


WARM_UP = 20


def _run_first_byte(_plan: Plan, sizes: Sizes) -> Measured:
    alone_ms, through_ms = [], []
    with (
        rig("first-byte") as made,
        Client(made.upstream_port) as direct,
        Client(made.node.port) as proxied,
        Client(made.node.port) as reader,
    ):
        for number in range(WARM_UP + sizes.proxy_requests):
            alone, through = _direct_ms(direct), _through_ms(made, proxied, reader)
            if number >= WARM_UP:
                alone_ms.append(alone)
                through_ms.append(through)
    added_ms = statistics.median(through_ms) - statistics.median(alone_ms)
    through_ms.sort()
    return Measured(
        [
            Figure("first byte: added by the proxy, p50", added_ms, "{:.2f} ms", at_most=5),
            Figure("first byte of the upstream, p50", statistics.median(alone_ms), "{:.2f} ms"),
            Figure("first Data frame, p50", statistics.median(through_ms), "{:.2f} ms"),
            Figure("first Data frame, p99", through_ms[len(through_ms) * 99 // 100], "{:.2f} ms"),
        ]
    )


def _direct_ms(client: Client) -> float:
    started_s = time.perf_counter()
    client.request("GET", "/first")
    return (time.perf_counter() - started_s) * 1e3


def _through_ms(made: Rig, client: Client, reader: Client) -> float:
    """From the request until a reader has a Data frame."""
    started_s = time.perf_counter()
    _, path = made.create(client, "/first")
    offset, parser = "-1", FrameParser()
    while True:
        response = reader.request("GET", f"{path}&offset={offset}&live=long-poll")
        if any(frame.type == DATA for frame in parser.feed(response.body)):
            return (time.perf_counter() - started_s) * 1e3
        offset = response.headers["stream-next-offset"]


_FIRST_BYTE = Step(
    "first-byte",
    "An upstream on loopback that responds at once, called directly and through the proxy, in turn "
    "and one at a time. Through the proxy it is the time from the POST until a reader, which "
    "long-polls the signed URL, has the first Data frame: the Start frame and the data are on disk "
    "by then.",
    _run_first_byte,
)


PER_S = 20
SECONDS = 20
LOAD_TIMEOUT_S = 180.0


def _run_slow(_plan: Plan, sizes: Sizes) -> Measured:
    streams, chunks = sizes.proxy_streams, PER_S * SECONDS
    with rig("slow") as made:
        numbers = (made.node.port, made.upstream_port, streams, chunks, PER_S)
        command = [sys.executable, "-m", "bench.proxy.load", *map(str, numbers)]
        cpu, started_s = cpu_of_tree(made.node.pid), time.monotonic()
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LOAD_TIMEOUT_S
        )
        if done.returncode:
            raise RuntimeError(f"the load failed: {done.stderr.strip().splitlines()[-1:]}")
        spent_s = (cpu_of_tree(made.node.pid) - cpu).total_s
        elapsed_s = time.monotonic() - started_s
    found = json.loads(done.stdout)
    what = f"{streams} upstreams of {PER_S} chunks/s, {SECONDS} s"
    return Measured(
        [
            Figure(f"{what}: chunk delay, p99", found["p99_ms"], "{:.1f} ms", at_most=250),
            Figure(f"{what}: bytes missing", found["missing"], at_most=0),
            Figure(f"{what}: chunk delay, p50", found["p50_ms"], "{:.1f} ms"),
            Figure(f"{what}: chunk delay, longest", found["max_ms"], "{:.1f} ms"),
            Figure(f"{what}: server busy", spent_s / elapsed_s, "{:.0%} of a core"),
            Figure(f"{what}: readers busy", found["busy"], "{:.0%} of a core"),
            Figure(
                f"{what}: CPU of the server per chunk",
                spent_s * 1e6 / streams / chunks,
                "{:.0f} µs",
            ),
        ]
    )


_SLOW_STREAMS = Step(
    "slow-streams",
    "Upstreams that send 64 B at a time, all called through the proxy by one client and read over "
    "SSE from the start, one reader each. A chunk's delay is from when the upstream sends it until "
    "its reader has it: parsed, framed, on disk, published, encoded. The server has one core; the "
    "upstream and the readers share the other.",
    _run_slow,
)


STARTERS = 4
SETTLE_TIMEOUT_S = 60.0


def _run_idle(_plan: Plan, sizes: Sizes) -> Measured:
    count = sizes.proxy_idle
    with rig("idle") as made:
        before_mb = rss_mb(made.node.pid)
        started_s = time.monotonic()
        with ThreadPoolExecutor(STARTERS) as pool:
            shares = [count // STARTERS + (n < count % STARTERS) for n in range(STARTERS)]
            found = pool.map(lambda share: _start(made, share), shares)
            paths = [path for share in found for path in share]
        all_s = time.monotonic() - started_s
        open_now = made.node.metrics()["holdfast_proxy_upstreams"]
        after_mb = rss_mb(made.node.pid)
        with Client(made.upstream_port) as upstream:
            upstream.request("POST", "/release")
        _wait_for_end(made)
        complete = _complete(made, paths)
    return Measured(
        [
            Figure("idle upstreams open at once", open_now, at_least=count),
            Figure(
                "memory of the server per open upstream, its stream included",
                (after_mb - before_mb) * MB / 1024 / count,
                "{:.0f} KiB",
                at_most=256,
            ),
            Figure("idle upstreams that went on to their end", complete, at_least=count),
            Figure("calling all of them", all_s, "{:.1f} s"),
        ]
    )


def _start(made: Rig, count: int) -> list[str]:
    with Client(made.node.port) as client:
        return [made.create(client, "/idle")[1] for _ in range(count)]


def _wait_for_end(made: Rig) -> None:
    deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
    while made.node.metrics()["holdfast_proxy_upstreams"]:
        if time.monotonic() > deadline_s:
            raise UnexpectedResponseError("some responses did not end")
        time.sleep(0.05)


def _complete(made: Rig, paths: list[str]) -> int:
    """How many streams hold a response with all its data and its end."""
    complete = 0
    with Client(made.node.port) as client:
        for path in paths:
            frames = FrameParser().feed(client.request("GET", f"{path}&offset=-1").body)
            complete += len(frames) == 4 and frames[-1].type == COMPLETE
    return complete


_IDLE_STREAMS = Step(
    "idle-streams",
    "Upstreams that have sent a first chunk and are silent, called through the proxy; then all of "
    "them send another one and end. Memory is what the server's process has grown by.",
    _run_idle,
)


STEPS = (_FIRST_BYTE, _SLOW_STREAMS, _IDLE_STREAMS)
