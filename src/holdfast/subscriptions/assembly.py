"""How the parts of subscriptions are put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.net.targets import TargetPolicy
from holdfast.subscriptions.delivery import WebhookCourier
from holdfast.subscriptions.keys import KEYS_FILE, KeyStore
from holdfast.subscriptions.service import Subscriptions
from holdfast.subscriptions.signing import Signer
from holdfast.subscriptions.tokens import Tokens

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.clock import Clock
    from holdfast.engine.shard import Shard
    from holdfast.settings import WebhookSettings


def open_subscriptions(
    shard: Shard, clock: Clock, settings: WebhookSettings, data_dir: Path | None
) -> Subscriptions:
    """The subscriptions of a shard. Without a data directory its keys last as long as it does.

    In order: `shard.recover()`, `recover()`, `shard.start()`, `start()`; at the end `stop()`, and
    once nothing is pending any more `close()`.
    """
    policy = TargetPolicy(settings.allow)
    keys = KeyStore(None if data_dir is None else data_dir / KEYS_FILE, clock)
    signer = Signer(keys, clock)
    courier = WebhookCourier(policy, signer, concurrent_max=settings.concurrent_max)
    return Subscriptions(shard, clock, settings, policy, courier, signer, Tokens(keys, clock))
