"""JSON bodies of the subscription API: requests, checked and in one form; responses; and wakes."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct

from holdfast.errors import AckRefusedError, InvalidOffsetError, SubscriptionError
from holdfast.protocol.content import decode_request
from holdfast.protocol.headers import START, parse_offset
from holdfast.subscriptions.machine import EXPLICIT, Link, Subscription, Type
from holdfast.subscriptions.paths import StreamGlob, name_of, path_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.subscriptions.registry import StreamLookup, SubscriptionEntry

LEASE_MS_MIN: Final = 1_000
LEASE_MS_MAX: Final = 600_000


class _Webhook(Struct, forbid_unknown_fields=True):
    url: Annotated[str, Meta(min_length=1)]


class CreateBody(Struct, forbid_unknown_fields=True):
    """The body of a PUT. Unknown fields are refused: ignoring one would change the meaning."""

    type: Type
    pattern: str | None = None
    streams: list[str] | None = None
    webhook: _Webhook | None = None
    wake_stream: str | None = None
    filter: Annotated[Any, Meta(extra_json_schema={"type": "null"})] = None
    lease_ttl_ms: Annotated[int, Meta(ge=LEASE_MS_MIN, le=LEASE_MS_MAX)] | None = None
    description: Annotated[str, Meta(max_length=1024)] | None = None


class StreamsBody(Struct):
    """The body of a request that links streams."""

    streams: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]


class ClaimBody(Struct):
    """The body of a claim."""

    worker: Annotated[str, Meta(min_length=1, max_length=256)]


class _Ack(Struct):
    offset: str
    stream: str | None = None
    path: str | None = None


class WakeBody(Struct):
    """The body of a callback, an ack or a release; without a wake it is fenced, not malformed."""

    wake_id: str | None = None
    generation: int | None = None
    acks: list[_Ack] | None = None
    done: bool = False

    def offsets(self) -> list[tuple[str, int]]:
        """The acknowledged streams, by name, and their offsets."""
        return [(name_of(ack.stream or ack.path or ""), _offset(ack)) for ack in self.acks or ()]


class SubscriptionConfig(Struct, frozen=True):
    """The configuration of a subscription, in the form that is compared."""

    type: Type
    pattern: str | None
    # Names, without duplicates and in order.
    streams: tuple[str, ...]
    webhook_url: str | None
    wake_stream: str | None
    lease_ttl_ms: int
    description: str | None

    def hash(self) -> str:
        """The same for the same configuration, however it was written."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()


_create = msgspec.json.Decoder(CreateBody).decode
_streams = msgspec.json.Decoder(StreamsBody).decode
_claim = msgspec.json.Decoder(ClaimBody).decode
_wake = msgspec.json.Decoder(WakeBody).decode


def parse_create(body: bytes, *, lease_ttl_ms: int, links_max: int) -> SubscriptionConfig:
    request = decode_request(_create, body, SubscriptionError)
    # `"filter": null` means no filter.
    if request.filter is not None:
        raise SubscriptionError("This server does not support wake filters: leave filter out.")
    pattern = request.pattern.lstrip("/") if request.pattern else None
    if pattern is not None:
        StreamGlob(pattern)
    streams = names_of(request.streams or [], links_max)
    if not pattern and not streams:
        raise SubscriptionError("At least one of pattern and streams is needed.")
    is_webhook = request.type == "webhook"
    if is_webhook and request.webhook is None:
        raise SubscriptionError("A webhook subscription needs webhook.url.")
    if not is_webhook and not request.wake_stream:
        raise SubscriptionError("A pull-wake subscription needs a wake_stream.")
    config = SubscriptionConfig(
        request.type,
        pattern,
        streams,
        request.webhook.url if is_webhook and request.webhook else None,
        None if is_webhook else name_of(request.wake_stream or ""),
        request.lease_ttl_ms or lease_ttl_ms,
        request.description,
    )
    check_not_wake_stream(streams, config.wake_stream)
    return config


def parse_streams(body: bytes, *, links_max: int) -> tuple[str, ...]:
    """The names of the streams to link."""
    return names_of(decode_request(_streams, body, SubscriptionError).streams, links_max)


def parse_claim(body: bytes) -> str:
    return decode_request(_claim, body, SubscriptionError).worker


def parse_wake(body: bytes, *, links_max: int) -> WakeBody:
    request = decode_request(_wake, body or b"{}", SubscriptionError)
    if len(request.acks or ()) > links_max:
        raise SubscriptionError(f"At most {links_max} streams can be acknowledged at once.")
    return request


def names_of(paths: list[str], links_max: int) -> tuple[str, ...]:
    """The names of streams, sorted and without duplicates."""
    if len(paths) > links_max:
        raise SubscriptionError(f"At most {links_max} streams can be linked by one request.")
    return tuple(sorted({name_of(path) for path in paths}))


def check_not_wake_stream(streams: tuple[str, ...], wake_stream: str | None) -> None:
    """Raise if a subscription would wake itself."""
    if wake_stream in streams:
        raise SubscriptionError("A subscription's wake stream cannot be one of its streams.")


def _offset(ack: _Ack) -> int:
    try:
        return parse_offset(ack.offset)
    except InvalidOffsetError:
        raise AckRefusedError(
            f"{ack.offset[:40]!r} is not an offset that can be acknowledged: use a tail_offset, or "
            "the Stream-Next-Offset of what was processed."
        ) from None


encode = msgspec.json.Encoder().encode


class ReportedStream(NamedTuple):
    """A stream as a wake reported it."""

    name: str
    number: int
    tail: int


def offset_text(offset: int) -> str:
    return START if offset < 0 else f"{offset:020d}"


def time_text(at_ms: int | None) -> str | None:
    if at_ms is None:
        return None
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def summary(entry: SubscriptionEntry, kid: str) -> dict[str, Any]:
    state = entry.state
    webhook = None
    failing = state.failures > 0 and state.next_attempt_ms is not None
    if state.webhook_url is not None:
        signing = {"alg": "ed25519", "kid": kid, "jwks_url": f"{_root(state)}/jwks.json"}
        webhook = {"url": state.webhook_url, "signing": signing}
    return {
        "id": state.id,
        "subscription_id": state.id,
        "type": state.type,
        "pattern": state.pattern,
        "webhook": webhook,
        "wake_stream": None if state.wake_stream is None else path_of(state.wake_stream),
        "lease_ttl_ms": state.lease_ttl_ms,
        "created_at": time_text(state.created_ms),
        "status": "failed" if failing else "active",
        "description": state.description,
        "generation": state.generation,
        "links": len(entry.links),
        "pending": len(entry.pending),
        "holder": state.holder,
        "lease_until": time_text(state.lease_ms),
        "next_attempt_at": time_text(state.next_attempt_ms) if failing else None,
    }


def full(entry: SubscriptionEntry, kid: str, after: str, limit: int) -> dict[str, Any]:
    """A subscription with a page of its streams, sorted by name."""
    names = list(islice(entry.links.irange(after or None, inclusive=(False, True)), limit + 1))
    body = summary(entry, kid)
    body["streams"] = [_link(name, entry.links[name]) for name in names[:limit]]
    body["next_after"] = path_of(names[limit - 1]) if len(names) > limit else None
    return body


def snapshot(
    entry: SubscriptionEntry, streams: StreamLookup, limit: int
) -> tuple[list[dict[str, Any]], list[ReportedStream]]:
    """The streams as a wake reports them, pending ones first: as JSON, and to acknowledge."""
    reported: list[dict[str, Any]] = []
    to_acknowledge: list[ReportedStream] = []
    for name in islice(_pending_first(entry), limit):
        link = entry.links[name]
        # A stream that is not pending ends where it is acknowledged: no look-up is needed.
        tail = streams.tail(name) if name in entry.pending else max(link.acked, 0)
        reported.append(
            {
                **_link(name, link),
                "tail_offset": offset_text(tail),
                "has_pending": link.is_pending(tail),
            }
        )
        to_acknowledge.append(ReportedStream(name, link.number, tail))
    return reported, to_acknowledge


def wake_body(state: Subscription, streams: list[dict[str, Any]], token: str) -> bytes:
    """The body of a webhook."""
    return encode(
        {
            "subscription_id": state.id,
            "wake_id": state.wake_id,
            "generation": state.generation,
            "streams": streams,
            "callback_url": f"{_root(state)}/subscriptions/{quote(state.id, safe='')}/callback",
            "callback_token": token,
        }
    )


def wake_event(entry: SubscriptionEntry, now_ms: int) -> bytes:
    """The message on the wake stream."""
    state = entry.state
    return encode(
        {
            "type": "wake",
            "subscription_id": state.id,
            "stream": path_of(next(iter(entry.pending))),
            "generation": state.generation,
            "ts": now_ms,
        }
    )


def _link(name: str, link: Link) -> dict[str, Any]:
    return {
        "path": path_of(name),
        "link_type": "explicit" if link.kinds & EXPLICIT else "glob",
        "acked_offset": offset_text(link.acked),
    }


def _pending_first(entry: SubscriptionEntry) -> Iterator[str]:
    return chain(entry.pending, (name for name in entry.links if name not in entry.pending))


def _root(state: Subscription) -> str:
    return f"{state.base_url}/v1/stream/__ds"
