"""What the processes of a run tell each other: one JSON document per line, over pipes.

The command sends `Job`, then `Begin`, and later possibly `Stop` or `Expect`. A load process replies
with `Ready`, then a `ProgressReport` each second, possibly `Written`, and `Final`; or with
`Broken`.
"""

from msgspec import Struct, field
from msgspec.json import Decoder, Encoder

from holdfast.cli.bench.connection import BenchTarget

__all__ = [
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
    "Message",
    "ProgressReport",
    "Ready",
    "Stop",
    "StreamWritten",
    "Work",
    "Written",
    "decode_command",
    "decode_job",
    "decode_message",
    "to_line",
]


class AppendWork(Struct, frozen=True, tag="append"):
    """Append to the streams in turn."""

    paths: list[str]
    connections: int
    content_type: str
    payload_bytes: int
    producer: str | None
    """Prefix of the producer ids; None: no producer headers."""


class BootstrapWork(Struct, frozen=True, tag="bootstrap"):
    """Bootstrap from the streams, which the clients are spread over."""

    paths: list[str]
    clients: int
    response_bytes_min: int
    """Size of the snapshot and the messages, which every response contains."""
    once: bool


class FanoutWork(Struct, frozen=True, tag="fanout"):
    """Write to the streams, and follow them."""

    paths: list[str]
    readers: int
    connections: int
    content_type: str
    payload_bytes: int


Work = AppendWork | BootstrapWork | FanoutWork


class Job(Struct, frozen=True):
    """Everything that a load process needs to know. It is number `share` of `shares`."""

    target: BenchTarget
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
    """Stop now and report."""


class StreamWritten(Struct, frozen=True):
    """How many messages were sent to a stream, and which of them may not be stored."""

    sent: int
    doubtful: list[int] = field(default_factory=list)


class Expect(Struct, frozen=True, tag="expect"):
    """What all processes have written, by stream number; readers wait for it."""

    streams: dict[int, StreamWritten]


Command = Begin | Stop | Expect


class Ready(Struct, frozen=True, tag="ready"):
    """The process is connected and waits for `Begin`."""


class ProgressReport(Struct, frozen=True, tag="progress"):
    """What was measured since the last report."""

    second: int
    until_s: float
    """When the period ends, counted from the start of the measurement."""
    operations: int
    size_bytes: int
    warmup_operations: int
    errors: dict[str, int]
    examples: dict[str, str]
    latency: str


class Written(Struct, frozen=True, tag="written"):
    """What this process has written, by stream number."""

    streams: dict[int, StreamWritten]


class Delivered(Struct, frozen=True):
    """Whether the readers of a fan-out got every message once and in order."""

    appends: int
    append_latency: str
    deliveries: int
    """Includes the warm-up."""
    lost: int
    duplicated: int
    reordered: int
    replayed: int
    """Delivered again after a connection was lost between data and control event."""
    reconnects: int


class Final(Struct, frozen=True, tag="final"):
    """The last message of a process."""

    unsent: int
    delivered: Delivered | None = None


class Broken(Struct, frozen=True, tag="broken"):
    """The process cannot go on; `message` says why."""

    message: str


Message = Ready | ProgressReport | Written | Final | Broken

_encoder = Encoder()
decode_job = Decoder(Job).decode
decode_command = Decoder[Command](Command).decode
decode_message = Decoder[Message](Message).decode


def to_line(message: Job | Command | Message) -> bytes:
    return _encoder.encode(message) + b"\n"
