"""The suite's commands for producers, by `Stream.producer`.

A producer lives on between commands, until it is detached or has failed.
"""

from holdfast.client import Appended, Client, Producer, ProducerLimits, Retry, Stream
from holdfast.errors import InvalidRequestError
from tests.conformance.client.results import Command, NotSupportedError, Result

IN_FLIGHT = 1
# What the options are called there.
_THEIR_NAMES = {
    "batch_bytes": "maxBatchBytes",
    "batch_messages": "maxBatchItems",
    "attempts": "maxRetries",
    "first_s": "initialDelayMs",
    "max_s": "maxDelayMs",
}

Key = tuple[str, str, int]


class Producers:
    """The producers that are in use, by stream, id and epoch."""

    def __init__(self) -> None:
        self._producers: dict[Key, Producer] = {}

    async def append(self, stream: Stream, command: Command, data: bytes) -> Result:
        """One message, stored when this returns."""
        answer = await self._append_all(stream, command, [data])
        result: Result = {"type": command["type"], "success": True, "status": 200}
        return result | _told(answer)

    async def append_batch(self, stream: Stream, command: Command, items: list[bytes]) -> Result:
        """Messages in as few requests as possible, or with several in flight one by one."""
        in_flight = command.get("maxInFlight") or IN_FLIGHT
        limits = ProducerLimits(in_flight=in_flight, joins=True)
        if in_flight > 1:
            limits = ProducerLimits(in_flight=in_flight, batch_bytes=1)
        async with _producer(stream, command, limits) as producer:
            await producer.append_many(items)
        result: Result = {"type": command["type"], "success": True, "status": 200}
        return result | _told(producer.last)

    async def close(self, stream: Stream, command: Command, data: bytes | None) -> Result:
        """Close the stream. One more close with a message is sent by a producer that starts anew.

        So that is what the server recognises, and not what the client remembers.
        """
        key = _key(command)
        producer = self._producers.get(key)
        has_closed = producer is not None and producer.last is not None and producer.last.closed
        if producer is None or (has_closed and data is not None):
            producer = self._producers[key] = _producer(stream, command)
        try:
            answer = await producer.close_stream(data)
        except Exception:
            self._producers.pop(key, None)
            raise
        offset = answer.next_offset if answer is not None else ""
        return {"type": command["type"], "success": True, "status": 200, "finalOffset": offset}

    async def detach(self, command: Command) -> Result:
        """Let the producer go; the stream stays open."""
        producer = self._producers.pop(_key(command), None)
        if producer is not None:
            await producer.close()
        return {"type": command["type"], "success": True, "status": 200}

    async def _append_all(
        self, stream: Stream, command: Command, items: list[bytes]
    ) -> Appended | None:
        key = _key(command)
        if key not in self._producers:
            self._producers[key] = _producer(stream, command)
        producer = self._producers[key]
        try:
            await producer.append_many(items)
            return await producer.flush()
        except Exception:
            self._producers.pop(key, None)
            raise


def _key(command: Command) -> Key:
    return command["path"], command["producerId"], command.get("epoch", 0)


def _producer(stream: Stream, command: Command, limits: ProducerLimits | None = None) -> Producer:
    return stream.producer(
        command["producerId"],
        epoch=command.get("epoch", 0),
        auto_claim=command.get("autoClaim", False),
        limits=limits or ProducerLimits(in_flight=IN_FLIGHT),
    )


def _told(answer: Appended | None) -> Result:
    if answer is None:
        return {}
    told: Result = {"offset": answer.next_offset, "duplicate": answer.duplicate}
    return told | ({} if answer.producer_seq is None else {"producerSeq": answer.producer_seq})


def validate(client: Client, command: Command) -> Result:
    """Make what the command describes, to see whether the client refuses it."""
    target = command["target"]
    try:
        match target["target"]:
            case "retry-options":
                _make_retry(target)
            case "idempotent-producer":
                _make_producer(client, target)
            case unknown:
                raise NotSupportedError(f"There is nothing called {unknown!r} to validate.")
    except InvalidRequestError as error:
        text = str(error)
        for ours, theirs in _THEIR_NAMES.items():
            text = text.replace(f"{ours} is", f"{theirs} ({ours}) is")
        raise InvalidRequestError(text) from None
    return {"type": "validate", "success": True}


def _make_retry(target: Command) -> None:
    if target.get("multiplier", 2) != 2:
        raise InvalidRequestError("The multiplier is 2: pauses always double.")
    Retry(
        attempts=target.get("maxRetries", 9) + 1,
        first_s=target.get("initialDelayMs", 100) / 1000,
        max_s=target.get("maxDelayMs", 5000) / 1000,
    )


def _make_producer(client: Client, target: Command) -> None:
    usual = ProducerLimits()
    limits = ProducerLimits(
        batch_bytes=target.get("maxBatchBytes", usual.batch_bytes),
        batch_messages=target.get("maxBatchItems", usual.batch_messages),
    )
    stream = client.stream("validated")
    stream.producer(target.get("producerId", ""), epoch=target.get("epoch", 0), limits=limits)
