"""What clients ask for, checked and in one form."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from holdfast.errors import AckRefusedError, InvalidOffsetError, SubscriptionError
from holdfast.protocol.headers import parse_offset
from holdfast.subscriptions.glob import Glob
from holdfast.subscriptions.model import Type
from holdfast.subscriptions.paths import name_of

if TYPE_CHECKING:
    from collections.abc import Callable

Asked = TypeVar("Asked")
LEASE_MS_MIN: Final = 1_000
LEASE_MS_MAX: Final = 600_000


class _Webhook(Struct, forbid_unknown_fields=True):
    url: Annotated[str, Meta(min_length=1)]


class CreateBody(Struct, forbid_unknown_fields=True):
    """The body of a PUT. Unknown fields are refused: to ignore one would change what is meant."""

    type: Type
    pattern: str | None = None
    streams: list[str] | None = None
    webhook: _Webhook | None = None
    wake_stream: str | None = None
    filter: Any = None
    lease_ttl_ms: Annotated[int, Meta(ge=LEASE_MS_MIN, le=LEASE_MS_MAX)] | None = None
    description: Annotated[str, Meta(max_length=1024)] | None = None


class StreamsBody(Struct):
    """The body of a request that links streams."""

    streams: Annotated[list[str], Meta(min_length=1)]


class ClaimBody(Struct):
    """The body of a claim."""

    worker: Annotated[str, Meta(min_length=1, max_length=256)]


class _Ack(Struct):
    offset: str
    stream: str | None = None
    path: str | None = None


class WakeBody(Struct):
    """The body of a callback, an ack or a release. What names no wake is fenced, not malformed."""

    wake_id: str | None = None
    generation: int | None = None
    acks: list[_Ack] | None = None
    done: bool = False

    def offsets(self) -> list[tuple[str, int]]:
        """Names and offsets of what is acknowledged."""
        return [(name_of(ack.stream or ack.path or ""), _offset(ack)) for ack in self.acks or ()]


class Config(Struct, frozen=True):
    """What a subscription shall be, in the form that is compared."""

    type: Type
    pattern: str | None
    # Names, without duplicates and in order.
    streams: tuple[str, ...]
    webhook_url: str | None
    wake_stream: str | None
    lease_ttl_ms: int
    description: str | None

    def hash(self) -> str:
        """The same for the same configuration, however it was written down."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()


_create = msgspec.json.Decoder(CreateBody).decode
_streams = msgspec.json.Decoder(StreamsBody).decode
_claim = msgspec.json.Decoder(ClaimBody).decode
_wake = msgspec.json.Decoder(WakeBody).decode


def parse_create(body: bytes, *, lease_ttl_ms: int, links_max: int) -> Config:
    """The configuration that a PUT asks for."""
    asked = _decoded(_create, body)
    # `"filter": null` says that there is none.
    if asked.filter is not None:
        raise SubscriptionError("This server has no wake filters: leave filter out.")
    pattern = asked.pattern.lstrip("/") if asked.pattern else None
    if pattern is not None:
        Glob(pattern)
    streams = names_of(asked.streams or [], links_max)
    if not pattern and not streams:
        raise SubscriptionError("At least one of pattern and streams is needed.")
    is_webhook = asked.type == "webhook"
    if is_webhook and asked.webhook is None:
        raise SubscriptionError("A webhook subscription needs webhook.url.")
    if not is_webhook and not asked.wake_stream:
        raise SubscriptionError("A pull-wake subscription needs a wake_stream.")
    config = Config(
        asked.type,
        pattern,
        streams,
        asked.webhook.url if is_webhook and asked.webhook else None,
        None if is_webhook else name_of(asked.wake_stream or ""),
        asked.lease_ttl_ms or lease_ttl_ms,
        asked.description,
    )
    check_not_wake_stream(streams, config.wake_stream)
    return config


def parse_streams(body: bytes, *, links_max: int) -> tuple[str, ...]:
    """The names of the streams that shall be linked."""
    return names_of(_decoded(_streams, body).streams, links_max)


def parse_claim(body: bytes) -> str:
    """Who claims."""
    return _decoded(_claim, body).worker


def parse_wake(body: bytes, *, links_max: int) -> WakeBody:
    """What somebody says of a wake."""
    asked = _decoded(_wake, body or b"{}")
    if len(asked.acks or ()) > links_max:
        raise SubscriptionError(f"At most {links_max} streams can be acknowledged at once.")
    return asked


def names_of(paths: list[str], links_max: int) -> tuple[str, ...]:
    """The names of streams, each once and in order."""
    if len(paths) > links_max:
        raise SubscriptionError(f"At most {links_max} streams can be linked by one request.")
    return tuple(sorted({name_of(path) for path in paths}))


def check_not_wake_stream(streams: tuple[str, ...], wake_stream: str | None) -> None:
    """Raise if a subscription would be woken by its own wakes."""
    if wake_stream in streams:
        raise SubscriptionError("A subscription's wake stream cannot be one of its streams.")


def _offset(ack: _Ack) -> int:
    try:
        return parse_offset(ack.offset)
    except InvalidOffsetError:
        raise AckRefusedError(
            f"{ack.offset[:40]!r} is no offset that can be acknowledged: give back a tail_offset, "
            "or the Stream-Next-Offset behind what was processed."
        ) from None


def _decoded(decode: Callable[[bytes], Asked], body: bytes) -> Asked:
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SubscriptionError(f"Malformed request: {error}.") from None
