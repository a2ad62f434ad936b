"""The steps that compare clients: producing, reading, tailing, appending, importing."""

from __future__ import annotations

import json
import subprocess
import time

from bench.client import Client as HttpClient
from bench.client import Request, send_in_order, wire_request
from bench.clients.contest import (
    OURS_UVLOOP,
    Client,
    contestants,
    figures,
    take_turns,
    work,
    work_once_ready,
)
from bench.clients.work import JSON, MESSAGE_BYTES, Values, message
from bench.scenario import Plan
from bench.servers import PREFIX
from bench.storage.figures import MB, Figure, Measured, Sizes, Step
from bench.storage.node import CONTENT_TYPE, UNLIMITED, Node, node


def _run_producer(plan: Plan, sizes: Sizes) -> Measured:
    with node("producer") as made:
        made.start(*UNLIMITED)

        def measure(client: Client, name: str) -> Values:
            values = work(
                client,
                "produce",
                url=made.running.url,
                name=f"bench/{name}",
                messages=sizes.client_messages,
            )
            if values["stored"] != sizes.client_messages:
                raise RuntimeError(f"{client.title} stored {values['stored']:.0f} messages")
            return {"per_s": values["stored"] / values["seconds"]}

        samples = take_turns(plan, contestants(plan), "producer", measure)
    what = f"{MESSAGE_BYTES} B JSON messages to one stream, per second"
    return Measured(figures(what, samples, "per_s", at_least=100_000))


_PRODUCER = Step(
    "producer",
    "One process writes to one stream, on disk when it is acknowledged; the time is from the "
    "first message to the last acknowledgement. Ours: one producer with its default limits, "
    "exactly once. PyPI's 0.1.0 has no producer: `append` with its automatic batching, 5,000 "
    "calls gathered at a time, as many as a batch of ours holds; nothing is repeated there if it "
    "fails.",
    _run_producer,
)


BYTES, ITEMS = "long-bytes", "long-items"
APPEND_BYTES = 1_000_000
APPEND_MESSAGES = 5000


def _run_reading(plan: Plan, sizes: Sizes) -> Measured:
    clients = contestants(plan)
    with node("reading") as made:
        made.start(*UNLIMITED)
        _fill(made, sizes)

        def read_bytes(client: Client, _name: str) -> Values:
            size_bytes = sizes.client_mb * MB
            return {"mb_per_s": _read(made, client, "read_bytes", "bytes", size_bytes) / MB}

        def read_items(client: Client, _name: str) -> Values:
            return {"per_s": _read(made, client, "read_items", "items", sizes.client_messages)}

        def read_all_items(client: Client, _name: str) -> Values:
            return {"per_s": _read(made, client, "read_all_items", "items", sizes.client_messages)}

        as_bytes = take_turns(plan, clients, "catch-up", read_bytes)
        as_items = take_turns(plan, clients, "items", read_items)
        all_items = take_turns(plan, clients, "items, all at once", read_all_items)
    items = f"{sizes.client_messages:,} JSON messages of {MESSAGE_BYTES} B"
    return Measured(
        [
            *figures(
                f"catch-up of {sizes.client_mb} MB in batches",
                as_bytes,
                "mb_per_s",
                "{:,.0f} MB/s",
                at_least=250,
            ),
            *figures(f"{items} with `async for`, parsed, per second", as_items, "per_s"),
            *figures(f"{items} with `read_json()`, per second", all_items, "per_s"),
        ]
    )


def _fill(made: Node, sizes: Sizes) -> None:
    with HttpClient(made.port) as client:
        _create(client, BYTES, CONTENT_TYPE)
        for _ in range(sizes.client_mb):
            _append(client, BYTES, CONTENT_TYPE, bytes(range(250)) * (APPEND_BYTES // 250))
        _create(client, ITEMS, JSON)
        for first in range(0, sizes.client_messages, APPEND_MESSAGES):
            values = [message(first + number) for number in range(APPEND_MESSAGES)]
            _append(client, ITEMS, JSON, json.dumps(values, separators=(",", ":")).encode())


def _create(client: HttpClient, name: str, content_type: str) -> None:
    client.send(Request("PUT", PREFIX + name, headers={"Content-Type": content_type}))


def _append(client: HttpClient, name: str, content_type: str, body: bytes) -> None:
    client.send(Request("POST", PREFIX + name, body, {"Content-Type": content_type}))


def _read(made: Node, client: Client, how: str, counted: str, expected: float) -> float:
    """So many bytes or items per second; all of them must have come."""
    name = f"bench/{BYTES if counted == 'bytes' else ITEMS}"
    values = work(client, how, url=made.running.url, name=name)
    if values[counted] != expected:
        raise RuntimeError(
            f"{client.title} read {values[counted]:,.0f} {counted} of {expected:,.0f}"
        )
    return values[counted] / values["seconds"]


_READING = Step(
    "reading",
    "One reader over one connection, from the start to the tail, in responses of up to 1 MiB. "
    "Bytes: a stream in appends of 1 MB; ours by `batches()`, PyPI's by iteration. "
    "Messages: ours by iteration and `.json` of each, with an offset of its own for every "
    "message; PyPI's by `iter_json()`, whose items have none. All at once: `read_json()` of both.",
    _run_reading,
)


SHARED_MESSAGES = 100
OWN_MESSAGES = 20


def _run_tailing(plan: Plan, sizes: Sizes) -> Measured:
    clients = contestants(plan)
    with node("tailing") as made:
        # How fast the disk is does not matter to readers.
        made.start("--durability", "memory")

        def one_stream(client: Client, name: str) -> Values:
            return _measure_tails(made, client, [f"one-{name}"], sizes.tails, SHARED_MESSAGES)

        def one_each(client: Client, name: str) -> Values:
            names = [f"own-{name}-{number}" for number in range(sizes.tails)]
            return _measure_tails(made, client, names, sizes.tails, OWN_MESSAGES)

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


def _measure_tails(
    made: Node, client: Client, names: list[str], tails: int, messages: int
) -> Values:
    paths = [PREFIX + name for name in names]
    send_in_order(made.port, [wire_request("PUT", path, b"", JSON) for path in paths])
    started_s = 0.0

    def write() -> None:
        nonlocal started_s
        started_s = time.monotonic()
        _write_tailed(made, paths, messages)

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


def _write_tailed(made: Node, paths: list[str], messages: int) -> None:
    """To one stream one append after the other; to many in turn, without waiting for each."""
    bodies = [json.dumps(message(number)).encode() for number in range(messages)]
    if len(paths) == 1:
        with HttpClient(made.port) as client:
            for body in bodies:
                client.send(Request("POST", paths[0], body, {"Content-Type": JSON}))
        return
    appends = [wire_request("POST", path, body, JSON) for body in bodies for path in paths]
    send_in_order(made.port, appends)


_TAILING = Step(
    "tailing",
    "Live reads by SSE from the tail on, all in one process, of a server that keeps everything in "
    "memory only; once every one is connected the bench appends: to the one stream one message at "
    "a time, to the many in turn, 50 appends at a time. The time is from the first append to the "
    "last message in the last tail. The writer shares the client's core. PyPI's read over one "
    "httpx client without a limit on connections: with its own default, a client for each read, "
    "it starts much more slowly. Its SSE reads end with the connection, after a minute; ours go "
    "on.",
    _run_tailing,
)


def _run_appending(plan: Plan, sizes: Sizes) -> Measured:
    with node("appending") as made:
        made.start(*UNLIMITED)

        def measure(client: Client, name: str) -> Values:
            return work(
                client,
                "append",
                url=made.running.url,
                name=f"bench/{name}",
                messages=sizes.client_appends,
            )

        samples = take_turns(plan, contestants(plan), "append", measure)
    what = f"one {MESSAGE_BYTES} B append after the other"
    return Measured(
        [
            figure
            for metric, name in (("p50_ms", "p50"), ("p99_ms", "p99"))
            for figure in figures(
                f"{what}, {name}", samples, metric, "{:.2f} ms", less_is_better=True
            )
        ]
    )


_APPENDING = Step(
    "appending",
    "`append` of one message at a time over one connection, on disk when it is answered.",
    _run_appending,
)


PACKAGES = {"ours": "holdfast.client", "published": "durable_streams"}
TIMED = "import time; began = time.perf_counter(); import {}; print(time.perf_counter() - began)"
TIMES = 5


def _run_importing(plan: Plan, _sizes: Sizes) -> Measured:
    clients = [client for client in contestants(plan) if client is not OURS_UVLOOP]
    samples = take_turns(plan, clients, "import", _measure_import)
    return Measured(figures("import", samples, "ms", "{:.0f} ms", less_is_better=True))


def _measure_import(client: Client, _name: str) -> Values:
    """The shortest of a few: the first one may have to compile."""
    command = [client.python, "-c", TIMED.format(PACKAGES[client.module])]
    times_s = [float(subprocess.check_output(command)) for _ in range(TIMES)]
    return {"ms": min(times_s) * 1e3}


_IMPORTING = Step(
    "importing",
    "`import holdfast.client` and `import durable_streams` in a new process, the shortest of "
    f"{TIMES} attempts.",
    _run_importing,
)


STEPS = (_PRODUCER, _READING, _TAILING, _APPENDING, _IMPORTING)
