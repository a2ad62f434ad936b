"""Delivery of webhooks over HTTP: a limited number at a time, each with a deadline."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from holdfast.errors import HoldfastError
from holdfast.net.outbound import Outbound

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.net.targets import TargetPolicy
    from holdfast.subscriptions.keys import WebhookSigner

    # Makes the webhook when its turn has come; None if it is obsolete by then.
    Prepare = Callable[[], "WebhookRequest | None"]
    Done = Callable[["DeliveryResult"], None]

_log = logging.getLogger(__name__)
# Nothing of a response matters but {"done": true}.
RESPONSE_BYTES_MAX: Final = 65_536


class WebhookRequest(NamedTuple):
    url: str
    body: bytes
    timeout_s: float


class DeliveryResult(NamedTuple):
    """`problem` is empty if the receiver accepted the webhook."""

    problem: str = ""
    done: bool = False


class WebhookSender(Protocol):
    def submit(self, prepare: Prepare, done: Done) -> None:
        """Once there is room send what `prepare` makes, if anything, and then call `done`."""

    def stop(self) -> None:
        """Start no further deliveries, and cancel those under way."""

    async def close(self) -> None:
        """Wait for cancelled deliveries; after `stop`."""


class _ResponseBody(msgspec.Struct):
    done: bool = False


_decode = msgspec.json.Decoder(_ResponseBody).decode


class HttpWebhookSender:
    """A webhook is made and signed when it is sent, not when it is submitted."""

    def __init__(self, policy: TargetPolicy, signer: WebhookSigner, *, concurrent_max: int) -> None:
        self._policy = policy
        # Opened for the first webhook: most servers have none.
        self._outbound: Outbound | None = None
        self._signer = signer
        self._concurrent_max = concurrent_max
        self._waiting: deque[tuple[Prepare, Done]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def submit(self, prepare: Prepare, done: Done) -> None:
        self._waiting.append((prepare, done))
        self._fill()

    def stop(self) -> None:
        self._stopped = True
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._outbound is not None:
            await self._outbound.aclose()

    def _fill(self) -> None:
        while self._waiting and len(self._tasks) < self._concurrent_max:
            prepare, done = self._waiting.popleft()
            webhook = prepare()
            if webhook is not None:
                task = asyncio.get_running_loop().create_task(self._deliver(webhook, done))
                self._tasks.add(task)
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a delivery failed with a defect", exc_info=task.exception())
        if not self._stopped:
            self._fill()

    async def _deliver(self, webhook: WebhookRequest, done: Done) -> None:
        result = await self._send(webhook)
        if not self._stopped:
            done(result)

    async def _send(self, webhook: WebhookRequest) -> DeliveryResult:
        if self._outbound is None:
            self._outbound = Outbound(self._policy)
        try:
            headers = {
                "Content-Type": "application/json",
                "Webhook-Signature": self._signer.signature(webhook.body),
            }
            response = await self._outbound.request(
                "POST",
                webhook.url,
                headers,
                webhook.body,
                timeout_s=webhook.timeout_s,
                bytes_max=RESPONSE_BYTES_MAX,
            )
        except HoldfastError as error:
            return DeliveryResult(error.message)
        except Exception as error:  # noqa: BLE001 (whatever it is, the delivery is repeated)
            _log.exception("a webhook could not be sent")
            return DeliveryResult(f"The webhook could not be sent: {type(error).__name__}.")
        if not 200 <= response.status < 300:
            return DeliveryResult(f"The receiver responded with status {response.status}.")
        return DeliveryResult(done=_is_done(response.body))


def _is_done(body: bytes) -> bool:
    """Whether the receiver has finished the work already; any other body is ignored."""
    try:
        return _decode(body).done
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
