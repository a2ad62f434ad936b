"""Subscriptions: everything below `/v1/stream/__ds`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.http.access.scopes import Need
from holdfast.http.openapi.failures import WRITES
from holdfast.http.openapi.fields import parameters
from holdfast.http.openapi.pieces import (
    FLAG,
    NUMBER,
    TEXT,
    WAKE,
    answer,
    derived,
    head_of,
    json_answer,
    json_body,
    listed,
    nullable,
    operation,
    preflight,
    record,
    schema,
)
from holdfast.subscriptions.requests import ClaimBody, CreateBody, StreamsBody, WakeBody

if TYPE_CHECKING:
    from holdfast.http.openapi.pieces import Json

_TAG: Final = "subscriptions"
_ROOT: Final = "/v1/stream/__ds"
_ONE: Final = f"{_ROOT}/subscriptions/{{subscription}}"
_OFFSET_OR_START: Final[Json] = TEXT | {"pattern": "^([0-9]{20}|-1)$"}
_TIME: Final[Json] = TEXT | {"format": "date-time"}
_PATH_ERRORS: Final = ("not_found", "invalid_stream_id")
_FOUND: Final = (*_PATH_ERRORS, "SUBSCRIPTION_NOT_FOUND", "INVALID_REQUEST")

_LINK: Final = {
    "path": TEXT,
    "link_type": {"enum": ["glob", "explicit"]},
    "acked_offset": _OFFSET_OR_START,
}
_SUMMARY: Final[dict[str, Json]] = {
    "id": TEXT,
    "subscription_id": TEXT,
    "type": {"enum": ["webhook", "pull-wake"]},
    "pattern": nullable(TEXT),
    "webhook": nullable(
        record(
            "Where wakes go, and how they are signed.",
            url=TEXT,
            signing=record("The key.", alg={"const": "ed25519"}, kid=TEXT, jwks_url=TEXT),
        )
    ),
    "wake_stream": nullable(TEXT),
    "lease_ttl_ms": NUMBER,
    "created_at": _TIME,
    "status": {"enum": ["active", "failed"]},
    "description": nullable(TEXT),
    "generation": NUMBER,
    "links": NUMBER,
    "pending": NUMBER,
    "holder": nullable(TEXT),
    "lease_until": nullable(_TIME),
    "next_attempt_at": nullable(_TIME),
}

SCHEMAS: Final[dict[str, Json]] = derived(CreateBody, StreamsBody, ClaimBody, WakeBody) | {
    "Link": record("A stream of a subscription.", **_LINK),
    "SubscriptionSummary": record("A subscription without its streams.", **_SUMMARY),
    "Subscription": record(
        "A subscription with a page of its streams.",
        **_SUMMARY,
        streams=listed(schema("Link")),
        next_after=nullable(TEXT),
    ),
    "SubscriptionPage": record(
        "A page of subscriptions, in the order of their ids.",
        subscriptions=listed(schema("SubscriptionSummary")),
        next_after=nullable(TEXT),
    ),
    "WokenStream": record(
        "A stream as a wake tells of it.", **_LINK, tail_offset=_OFFSET_OR_START, has_pending=FLAG
    ),
    "Claim": record(
        "A wake that was claimed.",
        wake_id=TEXT,
        generation=NUMBER,
        token=TEXT,
        streams=listed(schema("WokenStream")),
        lease_ttl_ms=NUMBER,
    ),
    "Acknowledged": record(
        "What was said is taken.",
        ok={"const": True},
        next_wake=FLAG | {"description": "Whether there is more, so that another wake follows."},
    ),
    "KeySet": record("Public keys, as RFC 7517 has them.", keys=listed({"type": "object"})),
}

_LIST: Final = operation(
    "listSubscriptions",
    "All subscriptions, a page at a time.",
    {200: json_answer("The page.", schema("SubscriptionPage"))},
    tag=_TAG,
    need=Need.READ,
    errors=("not_found",),
    parameters=parameters("after_page", "page"),
)
_SHOW: Final = operation(
    "getSubscription",
    "A subscription and its streams, a page at a time.",
    {200: json_answer("The subscription.", schema("Subscription"))},
    tag=_TAG,
    need=Need.READ,
    errors=_FOUND,
    parameters=parameters("after_page", "page"),
)
_KEYS: Final = operation(
    "getWebhookKeys",
    "The public keys that webhooks are signed with.",
    {
        200: answer(
            "The keys.",
            (),
            {"application/jwk-set+json": {"schema": schema("KeySet")}},
            "Cache-Control",
        )
    },
    tag=_TAG,
    need=Need.NOTHING,
)


def _of_wake(name: str, summary: str, answers: dict[int, Json]) -> Json:
    return _action(
        name,
        operation(
            f"{name}Wake",
            summary,
            answers,
            tag=_TAG,
            need=Need.NOTHING,
            credentials=(WAKE,),
            errors=(
                *_FOUND,
                *WRITES,
                "TOKEN_INVALID",
                "TOKEN_EXPIRED",
                "FENCED",
                "INVALID_OFFSET",
            ),
            body=json_body(schema("WakeBody")),
        ),
    )


def _action(name: str, post: Json) -> Json:
    return {
        "parameters": parameters("subscription"),
        "post": post,
        "options": preflight(f"preflight{name.capitalize()}", _TAG, _PATH_ERRORS),
    }


_ACKED: Final = {200: json_answer("Taken.", schema("Acknowledged"))}

PATHS: Final[dict[str, Json]] = {
    f"{_ROOT}/jwks.json": {
        "get": _KEYS,
        "head": head_of(_KEYS),
        "options": preflight("preflightKeys", _TAG),
    },
    f"{_ROOT}/subscriptions": {
        "get": _LIST,
        "head": head_of(_LIST),
        "options": preflight("preflightSubscriptions", _TAG),
    },
    _ONE: {
        "parameters": parameters("subscription"),
        "put": operation(
            "createSubscription",
            "Create a subscription, or confirm that it exists as asked for.",
            {
                200: json_answer("It exists with the same configuration.", schema("Subscription")),
                201: json_answer("Created.", schema("Subscription")),
            },
            tag=_TAG,
            need=Need.WRITE,
            errors=(
                *_PATH_ERRORS,
                *WRITES,
                "INVALID_REQUEST",
                "WEBHOOK_URL_REJECTED",
                "SUBSCRIPTION_ALREADY_EXISTS",
                "quota_exceeded",
            ),
            body=json_body(schema("CreateBody")),
        ),
        "get": _SHOW,
        "head": head_of(_SHOW),
        "delete": operation(
            "deleteSubscription",
            "Delete it; one that is not there is deleted already.",
            {204: answer("It is not there.")},
            tag=_TAG,
            need=Need.WRITE,
            errors=(*_PATH_ERRORS, *WRITES),
        ),
        "options": preflight("preflightSubscription", _TAG, _PATH_ERRORS),
    },
    f"{_ONE}/streams": _action(
        "linkStreams",
        operation(
            "linkStreams",
            "Link streams by name.",
            {204: answer("They are linked.")},
            tag=_TAG,
            need=Need.WRITE,
            errors=(*_FOUND, *WRITES),
            body=json_body(schema("StreamsBody")),
        ),
    ),
    f"{_ONE}/streams/{{path}}": {
        "parameters": parameters("subscription", "linked"),
        "delete": operation(
            "unlinkStream",
            "Remove the link that was made by name.",
            {204: answer("It is not linked by name.")},
            tag=_TAG,
            need=Need.WRITE,
            errors=(*_FOUND, *WRITES),
        ),
        "options": preflight("preflightLink", _TAG, _PATH_ERRORS),
    },
    f"{_ONE}/claim": _action(
        "claim",
        operation(
            "claimWake",
            "Take the wake, as a worker of a pull-wake subscription.",
            {200: json_answer("The worker has it.", schema("Claim"))},
            tag=_TAG,
            need=Need.WRITE,
            errors=(*_FOUND, *WRITES, "ALREADY_CLAIMED", "NO_PENDING_WORK"),
            body=json_body(schema("ClaimBody")),
        ),
    ),
    f"{_ONE}/callback": _of_wake("callback", "Acknowledge, as a webhook's receiver.", _ACKED),
    f"{_ONE}/ack": _of_wake("ack", "Acknowledge, as the worker that has claimed.", _ACKED),
    f"{_ONE}/release": _of_wake("release", "Give the wake back.", {204: answer("It is nobody's.")}),
}
