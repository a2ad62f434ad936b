"""The streams of a shard as subscriptions see them: number and tail, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.protocol.names import PROXY_STREAMS
from holdfast.subscriptions.paths import path_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.engine.shard import Shard
    from holdfast.subscriptions.glob import Glob


class Known(NamedTuple):
    """A stream that exists: which one it is, and where it ends."""

    number: int
    tail: int


class Streams:
    """Finds published streams without bringing them into memory."""

    def __init__(self, shard: Shard) -> None:
        self._state = shard.state
        self._catalog = shard.catalog
        self._listing = shard.listing

    def find(self, name: str) -> Known | None:
        """The stream of this name; some 20 µs if it is not in memory."""
        stream = self._state.by_name.get(name)
        if stream is not None:
            return None if stream.gone else Known(stream.number, stream.tail)
        if self._catalog is None or name in self._state.removed:
            return None
        row = self._catalog.find_name(name)
        return None if row is None or row.deleted else Known(row.number, row.tail)

    def tail(self, name: str) -> int:
        """Where the stream ends; 0 if there is none."""
        known = self.find(name)
        return 0 if known is None else known.tail

    def matching(self, glob: Glob) -> Iterator[tuple[str, Known]]:
        """The streams that a pattern matches. Every one with its literal beginning is looked at."""
        for prefix in glob.name_prefixes():
            for name, known in self._starting_with(prefix):
                if not name.startswith(PROXY_STREAMS) and glob.matches(path_of(name)):
                    yield name, known

    def _starting_with(self, prefix: str) -> Iterator[tuple[str, Known]]:
        # A listing is one bucket's.
        buckets = [prefix] if prefix else [f"{bucket}/" for bucket in sorted(self._state.buckets)]
        for bucket in buckets:
            for name, stream in self._listing.streams(bucket):
                yield name, Known(stream.number, stream.tail)
