"""A proxy with one stream, whose frames a test writes; behind it is no upstream at all."""

import asyncio
import json

from holdfast.protocol.frames import (
    COMPLETE,
    DATA,
    encode_error,
    encode_frame,
    encode_start,
)
from tests.client.scripted.server import Answer, Request, answer, at, page

STREAM_ID = "0f6e7a52-6c3b-5d0e-8f1a-3f1f1d3c2b1a"
PATH = f"/v1/proxy/{STREAM_ID}"
HEADERS = {"content-type": "text/event-stream"}


def start(response_id=1, status=200):
    """The Start frame of a response."""
    return encode_start(response_id, status, HEADERS)


def data(payload, response_id=1):
    """A Data frame."""
    return encode_frame(DATA, response_id, payload)


def complete(response_id=1):
    """The frame that ends a response well."""
    return encode_frame(COMPLETE, response_id)


def failed(code="UPSTREAM_TIMEOUT", response_id=1):
    """The frame that ends a response badly."""
    return encode_error(response_id, code, "It took too long.")


def refusal(status, code, **more):
    """An error answer as the proxy gives it."""
    said = {"code": code, "message": f"This is {code}.", **more}
    body = json.dumps({"error": said}).encode()
    return answer(status, body, content_type="application/json")


class ProxyServer:
    """Serves reads of the stream, by plain answers and long-polls, and connects.

    `answer_bytes` is the most that an answer holds. Only the newest signed URL is good, once
    `expire` was called.
    """

    def __init__(self, *frames: bytes, answer_bytes: int = 1_000_000, closed: bool = False) -> None:
        self.stored = b"".join(frames)
        self.closed = closed
        self.deleted = False
        self.renewable = True
        self.connects = 0
        self.reads = 0
        self.oldest_good = 0
        self._answer_bytes = answer_bytes
        self._changed = asyncio.Condition()

    def url(self, number: int = 0) -> str:
        """The path of a signed URL; the server tells its own address."""
        return f"{PATH}?expires=9&signature=sig{number}"

    def expire(self) -> None:
        """From now on only URLs that are yet to be given out are good."""
        self.oldest_good = self.connects + 1

    async def write(self, *frames: bytes, closed: bool = False) -> None:
        """Append to the stream."""
        self.stored += b"".join(frames)
        self.closed = self.closed or closed
        async with self._changed:
            self._changed.notify_all()

    async def __call__(self, request: Request) -> Answer:
        if request.method == "POST":
            self.connects += 1
            return answer(200, location=self.url(self.connects))
        self.reads += 1
        number = int(request.query["signature"].removeprefix("sig"))
        if number < self.oldest_good:
            more = {"renewable": self.renewable, "streamId": STREAM_ID}
            return refusal(401, "SIGNATURE_EXPIRED", **more)
        if self.deleted:
            return refusal(404, "STREAM_NOT_FOUND")
        offset = 0 if request.query["offset"] == "-1" else int(request.query["offset"])
        if request.query.get("live") == "sse":
            return answer(405)
        if request.query.get("live"):
            async with self._changed:
                await self._changed.wait_for(lambda: len(self.stored) > offset or self.closed)
        end = min(len(self.stored), offset + self._answer_bytes)
        at_tail = end == len(self.stored)
        return page(
            self.stored[offset:end],
            end,
            content_type="application/octet-stream",
            stream_start_offset=at(offset),
            up_to_date=at_tail,
            closed=self.closed and at_tail,
        )
