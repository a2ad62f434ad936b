"""Upstreams that say nothing: how many there can be, and what each costs."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from bench.client import Client, UnexpectedAnswerError
from bench.proxy.rig import Rig, rig, rss_kib
from bench.scenario import Plan
from bench.storage.figures import Figure, Measured, Sizes, Step
from holdfast.protocol.frames import COMPLETE, FrameParser

STARTERS = 4
SETTLE_TIMEOUT_S = 60.0


def _run(_plan: Plan, sizes: Sizes) -> Measured:
    count = sizes.proxy_idle
    with rig("idle") as made:
        before_kib = rss_kib(made.node.pid)
        started_s = time.monotonic()
        with ThreadPoolExecutor(STARTERS) as pool:
            shares = [count // STARTERS + (n < count % STARTERS) for n in range(STARTERS)]
            found = pool.map(lambda share: _start(made, share), shares)
            paths = [path for share in found for path in share]
        all_s = time.monotonic() - started_s
        open_now = made.node.metrics()["holdfast_proxy_upstreams"]
        after_kib = rss_kib(made.node.pid)
        with Client(made.upstream_port) as upstream:
            upstream.request("POST", "/release")
        _wait_for_end(made)
        complete = _complete(made, paths)
    return Measured(
        [
            Figure("idle upstreams open at once", open_now, at_least=count),
            Figure(
                "memory of the server per open upstream, its stream included",
                (after_kib - before_kib) / count,
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
            raise UnexpectedAnswerError("some responses did not end")
        time.sleep(0.05)


def _complete(made: Rig, paths: list[str]) -> int:
    """How many streams hold a response with all its data and its end."""
    complete = 0
    with Client(made.node.port) as client:
        for path in paths:
            frames = FrameParser().feed(client.request("GET", f"{path}&offset=-1").body)
            complete += len(frames) == 4 and frames[-1].type == COMPLETE
    return complete


STEP = Step(
    "idle-streams",
    "Upstreams that have sent a first chunk and are silent, called through the proxy; then all of "
    "them send another one and end. Memory is what the server's process has grown by.",
    _run,
)
