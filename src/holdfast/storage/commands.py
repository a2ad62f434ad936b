"""The protocol between the server and the storage process: MessagePack over pipes."""

from __future__ import annotations

from operator import add
from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from holdfast.settings.groups import LimitSettings, LogSettings, StorageSettings
from holdfast.storage.flush import SegmentRef

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.errors import HoldfastError

_LENGTH: Final = Struct("<I")
HEARTBEAT_S: Final = 5.0


class Setup(msgspec.Struct, tag="setup"):
    """The first message: paths and settings."""

    catalog_path: str
    objects_path: str
    storage: StorageSettings
    limits: LimitSettings
    log: LogSettings


class FlushLog(msgspec.Struct, tag="flush"):
    """Turn these segments into packs."""

    segments: list[SegmentRef]


class SwapPacks(msgspec.Struct, tag="swap"):
    """Put packs from the store into use, in place of others."""

    add: list[str]
    remove: list[str]


class PinPacks(msgspec.Struct, tag="pin"):
    """Keep everything that is in use now for `ttl_s` seconds; 0 lifts the pin."""

    name: str
    ttl_s: float


class CollectGarbage(msgspec.Struct, tag="collect"):
    """Collect garbage now instead of at the next round."""


Command = FlushLog | SwapPacks | PinPacks | CollectGarbage


class WorkCounters(msgspec.Struct):
    """What the storage process has done since it started."""

    flushes: int = 0
    flush_us: int = 0
    packs: int = 0
    pack_bytes: int = 0
    data_bytes: int = 0
    merges: int = 0
    merge_us: int = 0
    merged_bytes: int = 0
    merge_failures: int = 0
    swaps: int = 0
    objects_removed: int = 0
    removed_bytes: int = 0

    def __add__(self, other: WorkCounters) -> WorkCounters:
        return WorkCounters(
            *map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other))
        )


class Worker(Protocol):
    """Carries out commands: a child process, or a simulation."""

    restarts: int

    @property
    def counters(self) -> WorkCounters:
        """What it has done so far."""

    def submit(self, command: Command, done: Callable[[int | HoldfastError], None]) -> None:
        """Carry out a command; `done` gets the position that the catalog covers, or an error."""


class Ask(msgspec.Struct, tag="ask"):
    """A command with an id, which its response carries."""

    id: int
    command: Command


class HeldSnapshots(msgspec.Struct, tag="held"):
    """Snapshots that the catalog may not know: those of a `WhichAreHeld` that the server needs."""

    names: list[str]


class Hello(msgspec.Struct, tag="hello"):
    """The storage process is ready."""

    flushed: int


class Done(msgspec.Struct, tag="done"):
    """A command succeeded; `flushed` is the position that the catalog covers."""

    id: int
    flushed: int


class Failed(msgspec.Struct, tag="failed"):
    """A command failed and changed nothing; `code` is the error's code."""

    id: int
    code: str
    message: str


class WorkReport(msgspec.Struct, tag="report"):
    counters: WorkCounters


class WhichAreHeld(msgspec.Struct, tag="which"):
    """The storage process waits to be told which of these snapshots the server needs."""

    names: list[str]


class Alive(msgspec.Struct, tag="alive"):
    """A heartbeat."""


class LogLine(msgspec.Struct, tag="log"):
    """A line for the server's log."""

    level: int
    message: str


ToChild = Setup | Ask | HeldSnapshots
FromChild = Hello | Done | Failed | WorkReport | WhichAreHeld | Alive | LogLine

encode = msgspec.msgpack.Encoder().encode
decode_to_child = msgspec.msgpack.Decoder(ToChild).decode
decode_from_child = msgspec.msgpack.Decoder(FromChild).decode


def framed(message: ToChild | FromChild) -> bytes:
    """A message with its length as a prefix."""
    body = encode(message)
    return _LENGTH.pack(len(body)) + body


def read_frame(read: Callable[[int], bytes | None]) -> bytes | None:
    """The next message's bytes from a blocking file; None at its end."""
    head = read(_LENGTH.size)
    if head is None or len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    body = read(size)
    return None if body is None or len(body) < size else body
