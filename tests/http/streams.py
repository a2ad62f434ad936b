"""Streams as a client sees them: one method per operation, plain httpx responses."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

OFFSET = re.compile(r"\d{20}")
ERROR_CODE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
TEXT = "text/plain"
JSON = "application/json"
BINARY = "application/octet-stream"

Headers = dict[str, str]


@dataclass(frozen=True, slots=True)
class Event:
    """One Server-Sent Event: its type and its data lines, joined."""

    type: str
    data: str

    @property
    def json(self) -> Any:
        """The data as JSON."""
        return json.loads(self.data)


class Stream:
    """The stream at one path, which need not exist."""

    def __init__(self, client: httpx.Client, path: str, content_type: str = TEXT) -> None:
        self.client = client
        self.path = path
        self.url = f"/v1/stream/{quote(path)}"
        self.content_type = content_type

    def create(self, body: bytes | None = None, **headers: str) -> httpx.Response:
        """PUT, with the stream's content type; `stream_ttl="1"` becomes `Stream-TTL: 1`."""
        return self._send("PUT", body, {"Content-Type": self.content_type}, headers)

    def append(self, body: bytes | Iterator[bytes], **headers: str) -> httpx.Response:
        """POST with a body."""
        return self._send("POST", body, {"Content-Type": self.content_type}, headers)

    def close(self, **headers: str) -> httpx.Response:
        """POST that closes, without a body and without a content type."""
        return self._send("POST", None, {"Stream-Closed": "true"}, headers)

    def delete(self) -> httpx.Response:
        """DELETE."""
        return self.client.delete(self.url)

    def head(self) -> httpx.Response:
        """HEAD."""
        return self.client.head(self.url)

    def read(self, offset: str | None = None, **parameters: object) -> httpx.Response:
        """GET, catch-up."""
        return self.get({"offset": offset, **parameters})

    def long_poll(self, offset: str | None, **parameters: object) -> httpx.Response:
        """GET with `live=long-poll`."""
        return self.get({"offset": offset, "live": "long-poll", **parameters})

    def get(self, parameters: dict[str, Any], **headers: str) -> httpx.Response:
        """GET with these parameters, those that are None left out."""
        given = {name: value for name, value in parameters.items() if value is not None}
        return self.client.get(self.url, params=given, headers=header_names(headers))

    @contextmanager
    def sse(self, offset: str = "-1", **parameters: object) -> Iterator["EventStream"]:
        """GET with `live=sse`."""
        given = {"offset": offset, "live": "sse", **parameters}
        with self.client.stream("GET", self.url, params=given) as response:
            yield EventStream(response)

    def tail(self) -> str:
        """The tail offset, by HEAD."""
        return self.head().headers["Stream-Next-Offset"]

    def _send(self, method: str, body: Any, defaults: Headers, headers: Headers) -> httpx.Response:
        merged = defaults | header_names(headers)
        return self.client.request(method, self.url, content=body, headers=merged)


class EventStream:
    """The events of an open SSE response, parsed as the HTML standard says."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.comments: list[str] = []
        self._events = self._parse()

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def next(self) -> Event:
        """The next event; the client's timeout bounds the wait."""
        return next(self._events)

    def until_up_to_date(self) -> list[Event]:
        """Events up to and including the first control event that says all has been sent."""
        events = []
        for event in self._events:
            events.append(event)
            if event.type == "control" and event.json.keys() & {"upToDate", "streamClosed"}:
                return events
        raise AssertionError(f"the connection ended before the stream was up to date: {events}")

    def _parse(self) -> Iterator[Event]:
        kind, data = "", []
        for line in self._lines():
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if not line:
                if data:
                    yield Event(kind, "\n".join(data))
                kind, data = "", []
            elif not name:
                self.comments.append(value)
            elif name == "event":
                kind = value
            elif name == "data":
                data.append(value)

    def _lines(self) -> Iterator[str]:
        """Lines ended by CR, LF or CRLF and nothing else, unlike `httpx.Response.iter_lines`."""
        rest = ""
        for text in self.response.iter_text():
            *lines, rest = re.split(r"\r\n|\n|\r(?!$)", rest + text)
            yield from lines


def header_names(headers: Headers) -> Headers:
    """Keyword arguments as header names: `producer_id` is `Producer-Id`."""
    return {name.replace("_", "-").title(): value for name, value in headers.items()}


def producer(seq: int, epoch: int = 0, name: str = "writer") -> Headers:
    """The three headers of an idempotent producer, as keyword arguments."""
    return {"producer_id": name, "producer_epoch": str(epoch), "producer_seq": str(seq)}


def data_of(events: list[Event]) -> list[str]:
    """The data of the data events."""
    return [event.data for event in events if event.type == "data"]


def check_error(response: httpx.Response, status: int, code: str = "", about: str = "") -> None:
    """Check a refusal: its status, its JSON body and that the message names what is wrong."""
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message"}
    assert ERROR_CODE.fullmatch(body["error"]["code"])
    assert len(body["error"]["message"]) >= 10
    assert about.lower() in body["error"]["message"].lower()
    if code:
        assert body["error"]["code"] == code
