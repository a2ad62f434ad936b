"""Subscriptions over HTTP: everything below `/v1/stream/__ds`.

`resolve` finds the resource of a path. Its parameter is the subscription's id, followed for one of
its streams by a slash and the stream's path; ids contain no slash.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.errors import (
    HoldfastError,
    PayloadTooLargeError,
    SubscriptionError,
    WakeTokenInvalidError,
)
from holdfast.http.access.scopes import Need
from holdfast.http.exchange import int_parameter, parse_query
from holdfast.http.responses import JSON_HEADERS, respond_error
from holdfast.http.routes import Resource, Route
from holdfast.http.streams import options
from holdfast.protocol.content import JSON, media_type
from holdfast.protocol.names import decode_path, decode_segment
from holdfast.subscriptions import bodies
from holdfast.subscriptions.paths import check_subscription_id, name_of
from holdfast.subscriptions.service import SubscriptionResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot
    from holdfast.subscriptions.bodies import WakeBody
    from holdfast.subscriptions.service import Subscriptions

BODY_BYTES_MAX: Final = 1_048_576
PAGE_MAX: Final = 10_000
_SUBSCRIPTIONS: Final = b"subscriptions"
_JWKS_HEADERS: Final = (
    b"Content-Type: application/jwk-set+json\r\nCache-Control: public, max-age=300\r\n"
)


# Subscriptions.


def _create(app: App, request: Request, slot: Slot, _name: str) -> None:
    """Create a subscription, or confirm that it exists with the same configuration."""
    service = app.subscriptions
    settings = service.settings
    config = bodies.parse_create(
        _json(request),
        lease_ttl_ms=round(settings.lease_s * 1000),
        links_max=settings.links_max,
    )
    base_url = _base_url(app, request)
    act = partial(service.create, config=config, base_url=base_url)
    _respond(service, slot, request.parameter, act)


def _show(app: App, request: Request, slot: Slot, _name: str) -> None:
    """Respond with a subscription and a page of its streams."""
    after, limit = _page(app, request)
    act = partial(app.subscriptions.show, after=name_of(after) if after else "", limit=limit)
    _respond(app.subscriptions, slot, request.parameter, act)


def _list(app: App, request: Request, slot: Slot, _name: str) -> None:
    """Respond with a page of all subscriptions."""
    after, limit = _page(app, request)
    service = app.subscriptions
    service.respond(None, _answer, slot, lambda: service.listing(after, limit))


def _delete(app: App, request: Request, slot: Slot, _name: str) -> None:
    _respond(app.subscriptions, slot, request.parameter, app.subscriptions.delete)


def _add_streams(app: App, request: Request, slot: Slot, _name: str) -> None:
    """Link streams by name."""
    service = app.subscriptions
    names = bodies.parse_streams(_json(request), links_max=service.settings.links_max)
    _respond(service, slot, request.parameter, partial(service.add_streams, names=names))


def _remove_stream(app: App, request: Request, slot: Slot, _name: str) -> None:
    """Remove the link that was made by name."""
    subscription_id, _, path = request.parameter.partition("/")
    act = partial(app.subscriptions.remove_stream, name=name_of(path))
    _respond(app.subscriptions, slot, subscription_id, act)


# Wakes.


def _claim(app: App, request: Request, slot: Slot, _name: str) -> None:
    """Claim the wake for a worker."""
    worker = bodies.parse_claim(_json(request))
    act = partial(app.subscriptions.claim, worker=worker)
    _respond(app.subscriptions, slot, request.parameter, act)


def _callback(app: App, request: Request, slot: Slot, _name: str) -> None:
    """Acknowledge a wake as the receiver of its webhook."""
    token, body = _wake_body(app, request)
    service = app.subscriptions
    _respond(service, slot, request.parameter, lambda each: service.callback(each, token, body))


def _ack(app: App, request: Request, slot: Slot, _name: str) -> None:
    """Acknowledge a wake as the worker that claimed it."""
    token, body = _wake_body(app, request)
    service = app.subscriptions
    _respond(service, slot, request.parameter, lambda each: service.ack(each, token, body))


def _release(app: App, request: Request, slot: Slot, _name: str) -> None:
    """Give a claimed wake back."""
    token, body = _wake_body(app, request)
    service = app.subscriptions
    _respond(service, slot, request.parameter, lambda each: service.release(each, token, body))


def _jwks(app: App, _request: Request, slot: Slot, _name: str) -> None:
    """Respond with the keys that webhooks are signed with."""
    slot.respond(200, _JWKS_HEADERS, app.subscriptions.signer.jwks())


# Shared.


def _respond(
    service: Subscriptions,
    slot: Slot,
    subscription_id: str,
    act: Callable[[str], SubscriptionResponse],
) -> None:
    service.respond(subscription_id, _answer, slot, lambda: act(subscription_id))


def _answer(slot: Slot, outcome: object) -> None:
    if isinstance(outcome, HoldfastError):
        respond_error(slot, outcome)
        return
    assert isinstance(outcome, SubscriptionResponse)
    slot.respond(outcome.status, JSON_HEADERS if outcome.body else b"", outcome.body)


def _wake_body(app: App, request: Request) -> tuple[str, WakeBody]:
    """The wake's token, and the acknowledgements in the body."""
    scheme, _, token = request.headers.get(b"authorization", b"").strip().partition(b" ")
    if scheme.lower() != b"bearer" or not token.strip():
        raise WakeTokenInvalidError(
            "The request needs Authorization: Bearer with the token that came with the wake."
        )
    body = bodies.parse_wake(_json(request), links_max=app.subscriptions.settings.links_max)
    return token.strip().decode("latin-1"), body


def _json(request: Request) -> bytes:
    # A page in a browser can send anything but JSON without a preflight.
    if media_type(request.headers.get(b"content-type", b"").decode("latin-1")) != JSON:
        raise SubscriptionError("The request needs the Content-Type application/json.")
    if len(request.body) > BODY_BYTES_MAX:
        raise PayloadTooLargeError(f"The body is larger than {BODY_BYTES_MAX} bytes.")
    return request.body


def _page(app: App, request: Request) -> tuple[str, int]:
    """The parameters `after` and `limit`."""
    query = parse_query(request.query)
    limit = int_parameter(query, "limit", 1, PAGE_MAX)
    return query.get("after", ""), limit or app.subscriptions.settings.wake_streams_max


def _base_url(app: App, request: Request) -> str:
    """The part of this server's URLs before the path."""
    location = app.location(request)
    return location[: len(location) - len(request.path)].decode("latin-1")


# Routes.

# Handlers check the tokens of wakes, which access control does not know.
_OPTIONS: Final = Route(options, "options", needs_engine=False, need=Need.NOTHING)
_READ: Final = Need.READ
_WRITE: Final = Need.WRITE


def _resource(need: Need = Need.NOTHING, **handlers: Callable[..., None]) -> Resource:
    routes = {
        method.encode(): Route(handler, "subscription", need=need, waits=True)
        for method, handler in handlers.items()
    }
    return Resource({**routes, b"OPTIONS": _OPTIONS})


_SUBSCRIPTION: Final = Resource(
    {
        b"PUT": Route(_create, "subscription", need=_WRITE, waits=True),
        b"GET": Route(_show, "subscription", need=_READ, waits=True),
        b"HEAD": Route(_show, "subscription", need=_READ, waits=True),
        b"DELETE": Route(_delete, "subscription", need=_WRITE, waits=True),
        b"OPTIONS": _OPTIONS,
    }
)
_ALL: Final = _resource(_READ, GET=_list, HEAD=_list)
_KEYS: Final = _resource(GET=_jwks, HEAD=_jwks)
_STREAM: Final = _resource(_WRITE, DELETE=_remove_stream)
_ACTIONS: Final = {
    b"streams": _resource(_WRITE, POST=_add_streams),
    b"claim": _resource(_WRITE, POST=_claim),
    b"callback": _resource(POST=_callback),
    b"ack": _resource(POST=_ack),
    b"release": _resource(POST=_release),
}


def resolve(path: bytes) -> tuple[Resource, str] | None:
    """The resource at a path below `/v1/stream/__ds` and its parameter; None if there is none."""
    if path == b"/jwks.json":
        return _KEYS, ""
    _, _, rest = path.partition(b"/")
    kind, slash, rest = rest.partition(b"/")
    if kind != _SUBSCRIPTIONS:
        return None
    raw_id, _, action = rest.partition(b"/")
    if not raw_id:
        return None if action or slash else (_ALL, "")
    subscription_id = check_subscription_id(decode_segment(raw_id))
    if raw_id == rest:
        return _SUBSCRIPTION, subscription_id
    action, _, raw_path = action.partition(b"/")
    if raw_path:
        return (
            (_STREAM, f"{subscription_id}/{decode_path(raw_path)}")
            if action == b"streams"
            else None
        )
    resource = _ACTIONS.get(action)
    return None if resource is None else (resource, subscription_id)
