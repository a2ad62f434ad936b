"""Delivery of webhooks: so many at a time, each with a deadline, signed when it is sent."""

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
    from holdfast.subscriptions.signing import Signer

    # What to send, asked for when its turn has come; None if there is nothing to send any more.
    Prepare = Callable[[], "Outgoing | None"]
    Done = Callable[["Receipt"], None]

_log = logging.getLogger(__name__)
# Nothing of an answer matters but {"done": true}.
ANSWER_BYTES_MAX: Final = 65_536


class Outgoing(NamedTuple):
    """A webhook to be sent."""

    url: str
    body: bytes
    timeout_s: float


class Receipt(NamedTuple):
    """What became of a webhook: `problem` is empty if the receiver took it."""

    problem: str = ""
    done: bool = False


class Courier(Protocol):
    """Who delivers webhooks."""

    def submit(self, prepare: Prepare, done: Done) -> None:
        """Send what `prepare` makes once there is room, then call `done`, unless it made none."""

    def stop(self) -> None:
        """Send nothing more, and give up what is under way."""

    async def close(self) -> None:
        """Wait until everything is given up; after `stop`."""


class _Answer(msgspec.Struct):
    done: bool = False


_decode = msgspec.json.Decoder(_Answer).decode


class WebhookCourier:
    """Delivers over HTTP. A webhook that waits for its turn is made when it is sent."""

    def __init__(self, policy: TargetPolicy, signer: Signer, *, concurrent_max: int) -> None:
        self._policy = policy
        # Opened for the first webhook: most servers have none.
        self._outbound: Outbound | None = None
        self._signer = signer
        self._concurrent_max = concurrent_max
        self._waiting: deque[tuple[Prepare, Done]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def submit(self, prepare: Prepare, done: Done) -> None:
        """Send what `prepare` makes once there is room."""
        self._waiting.append((prepare, done))
        self._fill()

    def stop(self) -> None:
        """Send nothing more, and give up what is under way."""
        self._stopped = True
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Wait until everything is given up."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._outbound is not None:
            await self._outbound.aclose()

    def _fill(self) -> None:
        while self._waiting and len(self._tasks) < self._concurrent_max:
            prepare, done = self._waiting.popleft()
            outgoing = prepare()
            if outgoing is not None:
                task = asyncio.get_running_loop().create_task(self._deliver(outgoing, done))
                self._tasks.add(task)
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a delivery ended in a defect", exc_info=task.exception())
        if not self._stopped:
            self._fill()

    async def _deliver(self, outgoing: Outgoing, done: Done) -> None:
        receipt = await self._send(outgoing)
        if not self._stopped:
            done(receipt)

    async def _send(self, outgoing: Outgoing) -> Receipt:
        if self._outbound is None:
            self._outbound = Outbound(self._policy)
        try:
            headers = {
                "Content-Type": "application/json",
                "Webhook-Signature": self._signer.signature(outgoing.body),
            }
            answer = await self._outbound.request(
                "POST",
                outgoing.url,
                headers,
                outgoing.body,
                timeout_s=outgoing.timeout_s,
                bytes_max=ANSWER_BYTES_MAX,
            )
        except HoldfastError as error:
            return Receipt(error.message)
        except Exception as error:  # noqa: BLE001 (whatever it was, the wake is tried again)
            _log.exception("a webhook could not be sent")
            return Receipt(f"The webhook could not be sent: {type(error).__name__}.")
        if not 200 <= answer.status < 300:
            return Receipt(f"The receiver answered with status {answer.status}.")
        return Receipt(done=_is_done(answer.body))


def _is_done(body: bytes) -> bool:
    """Whether the receiver says that it is finished; any other body is as good as none."""
    try:
        return _decode(body).done
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
