"""The application's own server: it serves the page, and keeps the secret and the key of the model.

| request | what it does | answer |
| --- | --- | --- |
| `GET /` | | the page |
| `POST /sessions/{id}` | connects to the session's stream | `{"url"}`, signed: reads and aborts |
| `POST /sessions/{id}/messages` | asks the model, into that stream | `{"url", "response"}` |

Everything else the page asks of Holdfast itself, with the signed URL. This is the place where a
real application would check who is asking, and whether the session is theirs.
"""

import json
import re
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPSConnection
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from serving import Server

PAGE = Path(__file__).parent / "index.html"
# A model may think for a while before it says its first word.
TIMEOUT_S = 90
_ROUTE = re.compile(r"/sessions/([0-9a-f-]{36})(/messages)?")


class RefusedError(Exception):
    """The proxy, or the model behind it, returned an error."""


@dataclass(frozen=True)
class Model:
    """An endpoint that speaks OpenAI's chat completions."""

    url: str
    name: str = "fake"
    key: str = "none"


@dataclass(frozen=True)
class Proxy:
    """Holdfast's proxy and its secret."""

    server_url: str
    secret: str
    url_ttl_s: int = 600

    def connect(self, session: str) -> str:
        """Create the session's stream if it is missing; returns a signed URL for it."""
        return self._post({"Session-Id": session})["Location"]

    def ask(self, session: str, model: Model, messages: list[Any]) -> tuple[str, int]:
        """Append the model's response to the stream; returns its number there."""
        headers = {
            "Use-Stream-URL": self.connect(session),
            "Upstream-URL": model.url,
            "Upstream-Method": "POST",
            "Upstream-Authorization": f"Bearer {model.key}",
            "Content-Type": "application/json",
        }
        body = {"model": model.name, "stream": True, "messages": messages}
        answered = self._post(headers, json.dumps(body).encode())
        return answered["Location"], int(answered["Stream-Response-Id"])

    def _post(self, headers: dict[str, str], body: bytes = b"") -> HTTPMessage:
        server = urlsplit(self.server_url)
        kind = HTTPSConnection if server.scheme == "https" else HTTPConnection
        connection = kind(server.netloc, timeout=TIMEOUT_S)
        sent = {
            "Authorization": f"Bearer {self.secret}",
            "Stream-Signed-URL-TTL": str(self.url_ttl_s),
            **headers,
        }
        try:
            connection.request("POST", "/v1/proxy", body, sent)
            answer = connection.getresponse()
            said = answer.read()
        except (OSError, HTTPException):
            raise RefusedError("The server cannot be reached.") from None
        finally:
            connection.close()
        if answer.status not in {200, 201}:
            raise RefusedError(_message(said) or f"The server answered {answer.status}.")
        return answer.headers


def _message(said: bytes) -> str:
    """The message of an error response; the proxy and the models use the same form."""
    try:
        return str(json.loads(said)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Backend"

    def do_GET(self) -> None:
        if self.path != "/":
            self._answer(404, "text/plain", b"There is only one page here.\n")
            return
        self._answer(200, "text/html; charset=utf-8", PAGE.read_bytes())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        route = _ROUTE.fullmatch(self.path)
        if route is None:
            self._say(404, {"error": "There is no such thing here."})
            return
        try:
            self._say(200, self._result(route[1], body if route[2] else None))
        except RefusedError as error:
            self._say(502, {"error": str(error)})

    def _result(self, session: str, body: bytes | None) -> dict[str, object]:
        proxy, model = self.server.proxy, self.server.model
        if body is None:
            return {"url": proxy.connect(session)}
        url, response = proxy.ask(session, model, json.loads(body)["messages"])
        return {"url": url, "response": response}

    def _say(self, status: int, value: object) -> None:
        self._answer(status, "application/json", json.dumps(value).encode())

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Say nothing about requests."""


class Backend(Server):
    """The application's server."""

    def __init__(self, port: int, proxy: Proxy, model: Model) -> None:
        super().__init__(port, _Handler)
        self.proxy = proxy
        self.model = model
