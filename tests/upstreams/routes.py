"""What an upstream answers on which path."""

import json
from collections.abc import Callable

from tests.upstreams.llm import chat_completions, messages
from tests.upstreams.replies import Reply, generated
from tests.upstreams.requests import Request

Route = Callable[[Request], Reply]


def fixed(request: Request) -> Reply:
    """The query's `body` as it stands."""
    return Reply(_one(request, "body", "").encode(), framing="length")


def bytes_(request: Request) -> Reply:
    """So many bytes of the pattern as `count` says, of any size: they are made on the way."""
    body = generated(int(_one(request, "count", "0")))
    return Reply(body, content_type="application/octet-stream")


def echo(request: Request) -> Reply:
    """The request as JSON: method, target, headers as pairs, body as text, HTTP version."""
    said = {
        "method": request.method,
        "target": request.target,
        "headers": request.headers,
        "body": request.body.decode("utf-8", "replace"),
        "http_version": request.http_version,
    }
    return Reply(json.dumps(said).encode(), content_type="application/json", framing="length")


def error(request: Request) -> Reply:
    """An error as APIs have it, of at least `count` bytes; `status` is 500 unless it says."""
    message = "x" * int(_one(request, "count", "0"))
    body = json.dumps({"error": {"type": "test_error", "message": message}}).encode()
    return Reply(body, status=500, content_type="application/json", framing="length")


def redirect(request: Request) -> Reply:
    """A redirect to `to`; 302 unless `status` says."""
    to = ("location", _one(request, "to", "/fixed"))
    return Reply(b"elsewhere", status=302, headers=[to], framing="length")


def never(_request: Request) -> Reply:
    """Nothing, until the client leaves or the test releases the head."""
    return Reply(b"late", gate="headers")


def auth(_request: Request) -> Reply:
    """An auth endpoint that approves, unless `status`, `header` or `gate` say otherwise."""
    body = b'{"this body is": "of no interest"}'
    return Reply(body, content_type="application/json", framing="length")


def raw(request: Request) -> Reply:
    """The query's `body` as the whole response, head and all; then the connection is closed."""
    return Reply(raw=_one(request, "body", "").encode("latin-1"))


def missing(request: Request) -> Reply:
    """What is not here."""
    return Reply(f"nothing at {request.path}".encode(), status=404, framing="length")


ROUTES: dict[str, Route] = {
    "/fixed": fixed,
    "/bytes": bytes_,
    "/echo": echo,
    "/error": error,
    "/redirect": redirect,
    "/never": never,
    "/auth": auth,
    "/raw": raw,
    "/v1/chat/completions": chat_completions,
    "/v1/messages": messages,
}


def _one(request: Request, name: str, default: str) -> str:
    return request.query.get(name, [default])[-1]
