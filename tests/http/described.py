"""A small world for requests made from the OpenAPI document: what they ask for is mostly there."""

import zlib
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx

from tests.http.described_proxy import ProxyWorld, is_steered
from tests.http.streams import BINARY, JSON, TEXT

if TYPE_CHECKING:
    from schemathesis import Case

BUCKET = "demo"
# Names, content types and contents; offset 5 is between two messages of each.
STREAMS = {
    "hello": (TEXT, (b"hello", b" world")),
    "notes": (JSON, (b"1234", b"[5,6]")),
    "bytes": (BINARY, (b"12345", b"6789")),
    "snapped": (TEXT, (b"12345", b"6789")),
    "closed": (TEXT, (b"first", b"last")),
}
OF_TYPE = {TEXT: "hello", JSON: "notes", BINARY: "bytes"}
OFFSET = f"{5:020d}"
SUBSCRIPTIONS = "/v1/stream/__ds/subscriptions"
SUBSCRIPTION = f"{SUBSCRIPTIONS}/workers"
WORK = "work"
PULLING = {"type": "pull-wake", "streams": [WORK], "wake_stream": "wakes", "lease_ttl_ms": 600_000}


class World:
    """One bucket with a few streams, and a subscription, on a server of its own."""

    def __init__(self, client: httpx.Client, proxy: ProxyWorld) -> None:
        self._client = client
        self._proxy = proxy
        self._whole: list[Any] = []
        self._token = ""

    def prepare(self, case: "Case") -> None:
        """Have everything there, and the request ask for it more often than chance would.

        What it asks for depends on the request alone, so that it can be repeated.
        """
        sent = (case.path_parameters, case.query, case.headers, case.body)
        draw = zlib.crc32(repr(sent).encode())
        self._restore()
        if case.operation.path.startswith(SUBSCRIPTIONS):
            self._subscribe(case, draw)
        if is_steered(case, "path"):
            _steer_path(case, draw)
        if is_steered(case, "query") and is_steered(case, "header"):
            _steer_fields(case, draw)
        self._proxy.prepare(case, draw)

    def has_granted(self, case: "Case") -> bool:
        """Whether the request has credentials that were made for it here."""
        given = case.headers.get("Authorization")
        return (bool(given) and given == self._token) or self._proxy.has_granted(case)

    def _restore(self) -> None:
        if not self._whole or self._known() != self._whole:
            self._empty()
            self._fill()
            self._whole = self._known()

    def _known(self) -> list[Any]:
        found = self._client.get(f"/{BUCKET}/streams")
        if found.status_code != 200:
            return []
        return [
            (each["stream_id"], each["status"], each["tail_offset"], each["content_type"])
            for each in found.json()["streams"]
            if each["stream_id"] in STREAMS
        ]

    def _empty(self) -> None:
        while listed := self._client.get(f"/{BUCKET}/streams").json().get("streams"):
            for each in listed:
                url = f"/v1/stream/{BUCKET}/{quote(each['stream_id'], safe='')}"
                assert self._client.delete(url).status_code == 204

    def _fill(self) -> None:
        assert self._client.put(f"/{BUCKET}").status_code in {201, 409}
        for name, (content_type, messages) in STREAMS.items():
            headers = {"Content-Type": content_type}
            url = f"/{BUCKET}/{name}"
            assert self._client.put(url, headers=headers).status_code == 201
            for message in messages:
                assert self._client.post(url, content=message, headers=headers).is_success
        snapshot = f"/{BUCKET}/snapped/snapshot/{OFFSET}"
        assert self._client.put(snapshot, content=b"a snapshot").is_success
        closing = {"Stream-Closed": "true"}
        assert self._client.post(f"/{BUCKET}/closed", headers=closing).is_success

    def _subscribe(self, case: "Case", draw: int) -> None:
        """Make the subscription anew with something to do, and say what its worker would say."""
        client, body = self._client, case.body
        assert client.delete(SUBSCRIPTION).is_success
        assert client.put(SUBSCRIPTION, json=PULLING).status_code == 201
        headers = {"Content-Type": TEXT}
        assert client.put(f"/v1/stream/{WORK}", headers=headers).is_success
        assert client.post(f"/v1/stream/{WORK}", content=b"do", headers=headers).is_success
        if not isinstance(body, dict) or draw % 4 == 0:
            return
        is_free = is_steered(case, "body")
        if case.operation.path.endswith(("/ack", "/release")):
            claim = client.post(f"{SUBSCRIPTION}/claim", json={"worker": "one"}).json()
            case.headers["Authorization"] = self._token = f"Bearer {claim['token']}"
            if not is_free:
                return
            body |= {"wake_id": claim["wake_id"], "generation": claim["generation"]}
            body["acks"] = [{"stream": WORK, "offset": claim["streams"][0]["tail_offset"]}]
        elif is_free and "type" in body:
            body.pop("filter", None)
            body |= {"type": "pull-wake", "pattern": f"{BUCKET}/*", "wake_stream": "wakes"}
            body["streams"] = [WORK]


def _steer_path(case: "Case", draw: int) -> None:
    if draw % 8 == 0:
        return
    stream = list(STREAMS)[draw % len(STREAMS)]
    if case.media_type in OF_TYPE and draw % 4:
        stream = OF_TYPE[case.media_type]
    if "/snapshot" in case.operation.path and draw % 3:
        stream = "snapped"
    elif case.method == "PUT" and draw % 2:
        stream = f"new-{draw}"
    known = {
        "bucket": BUCKET,
        "stream": stream,
        "path": f"{BUCKET}/{stream}",
        "offset": OFFSET,
        "subscription": "workers" if draw % 5 else f"new-{draw}",
    }
    case.path_parameters.update(
        (name, known.get(name, given)) for name, given in case.path_parameters.items()
    )


def _steer_fields(case: "Case", draw: int) -> None:
    query, headers = case.query, case.headers
    for name in ("offset", "after"):
        if len(str(query.get(name, ""))) == 20 and draw % 3:
            query[name] = OFFSET if name == "offset" else f"{1:020d}"
    if draw % 3 == 0:
        return
    for name in ("If-Match", "If-None-Match"):
        if name in headers:
            headers[name] = "*"
    if "Stream-Fork-Offset" in headers or "Stream-Forked-From" in headers:
        headers["Stream-Forked-From"] = f"/{BUCKET}/notes"
        headers["Stream-Fork-Offset"] = OFFSET
        headers["Stream-Fork-Sub-Offset"] = str(draw % 3)
    if "Stream-TTL" in headers:
        headers.pop("Stream-Expires-At", None)
    if headers.pop("Stream-Message-Lengths", None) and isinstance(case.body, str) and case.body:
        headers["Stream-Message-Lengths"] = str(len(case.body.encode()))
    if any(name.startswith("Producer-") for name in headers) and draw % 2:
        headers.update({"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"})
