"""Catching up with one long stream: as bytes, and message by message."""

from __future__ import annotations

import json

from bench.client import Client as Preparing
from bench.client import Request
from bench.clients.contest import Client, contestants, figures, take_turns, work
from bench.clients.work import JSON, MESSAGE_BYTES, Values, message
from bench.scenario import Plan
from bench.servers import PREFIX
from bench.storage.figures import MB, Measured, Sizes, Step
from bench.storage.node import CONTENT_TYPE, UNLIMITED, Node, node

BYTES, ITEMS = "long-bytes", "long-items"
APPEND_BYTES = 1_000_000
APPEND_MESSAGES = 5000


def _run(plan: Plan, sizes: Sizes) -> Measured:
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
    with Preparing(made.port) as client:
        _create(client, BYTES, CONTENT_TYPE)
        for _ in range(sizes.client_mb):
            _append(client, BYTES, CONTENT_TYPE, bytes(range(250)) * (APPEND_BYTES // 250))
        _create(client, ITEMS, JSON)
        for first in range(0, sizes.client_messages, APPEND_MESSAGES):
            values = [message(first + number) for number in range(APPEND_MESSAGES)]
            _append(client, ITEMS, JSON, json.dumps(values, separators=(",", ":")).encode())


def _create(client: Preparing, name: str, content_type: str) -> None:
    client.send(Request("PUT", PREFIX + name, headers={"Content-Type": content_type}))


def _append(client: Preparing, name: str, content_type: str, body: bytes) -> None:
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


STEP = Step(
    "reading",
    "One reader over one connection, from the start to the tail, in the server's answers of up to "
    "1 MiB. Bytes: a stream in appends of 1 MB; ours by `batches()`, PyPI's by iteration. "
    "Messages: ours by iteration and `.json` of each, with an offset of its own for every "
    "message; PyPI's by `iter_json()`, whose items have none. All at once: `read_json()` of both.",
    _run,
)
