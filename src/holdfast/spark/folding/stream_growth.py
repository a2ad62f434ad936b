"""What came to each stream since its snapshot, stream by stream, with little of it in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.spark.reading.arrow import Chunk, Numbers, StreamName
from holdfast.spark.reading.slice_reader import StreamRun

# Of one stream, more is not held: it is folded as it comes.
HELD_BYTES_MAX: Final = 4 * 1024 * 1024
_BATCH_STREAMS: Final = 128
_BATCH_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True)
class Thresholds:
    """How much must have come to a stream for it to be worth a snapshot: both, if both are set."""

    messages: int = 1
    bytes: int = 0

    def are_reached(self, messages: int, size_bytes: int) -> bool:
        """Whether this is enough."""
        return messages >= self.messages and size_bytes >= self.bytes


@dataclass
class Growth:
    """The messages of one stream, in order: the first of them are here, others are to come."""

    stream: StreamName
    held: list[StreamRun]
    rest: Iterator[StreamRun] | None

    @property
    def first(self) -> int:
        """The offset of the first message."""
        return int(self.held[0].offsets[0])

    @property
    def messages(self) -> int:
        """How many are here."""
        return sum(len(run.offsets) for run in self.held)

    @property
    def size_bytes(self) -> int:
        """How many bytes of the stream they take up."""
        return int(self.held[-1].next_offsets[-1]) - self.first

    def runs(self) -> Iterator[StreamRun]:
        """All of them; only once."""
        return chain(self.held, self.rest or ())


def growths(runs: Iterator[StreamRun]) -> Iterator[Growth]:
    """Stream by stream; what is left of one is gone when the next is asked for."""
    for _, of_stream in groupby(runs, key=lambda run: run.stream.stream_id):
        held: list[StreamRun] = []
        size = 0
        rest: Iterator[StreamRun] | None = None
        for run in of_stream:
            held.append(run)
            size += int(run.next_offsets[-1]) - int(run.offsets[0])
            if size >= HELD_BYTES_MAX:
                rest = of_stream  # noqa: B031 (gone on with, not begun again)
                break
        yield Growth(held[0].stream, held, rest)


def batches(found: Iterator[Growth]) -> Iterator[list[Growth]]:
    """Some streams at a time; one that is not here as a whole is the last of its batch."""
    held: list[Growth] = []
    size = 0
    for growth in found:
        held.append(growth)
        size += growth.size_bytes
        if growth.rest is not None or len(held) >= _BATCH_STREAMS or size >= _BATCH_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


class ArrowMessages:
    """The payloads of a run, as folds take them."""

    def __init__(self, payloads: Any, *, is_json: bool) -> None:
        self.is_json = is_json
        self._payloads = payloads

    def payloads(self) -> list[bytes]:
        """The bytes of each."""
        found: list[bytes] = self._payloads.to_pylist()
        return found

    def joined(self, separator: bytes) -> bytes:
        """The bytes of all, with this between two of them."""
        ends = pa.array([0, len(self._payloads)], pa.int32())
        listed = pa.ListArray.from_arrays(ends, self._payloads)
        found: bytes = pc.binary_join(listed, separator)[0].as_py()
        return found


def is_contiguous(run: StreamRun) -> bool:
    """Whether every message starts where the one before it ends."""
    return bool((run.offsets[1:] == run.next_offsets[:-1]).all())


def from_offset(run: StreamRun, offset: int) -> StreamRun | None:
    """The messages of a run from an offset on; None if there are none."""
    if int(run.offsets[0]) >= offset:
        return run
    at = int(np.searchsorted(run.offsets, offset))
    if at == len(run.offsets):
        return None
    return StreamRun(
        run.stream,
        run.offsets[at:],
        run.next_offsets[at:],
        run.timestamps[at:],
        run.payloads[at:],
    )


def as_run(chunk: Chunk) -> StreamRun:
    """A chunk of one stream as a run."""
    assert isinstance(chunk.offsets, np.ndarray)
    assert isinstance(chunk.next_offsets, np.ndarray)
    unknown: Numbers = np.zeros(len(chunk), dtype=np.int64)
    times = unknown if chunk.timestamps is None else chunk.timestamps
    return StreamRun(chunk.streams[0], chunk.offsets, chunk.next_offsets, times, chunk.payloads)
