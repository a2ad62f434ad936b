"""Buckets with streams of frames, runs of the job `transcripts`, and its tables read back."""

import json
from collections import Counter
from typing import Any

import pyarrow.parquet as pq

from holdfast.protocol.frames import (
    ABORT,
    COMPLETE,
    DATA,
    encode_error,
    encode_frame,
    encode_start,
)
from holdfast.settings.options import build
from holdfast.spark.connection import SparkConnection
from holdfast.spark.jobs.progress import UNSEEN
from holdfast.spark.jobs.transcripts import Transcripts, TranscriptsSummary
from holdfast.spark.transcribing.run import transcribe
from tests.server_process import ServerProcess
from tests.spark.archiving import BUCKETS, Here, table_at
from tests.spark.filled import Filled

SSE = {"content-type": "text/event-stream", "x-request-id": "abc"}


class Proxied(Filled):
    """A bucket with streams as the proxy writes them, and how their responses ended."""

    def __init__(self, url: str, bucket: str) -> None:
        super().__init__(url, bucket)
        # (stream, response) → outcome, body; of those that have ended.
        self.ended: dict[tuple[str, int], tuple[str, bytes]] = {}
        self._bodies: dict[tuple[str, int], bytes] = {}

    def begin(self, stream_id: str, number: int, *parts: bytes) -> None:
        """Start a response."""
        self._bodies[stream_id, number] = b""
        self.append(stream_id, encode_start(number, 200, SSE))
        self.more(stream_id, number, *parts)

    def more(self, stream_id: str, number: int, *parts: bytes) -> None:
        """Go on with a response."""
        for each in parts:
            self._bodies[stream_id, number] += each
            self.append(stream_id, encode_frame(DATA, number, each))

    def end(self, stream_id: str, number: int, outcome: str = "complete") -> None:
        """End a response."""
        frame = {
            "complete": encode_frame(COMPLETE, number),
            "aborted": encode_frame(ABORT, number),
            "failed": encode_error(number, "UPSTREAM_TIMEOUT", "Nothing came."),
        }[outcome]
        self.append(stream_id, frame)
        self.ended[stream_id, number] = outcome, self._bodies[stream_id, number]


def new_bucket(server: ServerProcess) -> Proxied:
    """A bucket that no test had before."""
    found = Proxied(server.url, f"bucket-{next(BUCKETS)}")
    found.client.bucket(found.bucket).create()
    return found


def chat(*words: str, model: str = "gpt-4o") -> list[bytes]:
    """An answer as OpenAI streams it, event by event."""
    chunks: list[dict[str, Any]] = [
        {"model": model, "choices": [{"index": 0, "delta": {"content": each}}]} for each in words
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    usage = {"prompt_tokens": 5, "completion_tokens": len(words), "total_tokens": 5 + len(words)}
    chunks.append({"choices": [], "usage": usage})
    return [b"data: " + json.dumps(each).encode() + b"\n\n" for each in chunks]


def fill(proxied: Proxied, turn: int) -> None:
    """Responses that end, and one that goes on in the next turn; in packs and not there yet."""
    for number, outcome in enumerate(("complete", "aborted", "failed")):
        proxied.begin(f"stream-{number}", 2 * turn + 1, *chat("one", " two"))
        proxied.end(f"stream-{number}", 2 * turn + 1, outcome)
    if turn:
        proxied.more("stream-0", 2 * turn, *chat(f" and {turn}"))
        proxied.end("stream-0", 2 * turn)
    proxied.begin("stream-0", 2 * turn + 2, *chat(f"turn {turn}"))
    proxied.flush()
    proxied.more("stream-0", 2 * turn + 2, b"data: not in a pack\n\n")
    proxied.begin(f"late-{turn}", 1, b"short")
    proxied.end(f"late-{turn}", 1)


def job(proxied: Filled, to: object, **options: Any) -> Transcripts:
    given = {
        "bucket": proxied.bucket,
        "to": str(to),
        "server": SparkConnection(proxied.url, retries=1),
    }
    return build(Transcripts, given | options)


def run(
    proxied: Filled, to: object, executors: Here | None = None, **options: Any
) -> TranscriptsSummary:
    """A run without Spark."""
    return transcribe(executors or Here(), job(proxied, to, **options), UNSEEN)


def responses(form: str, to: Any) -> list[dict[str, Any]]:
    """The table of responses, as others read it."""
    found: list[dict[str, Any]] = table_at(form, to / "responses").to_pylist()
    return sorted(found, key=lambda each: (each["stream_id"], each["response_id"]))


def ended(form: str, to: Any) -> dict[tuple[str, int], tuple[str, bytes]]:
    """What `Proxied.ended` has, by the table; each is there once."""
    found = responses(form, to)
    keys = Counter((each["stream_id"], each["response_id"]) for each in found)
    assert not [key for key, count in keys.items() if count > 1]
    return {
        (each["stream_id"], each["response_id"]): (each["outcome"], each["body"]) for each in found
    }


def daily(to: Any) -> list[dict[str, Any]]:
    """The summary, as others read it."""
    found: list[dict[str, Any]] = pq.read_table(to / "daily").to_pylist()
    return found
