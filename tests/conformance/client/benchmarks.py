"""The suite's benchmark operations, each timed as a whole."""

import asyncio
import time
from typing import Any

from holdfast.client import START, ProducerLimits, Stream
from holdfast.errors import StreamExistsError
from tests.conformance.client.results import Command, NotSupportedError, Result

OCTETS = "application/octet-stream"
Metrics = dict[str, Any]


async def benchmark(stream: Stream, command: Command) -> Result:
    """Run one operation and say how long it took."""
    operation = command["operation"]
    run = _OPERATIONS.get(operation["op"])
    if run is None:
        raise NotSupportedError(f"There is no operation {operation['op']!r}.")
    started_ns = time.perf_counter_ns()
    metrics = await run(stream, operation)
    duration_ns = time.perf_counter_ns() - started_ns
    if "messagesProcessed" in metrics:
        seconds = max(duration_ns, 1) / 1e9
        metrics["opsPerSecond"] = metrics["messagesProcessed"] / seconds
        metrics["bytesPerSecond"] = metrics["bytesTransferred"] / seconds
    return {
        "type": "benchmark",
        "success": True,
        "iterationId": command["iterationId"],
        "durationNs": str(duration_ns),
        "metrics": metrics,
    }


async def _append(stream: Stream, operation: Command) -> Metrics:
    await stream.append(b"*" * operation["size"])
    return {"bytesTransferred": operation["size"]}


async def _read(stream: Stream, operation: Command) -> Metrics:
    data = await stream.read(operation.get("offset") or START).read_bytes()
    return {"bytesTransferred": len(data)}


async def _roundtrip(stream: Stream, operation: Command) -> Metrics:
    await _create(stream, operation)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(_first_batch(stream, operation.get("live", "long-poll")))
        await stream.append(b"*" * operation["size"])
    return {"bytesTransferred": operation["size"] + len(reading.result())}


async def _first_batch(stream: Stream, live: Any) -> bytes:
    async with stream.read(live=live) as reading:
        async for batch in reading.batches():
            if batch.data:
                return batch.data
    raise AssertionError("The stream was closed before anything came.")


async def _create(stream: Stream, operation: Command) -> Metrics:
    await stream.create(operation.get("contentType", OCTETS))
    return {}


async def _append_many(stream: Stream, operation: Command) -> Metrics:
    # It may be there with another content type, which is then the one to use.
    try:
        await stream.create(stream.content_type)
    except StreamExistsError:
        stream.content_type = None
    count, size = operation["count"], operation["size"]
    limits = ProducerLimits(in_flight=max(1, operation.get("concurrency", 1)), joins=True)
    async with stream.producer("benchmark", auto_claim=True, limits=limits) as producer:
        await producer.append_many([b"*" * size] * count)
    return {"bytesTransferred": count * size, "messagesProcessed": count}


async def _read_many(stream: Stream, operation: Command) -> Metrics:
    count = size = 0
    async for message in stream.read():
        count += 1
        size += len(message.bytes)
    expected = operation.get("expectedCount", count)
    if count != expected:
        raise AssertionError(f"{count} messages were read instead of {expected}.")
    return {"bytesTransferred": size, "messagesProcessed": count}


_OPERATIONS = {
    "append": _append,
    "read": _read,
    "roundtrip": _roundtrip,
    "create": _create,
    "throughput_append": _append_many,
    "throughput_read": _read_many,
}
