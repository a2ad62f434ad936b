"""Settings of subscriptions; see docs/subscriptions.md."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from msgspec import Meta

from holdfast.settings.declare import Count, Seconds, setting


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Subscriptions: which webhooks may be called, and the limits of webhooks and pull-wake."""

    prefix: ClassVar[str] = "webhooks_"

    allow: tuple[str, ...] = setting(
        (),
        "Webhook targets other than public `https` hosts: patterns `SCHEME://HOST[:PORT]` such as "
        "`http://127.0.0.1:*` or `https://*.internal.example`. "
        "As a flag or variable, separated by commas.",
    )
    timeout_s: Seconds = setting(
        10.0, "How long a webhook may take to answer; its lease, if that is shorter."
    )
    concurrent_max: Annotated[int, Meta(ge=1, le=256)] = setting(
        32, "Webhooks that are delivered at one time; others wait for their turn."
    )
    lease_s: Annotated[float, Meta(ge=1, le=600)] = setting(
        30.0, "Lease of a subscription that names none: how long a worker may be silent."
    )
    subscriptions_max: Count = setting(
        1_000, "Subscriptions of this server; more are answered with 403 `quota_exceeded`."
    )
    links_max: Count = setting(
        10_000,
        "Streams that one request may link or acknowledge: given by name, or matched by the "
        "pattern of a new subscription.",
    )
    wake_streams_max: Count = setting(
        1_000,
        "Streams that one wake, claim or page tells of; those with pending events come first.",
    )
