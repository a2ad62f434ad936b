"""Fills buckets for Spark to read: many messages, no two alike."""

from __future__ import annotations

import json
import random

from bench.client import send_in_order, wire_request

JSON = "application/json"
BUCKET = "spark"
MESSAGE_BYTES = 1024
_SEED = 1


def fill_with_bytes(port: int, streams: int, messages: int, bucket: str = BUCKET) -> None:
    """Streams of messages that nothing can compress, as many in each."""
    chance = random.Random(_SEED)
    for number in range(streams):
        stream = f"/v1/stream/{bucket}/s{number:05d}"
        bodies = (chance.randbytes(MESSAGE_BYTES) for _ in range(messages))
        appends = [wire_request("POST", stream, body) for body in bodies]
        send_in_order(port, [wire_request("PUT", stream, b""), *appends])


def fill_with_updates(port: int, streams: int, updates: int, bucket: str = BUCKET) -> None:
    """JSON streams, each with so many updates of a few fields, in one append."""
    requests = []
    for number in range(streams):
        stream = f"/v1/stream/{bucket}/s{number:05d}"
        body = [{"seq": n, f"field{n % 8}": n * number} for n in range(updates)]
        requests += [
            wire_request("PUT", stream, b"", JSON),
            wire_request("POST", stream, json.dumps(body).encode(), JSON),
        ]
    send_in_order(port, requests)


def change(port: int, prefix: str, streams: int, every: int) -> int:
    """Append to one stream of so many; how many that are."""
    changed = range(0, streams, every)
    send_in_order(
        port, [wire_request("POST", f"{prefix}{number}", b"changed") for number in changed]
    )
    return len(changed)
