"""Batches: which stretch of a bucket comes next, and which tasks it makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from holdfast.client import ScanEnd
from holdfast.errors import (
    BadAnswerError,
    BucketNotFoundError,
    DataLossError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    SettingsError,
)
from holdfast.spark.archiving.files import Task
from holdfast.spark.archiving.layout import json_rows
from holdfast.spark.connection import SparkClient
from holdfast.spark.reading.planning import ReadPlan, plan_between
from holdfast.spark.reading.slice_reader import read_chunks
from holdfast.spark.reading.source import ReadSource, Slice, StreamSlice

# How much is looked at to find out which fields messages have: of so many slices, so many of each.
_SAMPLE_SLICES: Final = 8
_SAMPLE_MESSAGES: Final = 2_000


@dataclass(frozen=True)
class Feed:
    """A bucket, as it is read batch by batch."""

    server: SparkClient
    source: ReadSource

    def latest(self) -> str:
        """The cursor at which the bucket ends now."""
        return self._until("now", None).latest

    def store_id(self) -> str:
        """What tells the server from others."""
        bucket = self.source.bucket
        try:
            plan = self.server.run(lambda client: client.bucket(bucket).scan(after="now"))
        except (NotFoundError, MethodNotAllowedError, BadAnswerError) as error:
            if isinstance(error, BucketNotFoundError):
                raise
            raise SettingsError(
                f"{self.server.url} cannot tell what came after a cursor, so its buckets cannot "
                "be archived; it is no server of Holdfast."
            ) from None
        return plan.store_id

    def until(self, after: str, max_bytes: int) -> ScanEnd:
        """How far a batch of about so many bytes goes."""
        try:
            return self._until(after, max_bytes)
        except InvalidRequestError as error:
            raise DataLossError(
                f"{self.server.url} does not know the cursor {after}, up to which the table goes "
                f"({error.message}): was its data removed? Archive to another place."
            ) from None

    def plan(
        self,
        after: str,
        until: str,
        slice_bytes: int,
        *,
        missing_ok: bool,
        whole_streams: bool = False,
    ) -> ReadPlan:
        """The slices of a batch; `missing_ok` if messages that are gone were never promised."""
        source = replace(self.source, fail_on_data_loss=False) if missing_ok else self.source
        try:
            return plan_between(
                self.server,
                source,
                after,
                until,
                slice_bytes=slice_bytes,
                whole_streams=whole_streams,
            )
        except DataLossError as error:
            raise explained_loss(error) from None

    def _until(self, after: str, max_bytes: int | None) -> ScanEnd:
        bucket, prefix = self.source.bucket, self.source.selection.prefix
        return self.server.run(
            lambda client: client.bucket(bucket).until(after, bytes=max_bytes, prefix=prefix)
        )


def explained_loss(error: DataLossError) -> DataLossError:
    """The same in the words of this job's options."""
    return DataLossError(error.message.replace("'failOnDataLoss'", "'fail_on_data_loss'"))


def task_bytes(total_bytes: int, file_bytes: int, cores: int) -> int:
    """How much one task takes: about a file, but so that all cores have the same to do.

    Files may get smaller by that, but not by half.
    """
    count = max(1, -(-total_bytes // file_bytes))
    even = -(-count // cores) * cores
    if total_bytes // even * 2 >= file_bytes:
        count = even
    return max(1, -(-total_bytes // count))


def grouped(plan: ReadPlan, size_bytes: int, total_bytes: int) -> list[Task]:
    """The tasks of a plan: small slices together, up to this size."""
    groups: list[list[Slice | StreamSlice]] = []
    held = 0
    # What is not in packs yet has no size of its own: it is what the others leave of the whole.
    known = sum(_size(each) for each in plan.slices)
    for each in plan.slices:
        size = _size(each) or max(0, total_bytes - known)
        # A slice may be somewhat larger than was asked for.
        if not groups or held + size > size_bytes * 5 // 4:
            groups.append([])
            held = 0
        groups[-1].append(each)
        held += size
    return [Task(number, plan.source, tuple(parts)) for number, parts in enumerate(groups)]


def _size(part: Slice | StreamSlice) -> int:
    return part.size_bytes if isinstance(part, Slice) else 0


def sample(plan: ReadPlan) -> Iterator[bytes]:
    """Some JSON messages from everywhere in a plan."""
    for part in _spread(plan.slices, _SAMPLE_SLICES):
        left = _SAMPLE_MESSAGES
        for chunk in read_chunks(plan.source, part):
            found = chunk.payloads.filter(json_rows(chunk))[:left].to_pylist()
            yield from found
            left -= len(found)
            if not left:
                break


def _spread(slices: Sequence[Slice | StreamSlice], count: int) -> Sequence[Slice | StreamSlice]:
    if len(slices) <= count:
        return slices
    return [slices[at * len(slices) // count] for at in range(count)]
