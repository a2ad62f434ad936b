"""Very many live reads in one process: all of one stream, and each of a stream of its own."""

from __future__ import annotations

import json
import time

from bench.client import Client as Preparing
from bench.client import Request
from bench.clients.contest import Client, contestants, figures, take_turns, work_once_ready
from bench.clients.work import JSON, Values, message
from bench.scenario import Plan
from bench.servers import PREFIX
from bench.storage.figures import Figure, Measured, Sizes, Step
from bench.storage.node import Node, node
from bench.surface.filling import request, send_in_order

SHARED_MESSAGES = 100
OWN_MESSAGES = 20


def _run(plan: Plan, sizes: Sizes) -> Measured:
    clients = contestants(plan)
    with node("tailing") as made:
        # How fast the disk is does not matter to readers.
        made.start("--durability", "memory")

        def one_stream(client: Client, name: str) -> Values:
            return _measure(made, client, [f"one-{name}"], sizes.tails, SHARED_MESSAGES)

        def one_each(client: Client, name: str) -> Values:
            names = [f"own-{name}-{number}" for number in range(sizes.tails)]
            return _measure(made, client, names, sizes.tails, OWN_MESSAGES)

        shared = take_turns(plan, clients, "tails of one stream", one_stream)
        own = take_turns(plan, clients, "tails of one stream each", one_each)
    found: list[Figure] = []
    for samples, where, messages in (
        (shared, "one stream", SHARED_MESSAGES),
        (own, "a stream each", OWN_MESSAGES),
    ):
        what = f"{sizes.tails:,} tails of {where}, {messages} messages"
        for metric, until in (("connected_s", "all are connected"), ("seconds", "all have all")):
            found += figures(
                f"{what}, until {until}", samples, metric, "{:.2f} s", less_is_better=True
            )
        found += figures(f"{what}, deliveries/s", samples, "per_s", with_ratio=False)
    return Measured(found)


def _measure(made: Node, client: Client, names: list[str], tails: int, messages: int) -> Values:
    paths = [PREFIX + name for name in names]
    send_in_order(made.port, [request("PUT", path, b"", JSON) for path in paths])
    started_s = 0.0

    def write() -> None:
        nonlocal started_s
        started_s = time.monotonic()
        _write(made, paths, messages)

    values = work_once_ready(
        client,
        "tail",
        write,
        url=made.running.url,
        names=[f"bench/{name}" for name in names],
        tails=tails,
        messages=messages,
    )
    if values["received"] != tails * messages:
        raise RuntimeError(f"{client.title}: {values['received']:,.0f} of {tails * messages:,}")
    seconds = values["ended_s"] - started_s
    return {
        "connected_s": values["connected_s"],
        "seconds": seconds,
        "per_s": values["received"] / seconds,
    }


def _write(made: Node, paths: list[str], messages: int) -> None:
    """To one stream one append after the other; to many in turn, without waiting for each."""
    bodies = [json.dumps(message(number)).encode() for number in range(messages)]
    if len(paths) == 1:
        with Preparing(made.port) as client:
            for body in bodies:
                client.send(Request("POST", paths[0], body, {"Content-Type": JSON}))
        return
    appends = [request("POST", path, body, JSON) for body in bodies for path in paths]
    send_in_order(made.port, appends)


STEP = Step(
    "tailing",
    "Live reads by SSE from the tail on, all in one process, of a server that keeps everything in "
    "memory only; once every one is connected the bench appends: to the one stream one message at "
    "a time, to the many in turn, 50 appends at a time. The time is from the first append to the "
    "last message in the last tail. The writer shares the client's core. PyPI's read over one "
    "httpx client without a limit on connections: with its own default, a client for each read, "
    "it starts much more slowly. Its SSE reads end with the connection, after a minute; ours go "
    "on.",
    _run,
)
