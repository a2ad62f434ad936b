"""What the processes of a run say to each other: one JSON document per line, over pipes.

The command sends `Job`, then `Begin`, and later maybe `Stop` or `Expect`. A load process answers
with `Ready`, then a `Progress` for each second, maybe `Written`, and `Final`; or with `Broken`.
"""

from msgspec import Struct, field
from msgspec.json import Decoder, Encoder

from holdfast.cli.bench.target import Target

__all__ = [
    "Answer",
    "AppendWork",
    "Begin",
    "BootstrapWork",
    "Broken",
    "Command",
    "Delivered",
    "Expect",
    "FanoutWork",
    "Final",
    "Job",
    "Progress",
    "Ready",
    "Stop",
    "StreamWritten",
    "Work",
    "Written",
    "answers",
    "commands",
    "jobs",
    "to_line",
]


class AppendWork(Struct, frozen=True, tag="append"):
    """Append to streams in turn."""

    paths: list[str]
    connections: int
    content_type: str
    payload_bytes: int
    producer: str | None
    """What producer ids start with; None: no producer headers."""


class BootstrapWork(Struct, frozen=True, tag="bootstrap"):
    """Bootstrap from streams; client n of all takes stream n, in turn."""

    paths: list[str]
    clients: int
    answer_bytes_min: int
    """The snapshot and the messages: what an answer holds at the least."""
    once: bool


class FanoutWork(Struct, frozen=True, tag="fanout"):
    """Write to some of the streams, and follow some."""

    paths: list[str]
    readers: int
    connections: int
    content_type: str
    payload_bytes: int


Work = AppendWork | BootstrapWork | FanoutWork


class Job(Struct, frozen=True):
    """All that a load process needs to know. It is number `share` of `shares`."""

    target: Target
    share: int
    shares: int
    warmup_s: float
    duration_s: float
    rate: float | None
    timeout_s: float
    seed: int
    work: Work


class Begin(Struct, frozen=True, tag="begin"):
    """Start the warm-up at this time of the monotonic clock, which all processes share."""

    at_s: float


class Stop(Struct, frozen=True, tag="stop"):
    """End now, and report what there is."""


class StreamWritten(Struct, frozen=True):
    """How many messages were sent to a stream, and which of them may not be in it."""

    sent: int
    doubtful: list[int] = field(default_factory=list)


class Expect(Struct, frozen=True, tag="expect"):
    """All that was written, by the stream's number: readers wait for it."""

    streams: dict[int, StreamWritten]


Command = Begin | Stop | Expect


class Ready(Struct, frozen=True, tag="ready"):
    """Connected, and waiting for `Begin`."""


class Progress(Struct, frozen=True, tag="progress"):
    """What was measured since the last one."""

    second: int
    until_s: float
    """When it ends, counted from the start of the measurement."""
    operations: int
    size_bytes: int
    warmup_operations: int
    errors: dict[str, int]
    examples: dict[str, str]
    latency: str


class Written(Struct, frozen=True, tag="written"):
    """What this process has written, by the stream's number."""

    streams: dict[int, StreamWritten]


class Delivered(Struct, frozen=True):
    """How exact the readers of a fan-out were served."""

    appends: int
    append_latency: str
    deliveries: int
    """Of all messages, those of the warm-up included."""
    lost: int
    duplicated: int
    reordered: int
    replayed: int
    """Came again after a connection broke off before it said how far it had come."""
    reconnects: int


class Final(Struct, frozen=True, tag="final"):
    """The end of this process's part."""

    unsent: int
    delivered: Delivered | None = None


class Broken(Struct, frozen=True, tag="broken"):
    """This process cannot go on; a sentence says why."""

    message: str


Answer = Ready | Progress | Written | Final | Broken

_encoder = Encoder()
jobs: Decoder[Job] = Decoder(Job)
commands: Decoder[Command] = Decoder(Command)
answers: Decoder[Answer] = Decoder(Answer)


def to_line(message: Job | Command | Answer) -> bytes:
    """One message as it goes over a pipe."""
    return _encoder.encode(message) + b"\n"
