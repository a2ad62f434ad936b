"""The proxy as services and readers see it: plain httpx responses, and frames taken apart by hand.

Signatures and frames are made and read here in other words than the server's.
"""

import hashlib
import hmac
import json
import re
import struct
import time
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import httpx

SECRET = "7d1c0b9f52e84a6c93f0e1b7a45d8c26"
# What the strict server signed with before.
OLD_SECRET = "b4f0a6d87c3e4215906bd1fe8a27c95d"
ALLOWLIST = "http://127.0.0.1:*"
PATH = "/v1/proxy"
DEADLINE_S = 20.0
TERMINAL = "CAE"


class Frame(NamedTuple):
    """A frame; its type is a letter."""

    type: str
    response_id: int
    payload: bytes

    @property
    def json(self) -> Any:
        """What a Start or Error frame says."""
        return json.loads(self.payload)


def frames_of(data: bytes) -> list[Frame]:
    """The frames of a stream that ends where a frame does."""
    frames, at = [], 0
    while at < len(data):
        kind, response_id, length = struct.unpack_from(">cII", data, at)
        payload = data[at + 9 : at + 9 + length]
        assert len(payload) == length, "the stream ends in the middle of a frame"
        frames.append(Frame(kind.decode("ascii"), response_id, payload))
        at += 9 + length
    return frames


def bytes_of(frames: Iterable[Frame]) -> bytes:
    """The frames as they lie in the stream."""
    return b"".join(
        struct.pack(">cII", each.type.encode(), each.response_id, len(each.payload)) + each.payload
        for each in frames
    )


def body_of(frames: Iterable[Frame], response_id: int = 1) -> bytes:
    """What the Data frames of a response hold."""
    found = (each for each in frames if (each.type, each.response_id) == ("D", response_id))
    return b"".join(each.payload for each in found)


def kinds_of(frames: Iterable[Frame], response_id: int = 1) -> str:
    """The types of a response's frames in order; several of the same count as one."""
    found = ""
    for each in frames:
        if each.response_id == response_id and not (each.type == "D" and found.endswith("D")):
            found += each.type
    return found


def ended(*response_ids: int) -> Callable[[list[Frame]], bool]:
    """Whether all these responses have their terminal frames."""
    wanted = set(response_ids)
    return lambda frames: wanted <= {each.response_id for each in frames if each.type in TERMINAL}


def sign(stream_id: str, expires: int | str, secret: str = SECRET) -> str:
    """The query of a signed URL, as the documentation says it is made."""
    digest = hmac.new(secret.encode(), f"{stream_id}:{expires}".encode(), hashlib.sha256).digest()
    signature = urlsafe_b64encode(digest).decode().rstrip("=")
    return f"expires={expires}&signature={signature}"


def id_of(location: str) -> str:
    """The id of the stream that a URL leads to."""
    return urlsplit(location).path.rpartition("/")[2]


def expires_of(location: str) -> int:
    """Until when a URL is good."""
    return int(parse_qs(urlsplit(location).query)["expires"][0])


def expired(location: str, secret: str = SECRET) -> str:
    """A URL of the same stream that was good until a minute ago."""
    expires = int(time.time()) - 60
    return f"{location.partition('?')[0]}?{sign(id_of(location), expires, secret)}"


def check_error(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check an error's status, code and form; the error as it was told."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    (error,) = answer.json().values()
    assert answer.json() == {"error": error}
    assert error["code"] == code, error
    assert len(error["message"]) >= 10
    return error


def answers(proxy: "Proxy") -> Counter[str]:
    """How often requests to `/v1/proxy` were answered with which status, as the metrics have it."""
    page = proxy.client.get("/metrics").text
    found = re.findall(
        r'^holdfast_http_requests_total{route="proxy",status="(\d+)"} (\S+)', page, re.MULTILINE
    )
    return Counter({status: int(float(count)) for status, count in found})


class Proxy:
    """The proxy at one server, with the secret."""

    def __init__(self, client: httpx.Client, secret: str = SECRET) -> None:
        self.client = client
        self.service = {"Authorization": f"Bearer {secret}"}

    def post(self, headers: dict[str, str], **more: Any) -> httpx.Response:
        """POST with these headers and service authentication."""
        return self.client.post(PATH, headers=self.service | headers, **more)

    def create(self, url: str, method: str = "POST", /, **more: Any) -> httpx.Response:
        """Have an upstream's response recorded in a stream of its own."""
        headers = {"Upstream-URL": url, "Upstream-Method": method} | more.pop("headers", {})
        return self.post(headers, **more)

    def append(
        self, location: str, url: str, method: str = "POST", /, **more: Any
    ) -> httpx.Response:
        """Have an upstream's response recorded in a stream that is there."""
        headers = {"Use-Stream-URL": location} | more.pop("headers", {})
        return self.create(url, method, headers=headers, **more)

    def connect(self, session_id: str | None = None, /, **more: Any) -> httpx.Response:
        """Connect to a session, of a new id unless one is given."""
        headers = {"Session-Id": session_id or uuid4().hex} | more.pop("headers", {})
        return self.post(headers, **more)

    def created(self, url: str, /, **more: Any) -> str:
        """The signed URL of a new stream."""
        answer = self.create(url, **more)
        assert answer.status_code == 201, answer.text
        return answer.headers["location"]

    def appended(self, location: str, url: str, /, **more: Any) -> int:
        """The id of a response that is recorded in a stream that is there."""
        answer = self.append(location, url, **more)
        assert answer.status_code == 200, answer.text
        return int(answer.headers["stream-response-id"])

    def connected(self, session_id: str | None = None, /) -> str:
        """The signed URL of a session."""
        answer = self.connect(session_id)
        assert answer.status_code in {200, 201}, answer.text
        return answer.headers["location"]

    def recorded(self, url: str, /, **more: Any) -> list[Frame]:
        """The frames of a new stream whose only response has ended."""
        return self.frames(self.created(url, **more))

    def at(self, location: str) -> str:
        """The path and query of a URL: a public one leads elsewhere."""
        url = urlsplit(location)
        return f"{PATH}{url.path.partition(PATH)[2]}?{url.query}"

    def frames(
        self, location: str, wanted: Callable[[list[Frame]], bool] | None = None
    ) -> list[Frame]:
        """The frames of a stream, as soon as they are as wanted: its first response has ended."""
        wanted = wanted or ended(1)
        deadline_s = time.monotonic() + DEADLINE_S
        data, offset = b"", "-1"
        while not wanted(frames := frames_of(data)):
            assert time.monotonic() < deadline_s, frames
            answer = self.client.get(f"{self.at(location)}&offset={offset}&live=long-poll")
            assert answer.status_code in {200, 204}, answer.text
            data += answer.content
            offset = answer.headers["stream-next-offset"]
        return frames

    def now(self, location: str) -> list[Frame]:
        """The frames that are there."""
        answer = self.client.get(self.at(location))
        assert answer.status_code == 200, answer.text
        return frames_of(answer.content)

    def abort(self, location: str, **query: object) -> httpx.Response:
        """Stop what is under way."""
        more = "".join(f"&{name}={value}" for name, value in query.items())
        return self.client.patch(f"{self.at(location)}&action=abort{more}")

    def streams(self) -> set[str]:
        """The ids of all proxy streams."""
        answer = self.client.get("/_proxy/streams", headers=self.service)
        if answer.status_code == 404:
            return set()
        assert answer.status_code == 200, answer.text
        return {each["stream_id"] for each in answer.json()["streams"]}

    def base_path(self, location: str) -> str:
        """The stream's path on the flat surface of the base protocol."""
        return f"/v1/stream/_proxy/{id_of(location)}"

    def close(self, location: str) -> httpx.Response:
        """Close the stream by the base protocol."""
        headers = self.service | {"Stream-Closed": "true"}
        return self.client.post(self.base_path(location), headers=headers)
