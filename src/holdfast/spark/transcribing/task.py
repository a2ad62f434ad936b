"""What executors do: the streams of a slice into rows, and rows into files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Final

from holdfast.failpoints import failpoint
from holdfast.spark.archiving.files import Files, Output
from holdfast.spark.archiving.state import DataFile
from holdfast.spark.connection import SparkClient
from holdfast.spark.reading.http_reader import stream_chunks
from holdfast.spark.reading.slice_reader import StreamRun, stream_runs
from holdfast.spark.reading.source import ReadSource, Slice, StreamSlice
from holdfast.spark.transcribing.collecting import Response, gone
from holdfast.spark.transcribing.layout import to_batch
from holdfast.spark.transcribing.open_streams import OpenStream
from holdfast.spark.transcribing.stream_responses import Damage, StreamResponses

# So much is held before it becomes rows of a file.
_HELD_BYTES_MAX: Final = 16 * 1024 * 1024


@dataclass(frozen=True)
class TranscribeTask:
    """A slice of whole streams for one executor, and what is known of streams in it."""

    number: int
    source: ReadSource
    part: Slice | None
    known: tuple[OpenStream, ...] = ()
    # Streams that are deleted.
    gone: tuple[OpenStream, ...] = ()


@dataclass
class Transcribed:
    """What became of a task."""

    files: list[DataFile] = field(default_factory=list)
    # What is not over, of all streams of the slice.
    left: list[OpenStream] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def count(self, response: Response) -> None:
        """Add a response to the sums."""
        name = response.outcome.value
        self.outcomes[name] = self.outcomes.get(name, 0) + 1
        self.size_bytes += response.size_bytes
        if response.answer is not None:
            self.prompt_tokens += response.answer.prompt_tokens or 0
            self.completion_tokens += response.answer.completion_tokens or 0


def transcribe_task(output: Output, body_bytes_max: int, task: TranscribeTask) -> Transcribed:
    """Read the streams of a task, and write the responses that are over to files."""
    done = Transcribed()
    with SparkClient(task.source.connection) as server, Files(output, task.number) as files:
        rows = _Rows(files, done)
        for stream in task.gone:
            rows.add(gone(stream.stream_id, each) for each in stream.responses)
        known = {each.stream_id: each for each in task.known}
        runs = iter(()) if task.part is None else stream_runs(task.source, server, task.part)
        for stream_id, of_stream in groupby(runs, key=lambda run: run.stream.stream_id):
            reader = StreamResponses(stream_id, body_bytes_max, known.pop(stream_id, None))
            for run in of_stream:
                _read_again(reader, run, task.source, server)
                for message in _messages(run):
                    rows.add(reader.take(*message))
            if (left := reader.left()) is not None:
                done.left.append(left)
            if reader.damage is not None:
                done.damage.append(reader.damage)
            failpoint("transcripts.writing")
        rows.flush()
        done.left += known.values()
    done.files = files.written
    return done


def _read_again(
    reader: StreamResponses, run: StreamRun, source: ReadSource, server: SparkClient
) -> None:
    """Bring a stream's reader to where its new messages begin."""
    missing = reader.missing
    if missing is None or int(run.offsets[0]) != missing[1]:
        return
    part = StreamSlice(run.stream.stream_id, *(f"{each:020d}" for each in missing))
    for chunk in stream_chunks(source, server, part):
        for payload in chunk.payloads.to_pylist():
            reader.again(payload)


def _messages(run: StreamRun) -> Iterable[tuple[int, int, bytes, int]]:
    return zip(
        run.offsets.tolist(),
        run.next_offsets.tolist(),
        run.payloads.to_pylist(),
        run.timestamps.tolist(),
        strict=True,
    )


class _Rows:
    """Holds responses until they are worth writing."""

    def __init__(self, files: Files, done: Transcribed) -> None:
        self._files = files
        self._done = done
        self._held: dict[str, list[Response]] = {}
        self._held_bytes = 0

    def add(self, responses: Iterable[Response]) -> None:
        for each in responses:
            self._done.count(each)
            day = datetime.fromtimestamp(each.started_at_ms / 1000, UTC).date().isoformat()
            self._held.setdefault(day, []).append(each)
            self._held_bytes += each.held_bytes
            if self._held_bytes >= _HELD_BYTES_MAX:
                self.flush()

    def flush(self) -> None:
        for day, held in self._held.items():
            self._files.write(day, to_batch(held))
        self._held, self._held_bytes = {}, 0
