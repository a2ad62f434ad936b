"""The streams of a run: made before it, deleted after it."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from msgspec import Struct

from holdfast.cli.bench.caller import Call, Reply, call_all, expect
from holdfast.cli.bench.payload import payload
from holdfast.cli.bench.target import Target
from holdfast.errors import HoldfastError

__all__ = ["BootstrapStreams", "Cleanup", "Setup", "Streams"]

DELETE_DEADLINE_S = 15.0
SNAPSHOT_TYPE = "application/octet-stream"
# An answer that is none of these to a request about snapshots is a real trouble.
NOT_OFFERED = frozenset({400, 404, 405, 501})


class Cleanup(Struct, frozen=True):
    """What became of the streams at the end."""

    streams_deleted: int
    streams_left: int


class Setup(Protocol):
    """What a scenario needs to be there."""

    paths: list[str]

    async def create(self) -> None:
        """Make it."""

    async def delete(self) -> Cleanup:
        """Delete what was made, as far as that goes within a deadline."""


class Streams:
    """Empty streams of one content type."""

    def __init__(self, target: Target, paths: list[str], content_type: str) -> None:
        self.paths = paths
        self._target = target
        self._content_type = content_type
        self._begun = False

    async def create(self) -> None:
        """Make all of them."""
        calls = [Call("PUT", path, content_type=self._content_type) for path in self.paths]
        # One first: what is wrong with it is wrong with all.
        await self._call(calls[:1], (200, 201))
        self._begun = True
        await self._call(calls[1:], (200, 201))

    async def delete(self) -> Cleanup:
        """Delete all of them."""
        if not self._begun:
            return Cleanup(0, 0)
        return await self._delete(self.paths)

    async def _call(self, calls: Sequence[Call], statuses: tuple[int, ...]) -> list[Reply]:
        replies = await call_all(self._target, calls)
        return [expect(call, reply, statuses) for call, reply in zip(calls, replies, strict=True)]

    async def _delete(self, paths: Sequence[str]) -> Cleanup:
        replies: list[Reply] = []
        with suppress(TimeoutError, HoldfastError):
            async with asyncio.timeout(DELETE_DEADLINE_S):
                replies = await call_all(self._target, [Call("DELETE", path) for path in paths])
        # One that is not there was not made: the run ended before.
        deleted = sum(reply.status in {200, 202, 204} for reply in replies)
        gone = sum(reply.status in {404, 410} for reply in replies)
        return Cleanup(deleted, len(paths) - deleted - gone)


class BootstrapStreams(Streams):
    """Streams in one bucket, each with a snapshot and messages after it."""

    def __init__(
        self, target: Target, paths: list[str], sizes: tuple[int, int, int], seed: int
    ) -> None:
        super().__init__(target, paths, SNAPSHOT_TYPE)
        self._bucket = paths[0].rpartition("/")[0]
        self._bucket_made = False
        self._snapshot_bytes, self._messages, self._message_bytes = sizes
        self._seed = seed
        self._snapshots: list[str] = []

    async def create(self) -> None:
        """Make the bucket, the streams, the snapshots, and the messages."""
        bucket = Call("PUT", self._bucket)
        (made,) = await call_all(self._target, [bucket])
        # One that is there already may be used, and stays.
        self._check(bucket, made, {200, 201, 409})
        self._bucket_made = made.status != 409
        self._begun = True
        await super().create()
        message = payload(self._seed, SNAPSHOT_TYPE, self._message_bytes)
        # A snapshot stands for what is before it: one message.
        appends = [Call("POST", path, message, SNAPSHOT_TYPE) for path in self.paths]
        replies = await self._call(appends, (200, 204))
        offsets = [reply.headers.get("stream-next-offset", "") for reply in replies]
        self._snapshots = [
            f"{path}/snapshot/{offset}" for path, offset in zip(self.paths, offsets, strict=True)
        ]
        await self._publish()
        await self._call(appends * self._messages, (200, 204))
        await self._try()

    async def _publish(self) -> None:
        body = payload(self._seed + 1, SNAPSHOT_TYPE, self._snapshot_bytes)
        calls = [Call("PUT", path, body, SNAPSHOT_TYPE) for path in self._snapshots]
        for call, reply in zip(calls, await call_all(self._target, calls), strict=True):
            self._check(call, reply, {200, 201, 204})

    async def _try(self) -> None:
        """Bootstrap once: a server that has no such thing may have taken it all for streams."""
        call = Call("GET", f"{self.paths[0]}/bootstrap")
        (reply,) = await call_all(self._target, [call])
        self._check(call, reply, {200})
        if not reply.headers.get("content-type", "").startswith("multipart/"):
            raise self._not_offered()

    def _check(self, call: Call, reply: Reply, statuses: set[int]) -> None:
        if reply.status in NOT_OFFERED:
            raise self._not_offered()
        expect(call, reply, statuses)

    def _not_offered(self) -> HoldfastError:
        return HoldfastError(
            f"{self._target.url} has no buckets, snapshots and bootstrap, "
            "which this scenario measures."
        )

    async def delete(self) -> Cleanup:
        """Delete the streams, and then the bucket."""
        if not self._begun:
            return Cleanup(0, 0)
        cleanup = await self._delete(self.paths)
        # Where there are no snapshots these are streams; elsewhere it is refused, or all the same.
        await self._delete([*self._snapshots, *([self._bucket] if self._bucket_made else [])])
        return cleanup
