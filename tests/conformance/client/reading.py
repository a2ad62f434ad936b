"""The suite's read command, by `Stream.read`.

A chunk is what one answer or event held. Data that is no UTF-8 goes in base64.
"""

import asyncio
import json
from base64 import b64encode
from typing import Any

from holdfast.client import START, Batch, Reading, Stream
from holdfast.protocol.content import JSON, media_type
from tests.conformance.client.results import Command, NotSupportedError, Result

TIMEOUT_MS = 5000
CHUNKS_MAX = 100
_LIVE = {
    None: False,
    False: False,
    True: True,
    "auto": True,
    "sse": "sse",
    "long-poll": "long-poll",
}


async def read(stream: Stream, command: Command) -> Result:
    """Read until there is enough: so many chunks, the tail if that is waited for, or the time."""
    if command.get("live") not in _LIVE:
        raise NotSupportedError(f"There is no live mode {command['live']!r}.")
    live: Any = _LIVE[command.get("live")]
    timeout_s = command.get("timeoutMs", TIMEOUT_MS) / 1000
    collected = _Collected(command)
    async with stream.read(command.get("offset") or START, live=live) as reading:
        try:
            async with asyncio.timeout(timeout_s):
                async for batch in reading.batches():
                    if collected.add(batch):
                        break
        except TimeoutError:
            # A live read ends like this; what has had no answer at all has failed.
            if not collected.batches:
                raise TimeoutError(f"No answer within {timeout_s:g} s.") from None
            collected.wait_in_vain()
        return collected.result(reading)


class _Collected:
    def __init__(self, command: Command) -> None:
        self._chunks_max = command.get("maxChunks", CHUNKS_MAX)
        self._until_up_to_date = command.get("waitForUpToDate", False)
        self._polls = command.get("live") == "long-poll"
        self.chunks: list[dict[str, Any]] = []
        self.batches = 0
        self._status = 200

    def add(self, batch: Batch) -> bool:
        """Take a batch; whether that was the last one that is asked for."""
        self.batches += 1
        # Behind the catch-up, an answer without data is one that waited for some in vain.
        self._status = 204 if self._polls and self.batches > 1 and not batch.data else 200
        chunk = _chunk(batch)
        if chunk is not None:
            self.chunks.append(chunk | {"offset": batch.next_offset})
        enough = len(self.chunks) >= self._chunks_max
        return enough or (self._until_up_to_date and batch.up_to_date)

    def wait_in_vain(self) -> None:
        """Nothing came for the rest of the time: long-polls were answered so."""
        if self._polls:
            self._status = 204

    def result(self, reading: Reading) -> Result:
        result: Result = {
            "type": "read",
            "success": True,
            "status": self._status,
            "chunks": self.chunks,
            "offset": reading.offset,
            "upToDate": reading.up_to_date,
            "streamClosed": reading.closed,
        }
        return result | ({} if reading.cursor is None else {"cursor": reading.cursor})


def _chunk(batch: Batch) -> dict[str, Any] | None:
    if not batch.data:
        return None
    if media_type(batch.content_type) == JSON:
        # Parsed, so that what is no JSON is an error, and written the way the suite expects it.
        values = batch.json
        text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
        return {"data": text} if values else None
    try:
        return {"data": batch.text}
    except UnicodeDecodeError:
        return {"data": b64encode(batch.data).decode(), "binary": True}
