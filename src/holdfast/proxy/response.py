"""One response of an upstream: what is under way, and how it ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.errors import (
    HoldfastError,
    OutboundError,
    ProxyStorageError,
    UpstreamError,
    UpstreamTimeoutError,
)
from holdfast.protocol.frames import ABORT, COMPLETE, Outcome, encode_error, encode_frame
from holdfast.proxy.recording import Place, Recording

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from holdfast.clock import Clock
    from holdfast.engine.shard import Shard


class Response:
    """Begins with its Start frame; over once its terminal frame is stored or never can be."""

    def __init__(
        self, shard: Shard, clock: Clock, place: Place, on_done: Callable[[Response], None]
    ) -> None:
        self.id = place.response_id
        self.recording = Recording(
            shard, clock, place, on_failing=self._store_failed, on_done=self._stored
        )
        self._on_done = on_done
        # How it ended, once it is decided; None too if the stream went away first.
        self.outcome: Outcome | None = None
        self.body_bytes = 0
        self.task: asyncio.Task[None] | None = None
        self.done = asyncio.Event()

    async def pump(self, pieces: AsyncIterator[bytes], *, bytes_max: int, silence_s: float) -> None:
        """Record the body as it arrives, to its end."""
        try:
            async for piece in pieces:
                self._take(piece, bytes_max)
                if self.outcome is not None or self.done.is_set():
                    # The stream takes no more of it.
                    return
                if self.recording.is_full:
                    await self.recording.room()
        except OutboundError as error:
            if error.late:
                self.fail(UpstreamTimeoutError(f"Upstream did not send data for {silence_s:g} s."))
            else:
                self.fail(UpstreamError(error.message))
        except UpstreamError as error:
            self.fail(error)
        except Exception:
            self.fail(HoldfastError("The server has a defect here; its log says more."))
            raise
        else:
            self._end(Outcome.COMPLETE, encode_frame(COMPLETE, self.id))

    def _take(self, piece: bytes, bytes_max: int) -> None:
        room = bytes_max - self.body_bytes
        taken = piece if len(piece) <= room else piece[:room]
        self.body_bytes += len(taken)
        self.recording.write(taken)
        if taken is not piece:
            raise UpstreamError(f"The response exceeds {bytes_max} bytes.")

    def abort(self) -> None:
        """Somebody wants no more of it; what has arrived is kept."""
        self._end(Outcome.ABORTED, encode_frame(ABORT, self.id))
        self._cancel()

    def fail(self, error: HoldfastError) -> None:
        """It will not get to its end; what has arrived is kept."""
        self._end(Outcome.FAILED, encode_error(self.id, error.code, error.message))
        self._cancel()

    def cut(self) -> None:
        """Its stream is closed or gone: nothing more can be said about it."""
        self.recording.cut()
        self._cancel()

    def _end(self, outcome: Outcome, frame: bytes) -> None:
        if self.outcome is None and not self.done.is_set():
            self.outcome = outcome
            self.recording.end(frame)

    def _cancel(self) -> None:
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()

    def _store_failed(self, error: HoldfastError) -> None:
        """What has arrived cannot be kept, and that is how it ends, whatever was to be its end."""
        self.outcome = Outcome.FAILED
        message = f"The stream takes no more: {error.message}"
        self.recording.end(encode_error(self.id, ProxyStorageError.code, message), drop=True)
        self._cancel()

    def _stored(self) -> None:
        self.done.set()
        if self.outcome is None:
            self._cancel()
        self._on_done(self)
