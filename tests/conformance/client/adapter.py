"""The client behind the upstream suite's protocol: one line of JSON in, one line of JSON out.

Commands are carried out one after another. Nothing but results goes to stdout.
"""

import asyncio
import json
import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from holdfast import __version__
from holdfast.client import Client, ProducerStamp, Stream, Timeouts
from holdfast.client.calls import Value
from tests.conformance.client import reading
from tests.conformance.client.benchmarks import benchmark
from tests.conformance.client.dynamic import DynamicValues
from tests.conformance.client.producing import Producers, validate
from tests.conformance.client.results import Command, NotSupportedError, Result, error_result

OCTETS = "application/octet-stream"
FEATURES = {
    "batching": True,
    "sse": True,
    "longPoll": True,
    "auto": True,
    "streaming": True,
    "dynamicHeaders": True,
    "retryOptions": True,
    "batchItems": True,
    "strictZeroValidation": True,
}


class Adapter:
    """What lasts from one command to the next."""

    def __init__(self) -> None:
        self._url = ""
        self._timeouts = Timeouts()
        self._client: Client | None = None
        self._clients = AsyncExitStack()
        # Known from what went before, so that an append is a single request.
        self._content_types: dict[str, str] = {}
        self._headers = DynamicValues()
        self._params = DynamicValues()
        self._producers = Producers()

    async def handle(self, command: Command) -> Result:
        """Carry a command out; whatever goes wrong becomes an error result."""
        name = str(command.get("type")).replace("-", "_")
        handler = getattr(self, f"_do_{name}", self._do_nothing)
        try:
            result: Result = await handler(command)
        except Exception as error:  # noqa: BLE001 - every failure is a result
            return error_result(command, error)
        return result

    async def aclose(self) -> None:
        self._client = None
        await self._clients.aclose()

    async def _do_nothing(self, command: Command) -> Result:
        raise NotSupportedError(f"There is no command {command.get('type')!r}.")

    async def _do_init(self, command: Command) -> Result:
        await self.aclose()
        self._content_types.clear()
        self._headers.clear()
        self._params.clear()
        self._producers = Producers()
        self._url = command["serverUrl"].rstrip("/")
        if command.get("timeoutMs"):
            self._timeouts = Timeouts(request_s=command["timeoutMs"] / 1000)
        self._client = await self._opened({}, {})
        told = {"clientName": "holdfast", "clientVersion": __version__, "features": FEATURES}
        return {"type": "init", "success": True, **told}

    async def _do_shutdown(self, command: Command) -> Result:
        return {"type": "shutdown", "success": True}

    async def _do_create(self, command: Command) -> Result:
        content_type = command.get("contentType") or OCTETS
        async with self._stream(command) as stream:
            answer = await stream.create(
                content_type,
                ttl_s=command.get("ttlSeconds"),
                expires_at=command.get("expiresAt"),
                closed=bool(command.get("closed")),
                messages=[_data(command)] if command.get("data") else [],
            )
        self._content_types[command["path"]] = content_type
        status = 201 if answer.created else 200
        return {"type": "create", "success": True, "status": status, "offset": answer.next_offset}

    async def _do_connect(self, command: Command) -> Result:
        head = await self._do_head(command)
        return {"type": "connect", "success": True, "status": 200, "offset": head["offset"]}

    async def _do_head(self, command: Command) -> Result:
        async with self._stream(command) as stream:
            head = await stream.head()
        self._content_types[command["path"]] = head.content_type
        result = {
            "type": "head",
            "success": True,
            "status": 200,
            "offset": head.next_offset,
            "contentType": head.content_type,
            "streamClosed": head.closed,
        }
        headers = {"etag": head.etag} if head.etag else None
        optional = {"ttlSeconds": head.ttl_s, "expiresAt": head.expires_at, "headers": headers}
        return result | {name: value for name, value in optional.items() if value is not None}

    async def _do_append(self, command: Command) -> Result:
        seq = command.get("seq")
        async with self._stream(command) as stream:
            answer = await stream.append(
                _data(command),
                seq=None if seq is None else str(seq),
                if_match=command.get("ifMatch"),
                producer=_stamp(command),
            )
        status = 204 if answer.duplicate else 200
        result = {"type": "append", "success": True, "status": status, "offset": answer.next_offset}
        if answer.etag:
            result["headers"] = {"etag": answer.etag}
        if answer.producer_seq is not None:
            result |= {"duplicate": answer.duplicate, "producerSeq": answer.producer_seq}
        return result | self._sent()

    async def _do_read(self, command: Command) -> Result:
        async with self._stream(command) as stream:
            return await reading.read(stream, command) | self._sent()

    async def _do_close(self, command: Command) -> Result:
        async with self._stream(command) as stream:
            stream.content_type = command.get("contentType") or stream.content_type
            if command.get("data"):
                answer = await stream.append(_data(command), close=True)
            else:
                answer = await stream.close()
        told = {"status": 200, "finalOffset": answer.next_offset}
        return {"type": "close", "success": True, **told}

    async def _do_delete(self, command: Command) -> Result:
        async with self._stream(command) as stream:
            await stream.delete()
        self._content_types.pop(command["path"], None)
        return {"type": "delete", "success": True, "status": 200}

    async def _do_idempotent_append(self, command: Command) -> Result:
        async with self._stream(command, stays=True) as stream:
            return await self._producers.append(stream, command, _data(command))

    async def _do_idempotent_append_batch(self, command: Command) -> Result:
        items = [item.encode() for item in command["items"]]
        async with self._stream(command) as stream:
            return await self._producers.append_batch(stream, command, items)

    async def _do_idempotent_close(self, command: Command) -> Result:
        data = _data(command) if command.get("data") else None
        async with self._stream(command, stays=True) as stream:
            return await self._producers.close(stream, command, data)

    async def _do_idempotent_detach(self, command: Command) -> Result:
        return await self._producers.detach(command)

    async def _do_set_dynamic_header(self, command: Command) -> Result:
        self._headers.set(command)
        return {"type": command["type"], "success": True}

    async def _do_set_dynamic_param(self, command: Command) -> Result:
        self._params.set(command)
        return {"type": command["type"], "success": True}

    async def _do_clear_dynamic(self, command: Command) -> Result:
        self._headers.clear()
        self._params.clear()
        return {"type": command["type"], "success": True}

    async def _do_validate(self, command: Command) -> Result:
        return validate(self._connected(), command)

    async def _do_benchmark(self, command: Command) -> Result:
        async with self._stream(command | {"path": command["operation"]["path"]}) as stream:
            return await benchmark(stream, command)

    @asynccontextmanager
    async def _stream(self, command: Command, *, stays: bool = False) -> AsyncIterator[Stream]:
        """The stream of a command, by a client of its own if it has headers of its own.

        Where `stays` is set, that client outlives the command.
        """
        path = command["path"]
        url, content_type = self._url + path, self._content_types.get(path)
        headers = self._headers.callables() | (command.get("headers") or {})
        params = self._params.callables()
        client = self._connected()
        if headers or params:
            client = await self._opened(headers, params)
        yield client.stream(url, content_type=content_type)
        if client is not self._client and not stays:
            await client.aclose()

    async def _opened(self, headers: Mapping[str, Value], params: Mapping[str, Value]) -> Client:
        """A client that is closed with the adapter, if not before."""
        client = Client(self._url, headers=headers, params=params, timeouts=self._timeouts)
        return await self._clients.enter_async_context(client)

    def _connected(self) -> Client:
        if self._client is None:
            raise RuntimeError("The first command is init.")
        return self._client

    def _sent(self) -> Result:
        sent = {"headersSent": self._headers.sent, "paramsSent": self._params.sent}
        return {name: values for name, values in sent.items() if values}


def _data(command: Command) -> bytes:
    data = command.get("data") or ""
    return b64decode(data) if command.get("binary") else data.encode()


def _stamp(command: Command) -> ProducerStamp | None:
    if command.get("producerId") is None:
        return None
    epoch, seq = command.get("producerEpoch", 0), command.get("producerSeq", 0)
    return ProducerStamp(command["producerId"], epoch, seq)


async def run() -> None:
    """Answer commands until shutdown, or until nobody sends any more."""
    adapter = Adapter()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        if not line.strip():
            continue
        command = _parse(line)
        _write(await adapter.handle(command))
        if command.get("type") == "shutdown":
            break
    await adapter.aclose()


def _parse(line: bytes) -> Command:
    """The command in a line; what is none has no type, and so is not supported."""
    try:
        command = json.loads(line)
    except ValueError:
        return {}
    return command if isinstance(command, dict) else {}


def _write(result: Result) -> None:
    # ASCII only: some readers take U+2028 for the end of a line.
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(run())
