"""How long the first byte takes: through the proxy, and from the upstream itself."""

from __future__ import annotations

import statistics
import time

from bench.client import Client
from bench.proxy.rig import Rig, rig
from bench.scenario import Plan
from bench.storage.figures import Figure, Measured, Sizes, Step
from holdfast.protocol.frames import DATA, FrameParser

WARM_UP = 20


def _run(_plan: Plan, sizes: Sizes) -> Measured:
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
        answer = reader.request("GET", f"{path}&offset={offset}&live=long-poll")
        if any(frame.type == DATA for frame in parser.feed(answer.body)):
            return (time.perf_counter() - started_s) * 1e3
        offset = answer.headers["stream-next-offset"]


STEP = Step(
    "first-byte",
    "An upstream on loopback that answers at once, called directly and through the proxy, in turn "
    "and one at a time. Through the proxy it is the time from the POST until a reader, which "
    "long-polls the signed URL, has the first Data frame: the Start frame and the data are on disk "
    "by then.",
    _run,
)
