"""The proxy over HTTP: `/v1/proxy`, and the streams of its bucket in the rest of the API.

There they need service authentication, so that no other URL bypasses the signatures, and can only
be read, closed and deleted: only the proxy writes frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors import (
    ForbiddenError,
    HoldfastError,
    InvalidActionError,
    InvalidRequestError,
    ProxyNotFoundError,
    ProxyStorageError,
    StreamDeletedError,
    StreamNotFoundError,
)
from holdfast.http.access.scopes import Need
from holdfast.http.buckets import describe_bucket, get_bucket
from holdfast.http.exchange import int_parameter, parse_query
from holdfast.http.read import read
from holdfast.http.responses import respond_error
from holdfast.http.routes import STREAM_PREFIX, Match, Resource, Route
from holdfast.http.streams import append, delete, head, options
from holdfast.protocol.frames import RESPONSE_ID_MAX
from holdfast.protocol.headers import HEADER_NAME, is_true
from holdfast.protocol.names import PROXY_BUCKET, PROXY_PATH, decode_segment
from holdfast.proxy import OPENAPI
from holdfast.proxy.access import Authentication, name_of, new_stream_id, session_stream_id
from holdfast.proxy.upstream_request import (
    approval_call,
    parse_session_id,
    parse_stream_url,
    parse_url_ttl_s,
    proxy_headers,
    upstream_call,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from prometheus_client.core import Metric

    from holdfast.clock import Clock
    from holdfast.http.access.scopes import Identity
    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot
    from holdfast.http.routes import Router
    from holdfast.proxy.access import UrlSigner
    from holdfast.proxy.service import ProxyService
    from holdfast.settings import ProxySettings

_ALLOWED: Final = (
    b"Content-Type, Authorization, Upstream-URL, Upstream-Authorization, Upstream-Method, "
    b"Use-Stream-URL, Session-Id, Stream-Signed-URL-TTL, If-None-Match, Last-Event-ID"
)
# In addition to those of every response.
EXPOSED: Final = (
    b"Access-Control-Expose-Headers: Upstream-Content-Type, Upstream-Status, Stream-Response-Id\r\n"
)
_BUCKET: Final = b"/" + PROXY_BUCKET.encode()
_FLAT: Final = STREAM_PREFIX + PROXY_BUCKET.encode() + b"/"
_READING: Final = frozenset({b"GET", b"HEAD"})
_CONDITIONS: Final = frozenset(
    {b"if-match", b"producer-id", b"producer-epoch", b"producer-seq", b"stream-seq"}
)


class ProxyRoutes:
    """The proxy as the server mounts it."""

    prefixes: tuple[bytes, ...] = (PROXY_PATH, _FLAT, _BUCKET)
    forwarded_path = PROXY_PATH
    openapi: Path | None = OPENAPI

    def __init__(
        self,
        service: ProxyService,
        signer: UrlSigner,
        settings: ProxySettings,
        clock: Clock,
    ) -> None:
        self._service = service
        self._signer = signer
        self._settings = settings
        self._clock = clock
        self.forwarded_bytes_max = settings.request_bytes_max
        self._authentication = Authentication(signer)
        self.start = service.start
        self.stop = service.stop
        self.close = service.close
        self._root = _resource({b"POST": self._post, b"OPTIONS": self._options})
        self._stream = _resource(
            {
                b"GET": self._read,
                b"HEAD": self._head,
                b"PATCH": self._patch,
                b"DELETE": self._delete,
                b"OPTIONS": self._options,
            }
        )

    def metrics(self) -> Iterator[Metric]:
        return self._service.counters.metrics()

    def check_reader(self, app: App, request: Request) -> Identity:
        query = parse_query(request.query)
        if request.path.startswith(PROXY_PATH):
            return self._authentication.reader(app, request, query, request.parameter)
        return self._authentication.service(app, request, query)

    def admit_to_packs(self, app: App, request: Request) -> Identity:
        """Packs hold the proxy's streams, so reading them takes service authentication."""
        return self._authentication.service(app, request, parse_query(request.query))

    def match(self, path: bytes, router: Router) -> Match | None:
        """The resource at a path; None if the path is not the proxy's."""
        if path.startswith(PROXY_PATH):
            return self._own_match(path[len(PROXY_PATH) :])
        if not path.startswith((_FLAT, _BUCKET + b"/")) and path != _BUCKET:
            return None
        match = router.resolve(path, reserved=PROXY_BUCKET)
        return match._replace(resource=self._guarded(match.resource), bucketed=False)

    def _own_match(self, rest: bytes) -> Match | None:
        if rest in {b"", b"/"}:
            return Match(self._root)
        if not rest.startswith(b"/"):
            return None
        stream_id = rest[1:]
        if b"/" in stream_id:
            raise ProxyNotFoundError("Nothing lives at this path. Streams are at /v1/proxy/{id}.")
        return Match(self._stream, parameter=decode_segment(stream_id))

    # Below /v1/proxy.

    def _post(self, app: App, request: Request, slot: Slot, _name: str) -> None:
        slot.route = "proxy"
        headers = proxy_headers(request)
        client = self._authentication.service(app, request, parse_query(request.query)).name
        ttl_s = parse_url_ttl_s(
            headers.get("stream-signed-url-ttl"),
            self._settings.url_ttl_s,
            self._settings.url_ttl_max_s,
        )
        service = self._service

        def locate(stream_id: str) -> bytes:
            url = app.location(request).rstrip(b"/")
            query = self._signer.query(stream_id, ttl_s)
            return b"Location: %b/%b?%b\r\n%b" % (
                url,
                stream_id.encode(),
                query.encode(),
                EXPOSED,
            )

        if "use-stream-url" in headers:
            url = parse_stream_url(headers["use-stream-url"])
            self._signer.check_signature(url.stream_id, url.expires, url.signature)
            number: int | None = service.find_open(url.stream_id)
            stream_id = url.stream_id
        elif "session-id" in headers:
            stream_id = session_stream_id(parse_session_id(headers["session-id"]))
            approval = approval_call(request, headers, stream_id)
            if approval is not None:
                service.upstreams.check(approval.url)
            work = service.connect(
                request, slot, approval, locate, client=client, stream_id=stream_id
            )
            service.spawn(work, request, slot)
            return
        else:
            stream_id, number = new_stream_id(self._clock), None
        call = upstream_call(request, headers)
        service.upstreams.check(call.url)
        work = service.respond(
            request, slot, call, locate, client=client, stream_id=stream_id, number=number
        )
        service.spawn(work, request, slot)

    def _read(self, app: App, request: Request, slot: Slot, _name: str) -> None:
        slot.route = "proxy_read"
        stream_id, query = request.parameter, parse_query(request.query)
        request.identity = self._authentication.reader(app, request, query, stream_id)
        request.private = True
        read(app, request, slot, name_of(stream_id))

    def _head(self, app: App, request: Request, slot: Slot, _name: str) -> None:
        self._authentication.service(app, request, parse_query(request.query))
        head(app, request, slot, name_of(request.parameter))

    def _patch(self, app: App, request: Request, slot: Slot, _name: str) -> None:
        stream_id, query = request.parameter, parse_query(request.query)
        self._authentication.signed(query, stream_id)
        if query.get("action") != "abort":
            raise InvalidActionError("The only action is abort: PATCH …?action=abort.")
        response_id = int_parameter(query, "response", 1, RESPONSE_ID_MAX)

        async def abort() -> None:
            await self._service.abort(stream_id, response_id)
            slot.respond(204, EXPOSED)

        self._service.spawn(abort(), request, slot)

    def _delete(self, app: App, request: Request, slot: Slot, _name: str) -> None:
        self._authentication.service(app, request, parse_query(request.query))

        def reply(_context: object, outcome: object) -> None:
            if isinstance(outcome, HoldfastError) and not isinstance(
                outcome, StreamNotFoundError | StreamDeletedError
            ):
                respond_error(slot, ProxyStorageError(outcome.message))
            else:
                slot.respond(204, b"")

        try:
            app.shard.delete(name_of(request.parameter), reply, None)
        except HoldfastError as error:
            raise ProxyStorageError(error.message) from None

    def _options(self, _app: App, request: Request, slot: Slot, _name: str) -> None:
        slot.respond(204, _preflight_headers(request))

    # The rest of the API.

    def _guarded(self, resource: Resource) -> Resource:
        """The same resource, with service authentication and without writes of frames."""
        return Resource(
            {
                method: self._guarded_route(method, route)
                for method, route in resource.routes.items()
            }
        )

    def _guarded_route(self, method: bytes, route: Route) -> Route:
        handler = route.handler
        if handler is options:
            return route
        if handler is append:
            handler = self._close
        elif handler is get_bucket:
            handler = describe_bucket
        elif method not in _READING and handler is not delete:
            handler = _refuse_writing

        def guarded(app: App, request: Request, slot: Slot, name: str) -> None:
            query = parse_query(request.query)
            request.identity = self._authentication.service(app, request, query)
            request.private = True
            handler(app, request, slot, name)

        return route._replace(handler=guarded, need=Need.NOTHING)

    def _close(self, app: App, request: Request, slot: Slot, name: str) -> None:
        """Close a stream as the base protocol does; its responses end first."""
        if request.body or not is_true(request.headers.get(b"stream-closed")):
            raise ForbiddenError(
                "Only the proxy writes to its streams. To close one, POST Stream-Closed: true "
                "without a body."
            )
        if not _CONDITIONS.isdisjoint(request.headers):
            raise InvalidRequestError("A proxy stream is closed without conditions or producers.")
        self._service.abort_all(name.partition("/")[2])
        append(app, request, slot, name)


def _refuse_writing(_app: App, _request: Request, _slot: Slot, _name: str) -> None:
    raise ForbiddenError("Only the proxy writes to its streams.")


def _resource(handlers: dict[bytes, Callable[[App, Request, Slot, str], None]]) -> Resource:
    return Resource(
        {
            method: Route(handler, "proxy", needs_engine=method != b"OPTIONS", need=Need.NOTHING)
            for method, handler in handlers.items()
        }
    )


def _preflight_headers(request: Request) -> bytes:
    """The response to a browser's preflight. Any header may be sent: all are forwarded."""
    requested = [
        part.strip()
        for name, value in request.other_headers
        if name.lower() == b"access-control-request-headers"
        for part in value.split(b",")
    ]
    allowed = b", ".join([_ALLOWED, *(name for name in requested if HEADER_NAME.fullmatch(name))])
    return (
        b"Access-Control-Allow-Methods: GET, HEAD, POST, PATCH, DELETE, OPTIONS\r\n"
        b"Access-Control-Allow-Headers: %b\r\nAccess-Control-Max-Age: 86400\r\n%b"
        % (allowed, EXPOSED)
    )
