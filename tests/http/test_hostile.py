"""Hostile requests on every route: each is answered, and none with 500.

They are drawn from the OpenAPI document: its paths, parameters, headers and bodies, with values
that break parsers in place of some of the right ones. A part of them is damaged on the wire.
"""

import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.http.openapi import document
from holdfast.proxy import OPENAPI
from tests.http.described_proxy import SECRET, SERVICE
from tests.server_process import ServerProcess
from tests.thorough import THOROUGH

DEADLINE_S = 10.0
SEED = 20
METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "NONSENSE")
VALUES = (
    *(b"", b"0", b"-1", b"-0", b"+5", b" 5", b"5", b"1e5", b"0x5", b"1_0", b"NaN", b"9" * 20),
    *(b"now", b"true", b"null", b"*", b",", b"=", b"&", b"/", b"//", b".", b"..", b"%2e%2e"),
    *(b"%", b"%zz", b"%00", b"%ff", b"%2f", b"%u0041", b"%ed%a0%80", b"\xff\xfe", b"\xc0\xae"),
    *(b'"x"', b'W/"1:2"', b'"1:2:c"', b'"::::"', b"9" * 400, b"a" * 3000, b"\x7f", b"\x01"),
    *(b"0001-01-01T00:00:00+23:59", b"9999-12-31T23:59:59-23:59", b"2030-13-31T12:00:00Z"),
    *(b"9007199254740992", b"18446744073709551616", b"\xf0\x9f\x98\x80", b"application/json"),
    *(b"http://[::1", b"https://x:99999/", b"https://\xff/", b"Bearer", b"Bearer \xff"),
    *(b"Bearer e30.e30.", b"Basic \xff", b"text/\xff", b"streams", b"snapshot", b"__ds", b"_proxy"),
    *(b"packs/../x.pack", b"long-poll", b"sse", b"abort"),
)  # fmt: skip
JSON_VALUES = (
    *(b'"\xff"', b'"\\ud800"', b'"\\u0000"', b'""', b'"a"', b'"-1"', b'"https://[::1"', b'"5"'),
    *(b"0", b"-1", b"1e308", b"1e999", b"99999999999999999999", b"1.5", b"null", b"true", b"{}"),
    *(b"[]", b'["\xff"]', b'["\\ud800"]', b'[{"stream":"a","offset":"\xff"}]', b"[" * 2000),
    *(b'{"url":"https://\xff"}', b'["packs/x.pack"]', b'"packs/x.pack"'),
)  # fmt: skip
KNOWN = {
    "bucket": b"hostile", "stream": b"hello", "path": b"hostile/hello", "offset": b"5",
    "subscription": b"workers", "stream_id": b"0f8b2c1e-5d6f-4a7b-8c9d-0e1f2a3b4c5d",
}  # fmt: skip
LIVE = {"long_poll_timeout": 0.02, "sse_lifetime": 0.02}


class Attacker:
    """Draws requests; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        described = document(OPENAPI)
        # Bodies are the harder part, so requests that have one come more often.
        self._operations = [
            (path, method.upper(), operation)
            for path, operations in described["paths"].items()
            for method, operation in operations.items()
            if method.upper() in METHODS
            for _ in range(5 if "requestBody" in operation else 1)
        ]
        self._schemas = described["components"]["schemas"]
        parameters = described["components"]["parameters"].values()
        self._query = sorted({each["name"] for each in parameters if each["in"] == "query"})
        self._headers = sorted({each["name"] for each in parameters if each["in"] == "header"})
        self._headers += ["Content-Type", "Authorization", "Origin", "Last-Event-ID", "Range"]
        self._headers += ["Access-Control-Request-Headers", "X-Forwarded-Host", "Upgrade"]

    def request(self) -> bytes:
        draw = self._random
        path, method, operation = draw.choice(self._operations)
        body = self._body(operation)
        if draw.random() < 0.1:
            method = draw.choice(METHODS)
        fields = {
            name: self._value() for name in draw.sample(self._headers, draw.choice((0, 1, 3)))
        }
        if draw.random() < 0.6:
            fields |= {name: value.encode() for name, value in SERVICE.items()}
        if draw.random() < 0.7:
            fields["Content-Type"] = b"application/json" if body[:1] == b"{" else b"text/plain"
        head = b"%b %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n"
        head %= (method.encode(), self._target(path), len(body))
        lines = [b"%b: %b\r\n" % (name.encode(), value) for name, value in fields.items()]
        return head + b"".join(lines) + b"\r\n" + body

    def damaged(self, request: bytes) -> bytes:
        draw = self._random
        data = bytearray(request)
        for _ in range(draw.choice((1, 2, 5))):
            at = draw.randrange(len(data))
            data[at : at + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
        return bytes(data)

    def _value(self) -> bytes:
        """Something that can be in a header; in one of ten cases something that cannot."""
        draw = self._random
        value = draw.choice(VALUES) if draw.random() < 0.8 else draw.randbytes(draw.randrange(12))
        if draw.random() < 0.1:
            return value.replace(b"\r", b"").replace(b"\n", b"")
        return bytes(byte for byte in value if byte >= 0x20 and byte != 0x7F)

    def _target(self, path: str) -> bytes:
        draw = self._random
        known = {
            name: value if draw.random() < 0.7 else self._escaped() for name, value in KNOWN.items()
        }
        target = path.encode()
        for name, value in known.items():
            target = target.replace(b"{%b}" % name.encode(), value)
        names = draw.sample(self._query, draw.choice((0, 0, 1, 2)))
        pairs = [b"%b=%b" % (name.encode(), self._escaped()) for name in names]
        return target + b"?" * bool(pairs) + b"&".join(pairs)

    def _escaped(self) -> bytes:
        return b"".join(
            b"%%%02x" % byte if byte <= 0x20 or byte >= 0x7F or byte in b"#?" else bytes([byte])
            for byte in self._value()
        )

    def _body(self, operation: dict[str, Any]) -> bytes:
        draw = self._random
        content = operation.get("requestBody", {}).get("content", {})
        if draw.random() < 0.1 or not content:
            return draw.choice((b"", b"", b"x", draw.randbytes(20)))
        reference = content.get("application/json", {}).get("schema", {}).get("$ref")
        if reference is None:
            return draw.choice((*VALUES, *JSON_VALUES))
        fields = self._schemas[reference.rpartition("/")[2]]["properties"]
        chosen = draw.sample(list(fields), draw.randint(1, len(fields)))
        pairs = [b'"%b":%b' % (name.encode(), draw.choice(JSON_VALUES)) for name in chosen]
        return b"{%b}" % b",".join(pairs)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir = tmp_path_factory.mktemp("attacked") / "data"
    proxy = {"proxy_secret": SECRET, "proxy_allowlist": "http://127.0.0.1:1"}
    with ServerProcess(data_dir, **LIVE, **proxy) as process:
        yield process


def send(port: int, data: bytes, *, is_damaged: bool) -> bytes:
    """The response; a damaged request may be incomplete, so it is ended."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as connection:
        connection.sendall(data)
        if is_damaged:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while piece := connection.recv(65_536):
            received += piece
    return received


def restore(port: int) -> None:
    wanted = b'{"type":"pull-wake","streams":["hostile/hello"],"wake_stream":"wakes"}'
    for method, path, kind, body in (
        (b"PUT", b"/hostile", b"text/plain", b""),
        (b"PUT", b"/hostile/hello", b"text/plain", b""),
        (b"POST", b"/hostile/hello", b"text/plain", b"12345"),
        (b"PUT", b"/v1/stream/__ds/subscriptions/workers", b"application/json", wanted),
    ):
        head = b"%b %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: %b\r\n"
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        assert send(port, head % (method, path, kind) + length + body, is_damaged=False)


@pytest.mark.thorough
def test_every_hostile_request_is_answered(attacked: ServerProcess) -> None:
    attacker = Attacker(SEED)
    for number in range(20_000 if THOROUGH else 500):
        if number % 100 == 0:
            restore(attacked.port)
        request = attacker.request()
        is_damaged = number % 5 == 0
        if is_damaged:
            request = attacker.damaged(request)
        response = send(attacked.port, request, is_damaged=is_damaged)
        assert response.startswith(b"HTTP/1.1 ") or (is_damaged and not response), request
        assert response[9:12] != b"500", (request, response)
