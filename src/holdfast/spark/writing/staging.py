"""The sink's side of batches: tasks stage their rows on the server, and the driver publishes them.

Rules:

- Every attempt of a task stages a part of its own, so attempts do not meet. Spark takes one attempt
  of each task, and the parts of these make the batch, in the order of the tasks.
- One request of the driver publishes the batch, and is repeated until the server confirms it. The
  server publishes one batch for a producer and an epoch, the first that it is asked to.
- Parts that are not published are dropped as soon as their end is known, and otherwise by the
  server after a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from holdfast.client import Client
from holdfast.errors import (
    HoldfastError,
    NotFoundError,
    PayloadTooLargeError,
    ProducerFencedError,
    SettingsError,
    StreamNotFoundError,
)
from holdfast.protocol.parts import APPENDS_MAX, PartAppend, encode_append
from holdfast.spark.connection import SparkClient
from holdfast.spark.session import rebuild_error
from holdfast.spark.writing.options import WriteColumns, WriteOptions
from holdfast.spark.writing.rows import EncodedRun, RowEncoder
from holdfast.spark.writing.sender import BatchProducer

_BATCH: Final = "/v1/batch"
_PART: Final = "/v1/batch/part"
_JSON: Final = {"Content-Type": "application/json"}
_BYTES: Final = {"Content-Type": "application/octet-stream"}
# The server accepts 200,000.
_MESSAGES_MAX: Final = 100_000


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """What one attempt of a task has staged."""

    partition: int
    producer: BatchProducer
    # Empty if there were no rows.
    part: str = ""
    part_bytes: int = 0
    rows: int = 0
    # Those of all tasks add up to that of the batch, however its rows are divided. None if the
    # batch cannot be mistaken for another one: then it is the same even if its rows are not.
    digest: int | None = None


class _Part:
    """Sends the appends of one attempt, one request while the next is made."""

    def __init__(self, client: Client) -> None:
        self.id = uuid4().hex
        self.size_bytes = 0
        self._client = client
        self._requests = 0
        self._sending: asyncio.Task[None] | None = None

    async def add(self, body: bytes) -> None:
        await self.finish()
        self._sending = asyncio.create_task(self._send(self._requests, body))
        self._requests += 1

    async def finish(self) -> None:
        """Wait until everything is staged; raise what went wrong."""
        if self._sending is not None:
            await self._sending

    async def _send(self, seq: int, body: bytes) -> None:
        params = {"part": self.id, "seq": str(seq)}
        response = await self._client.request(
            "POST", _PART, params=params, headers=_BYTES, body=body, repeatable=True
        )
        self.size_bytes = int(response.headers["stream-next-offset"])

    async def drop(self) -> None:
        if self._sending is not None:
            with suppress(HoldfastError):
                await self._sending
            await _drop(self._client, self.id)


def stage(
    options: WriteOptions,
    columns: WriteColumns,
    batches: Iterable[pa.RecordBatch],
    producer: BatchProducer,
    partition: int,
    *,
    has_digest: bool,
) -> StagedRows:
    """Stage the rows of a task; nobody sees them yet."""
    encoder = RowEncoder(options, columns)
    rows, digest = 0, 0 if has_digest else None
    with SparkClient(options.connection) as server:
        part = _Part(server.async_client)
        try:
            for gathered in _gathered(batches, options.request_bytes):
                rows += gathered.num_rows
                runs = list(encoder.by_stream(gathered))
                if digest is not None:
                    digest += sum(run.digest() for run in runs)
                for body in _bodies(runs, options):
                    server.call(part.add(body))
            server.call(part.finish())
        except BaseException as error:
            server.call(part.drop())
            if isinstance(error, HoldfastError):
                raise _explained(error, options) from error
            raise
    if not rows:
        return StagedRows(partition, producer)
    return StagedRows(partition, producer, part.id, part.size_bytes, rows, digest)


def _gathered(batches: Iterable[pa.RecordBatch], size_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about this size: a request has one append for each stream."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(each.nbytes for each in held) >= size_bytes:
            yield pa.concat_batches(held)
            held = []
    if held:
        yield pa.concat_batches(held)


def _bodies(runs: Iterable[EncodedRun], options: WriteOptions) -> Iterator[bytes]:
    """The bodies of requests with these rows; one that is larger than it may be has one row."""
    appends: list[bytes] = []
    size_bytes = 0
    for run in runs:
        at = 0
        while at < len(run):
            room = int(run.starts[at]) + options.request_bytes - size_bytes
            end = min(int(run.starts.searchsorted(room, side="right")) - 1, at + _MESSAGES_MAX)
            if appends and (end <= at or len(appends) == APPENDS_MAX):
                yield b"".join(appends)
                appends, size_bytes = [], 0
                continue
            end = max(end, at + 1)
            append = encode_append(_append(run, at, end, is_framed=options.framing is not None))
            appends.append(append)
            size_bytes += len(append)
            at = end
    if appends:
        yield b"".join(appends)


def _append(run: EncodedRun, first: int, last: int, *, is_framed: bool) -> PartAppend:
    messages = run.cut(first, last)
    if run.is_json:
        return PartAppend(run.name, b"[%b]" % messages)
    lengths = [len(messages)] if is_framed else run.lengths(first, last)
    return PartAppend(run.name, messages, lengths)


def publish(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Publish what the tasks of a batch have staged."""
    staged = _staged(messages)
    if not staged:
        return
    producer = staged[0].producer
    document = {
        "producer_id": producer.producer_id,
        "epoch": producer.epoch,
        "scope": options.bucket,
        "content_type": options.content_type,
        "parts": [{"id": each.part, "bytes": each.part_bytes} for each in staged],
        "digest": _digest(staged),
        "create_streams": options.create_streams,
        "close_streams": options.close_streams,
        "ttl": options.ttl_s,
    }
    body = msgspec.json.encode(document)

    async def ask(client: Client) -> None:
        # The server answers 202 every few seconds until the batch is published.
        while True:
            response = await client.request(
                "POST", _BATCH, headers=_JSON, body=body, repeatable=True
            )
            if response.status != 202:
                return

    with SparkClient(options.connection) as server:
        try:
            server.run(ask)
        except HoldfastError as error:
            raise _explained(error, options, producer) from error


def _digest(staged: Sequence[StagedRows]) -> str:
    digests = [each.digest for each in staged if each.digest is not None]
    if not digests:
        return ""
    return f"{sum(each.rows for each in staged)}:{sum(digests) % 2**64:016x}"


def drop(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop what tasks have staged, unless it is being published."""
    with SparkClient(options.connection) as server:
        for each in _staged(messages):
            server.call(_drop(server.async_client, each.part))


async def _drop(client: Client, part: str) -> None:
    # What cannot be dropped now, the server drops later.
    with suppress(HoldfastError):
        await client.request("DELETE", _PART, params={"part": part}, repeatable=True)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    """The parts of a batch, in the order of the tasks."""
    found = [each for each in messages if isinstance(each, StagedRows) and each.part]
    return sorted(found, key=lambda each: each.partition)


def _explained(
    error: HoldfastError, options: WriteOptions, producer: BatchProducer | None = None
) -> HoldfastError:
    """The same error with what to do about it in its message."""
    if type(error) is NotFoundError:
        return SettingsError(
            f"The server at {options.connection.url} cannot publish batches: it is older than this "
            "package, or another one. Use holdfast.spark.write_to_streams instead."
        )
    match error:
        case ProducerFencedError() if producer is not None:
            message = (
                f"The producer {producer.producer_id!r} has written under the epoch "
                f"{error.epoch}, and this is {producer.epoch}: another query has the same "
                "producerId, or the checkpoint was started anew; choose another producerId."
            )
        case StreamNotFoundError():
            message = f"{error.message} Create it first, or leave createStreams at true."
        case PayloadTooLargeError():
            message = (
                f"{error.message} Lower the option requestBytes or, if a single row is too large, "
                "raise the server's setting body_bytes_max."
            )
        case _:
            return error
    return rebuild_error(type(error), message)
