"""What executors are told about a read: its source, and the slice of it that they read.

Everything here can be pickled; executors connect to the server and open the store by themselves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from holdfast.client import Bucket, PackInfo, ScanPlan, ScanRange
from holdfast.errors import DataLossError, SettingsError
from holdfast.objects.locations import StoreLocation
from holdfast.spark.connection import CONNECTION_OPTIONS, Options, SparkClient, SparkConnection
from holdfast.spark.reading.arrow import DEFAULT_COLUMNS, PAYLOAD_COLUMNS, check_columns
from holdfast.spark.reading.selection import (
    Selection,
    make_selection,
    parse_pattern_starts,
    parse_times,
)
from holdfast.spark.reading.typed_json import JsonSchema

READ_OPTIONS: Final = (
    *CONNECTION_OPTIONS,
    "store",
    "storeEndpoint",
    "storeRegion",
    "storeAddressing",
    "storeAccessKeyId",
    "storeSecretAccessKey",
    "storeSessionToken",
    "via",
    "bucket",
    "bucketPattern",
    "streams",
    "streamPattern",
    "startingOffsets",
    "startingOffsetsByPattern",
    "startingTimestamp",
    "endingTimestamp",
    "endingOffsets",
    "minPartitions",
    "partitionBytes",
    "columns",
    "pushdown",
    "jsonSchema",
    "jsonSample",
    "mode",
    "framing",
    "failOnDataLoss",
    "forks",
    "maxBytesPerTrigger",
    "maxRowsPerTrigger",
    "maxTimePerTrigger",
)
# The columns beside those of JSON fields.
TYPED_COLUMNS: Final = tuple(name for name in DEFAULT_COLUMNS if name not in PAYLOAD_COLUMNS)
_FRAMING: Final = "length-prefixed"
_NAMED_MAX: Final = 5
_COUNTED_MAX: Final = 100
# How many streams with lost messages are asked for at a time, after the first ones.
LOST_STREAMS: Final = 10_000
# Up to so many chosen streams are asked for one by one.
SINGLE_STREAMS_MAX: Final = 64


@dataclass(frozen=True)
class ReadSource:
    """A bucket on a server, which of its streams are read, and what the rows look like.

    Of several buckets, each has its own source.
    """

    connection: SparkConnection
    bucket: str
    selection: Selection = field(default_factory=Selection)
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    # The columns of a typed read, which follow.
    typed: JsonSchema | None = None
    # Whether messages of byte streams hold length-prefixed records, which become rows.
    framed: bool = False
    fail_on_data_loss: bool = True
    # Whether forks have the messages that they inherit.
    forks: bool = True
    # The store as executors reach it; with an empty URL, the one that the server names.
    place: StoreLocation = field(default_factory=lambda: StoreLocation(""))
    store_id: str = ""
    # `store`: packs from the object store. `server`: packs through the server. `auto`: the store if
    # it can be reached, else the server. `http`: plain stream reads, which any server offers.
    via: str = "auto"
    # The cursor at which a stream read began; what was gone then is no loss. Empty if unknown.
    began: str = ""

    @classmethod
    def from_options(cls, options: Options) -> ReadSource:
        columns = options.words("columns")
        default = TYPED_COLUMNS if is_typed(options) else DEFAULT_COLUMNS
        return cls(
            connection=SparkConnection.from_options(options),
            bucket=options.text("bucket").strip(),
            selection=replace(
                make_selection(options.words("streams"), options.text("streamPattern")),
                pattern_starts=parse_pattern_starts(options),
                times=parse_times(options),
            ),
            columns=check_columns(columns) if columns else default,
            framed=options.one_of("framing", ("none", _FRAMING), "none") == _FRAMING,
            fail_on_data_loss=options.flag("failOnDataLoss", default=True),
            forks=options.one_of("forks", ("resolve", "own"), "resolve") == "resolve",
            place=_store_place(options),
            via=options.one_of("via", ("auto", "store", "server", "http"), "auto"),
        )

    @property
    def reads_payloads(self) -> bool:
        """Whether the rows need more than the indexes of packs."""
        return self.framed or self.typed is not None or not PAYLOAD_COLUMNS.isdisjoint(self.columns)

    def with_store(self, url: str, store_id: str) -> ReadSource:
        """The same source with the server's store, at the URL that the user gave for it, if any."""
        return replace(
            self, place=replace(self.place, url=self.place.url or url), store_id=store_id
        )

    def ranges(self, server: SparkClient, part: Slice) -> list[ScanRange]:
        """Where the messages of a slice are in packs."""
        return server.collect(lambda client: self._ranges(client.bucket(self.bucket), part))

    def id_bounds(self, part: Slice) -> list[tuple[str, str]]:
        """The ids between which the selected streams of a slice are, in order."""
        ids, chosen = self.selection.ids, self.selection.streams
        if chosen is not None and len(chosen) <= SINGLE_STREAMS_MAX:
            # There may be very many streams between two of them.
            return [(each, each) for each in sorted(chosen) if part.covers(each)]
        ends = [each for each in (part.last, ids.beyond) if each]
        return [(max(part.first, ids.first), min(ends, default=""))]

    async def _ranges(self, bucket: Bucket, part: Slice) -> AsyncIterator[ScanRange]:
        for first, last in self.id_bounds(part):
            async for each in bucket.ranges(
                after=f"{part.after:020d}",
                until=f"{part.until:020d}",
                prefix=self.selection.prefix,
                first=first,
                last=last,
            ):
                yield each

    def rescan(self, server: SparkClient, part: Slice | PackPart) -> ScanPlan:
        """What the server has now of the positions of a part: packs, and what is lost."""
        return self._scan(server, f"{part.after:020d}", f"{part.until:020d}")

    def lost(self, server: SparkClient, scan: ScanPlan) -> Iterator[str]:
        """The selected streams of which messages that were to be scanned are gone."""
        while scan.lost:
            yield from filter(self.selection.includes, scan.lost)
            beyond = f"{scan.lost[-1]}\0"
            scan = self._scan(server, scan.after, scan.until, first=beyond, lost=LOST_STREAMS)

    def check_lost(self, server: SparkClient, scan: ScanPlan, part: Slice | None = None) -> None:
        """Raise if there are such streams, of those that a slice covers."""
        found = (each for each in self.lost(server, scan) if part is None or part.covers(each))
        if some := list(islice(found, _COUNTED_MAX)):
            raise self.data_loss(some)

    def _scan(self, server: SparkClient, after: str, until: str, **more: Any) -> ScanPlan:
        return server.bucket(self.bucket).scan(
            after=after,
            until=until,
            prefix=self.selection.prefix,
            # This costs least.
            by="packs",
            since=self.began,
            **more,
        )

    def data_loss(self, stream_ids: Sequence[str]) -> DataLossError:
        """The error for messages that were deleted or trimmed before they were read."""
        named = ", ".join(repr(each) for each in stream_ids[:_NAMED_MAX])
        others = len(stream_ids) - _NAMED_MAX
        more = f" and {others} more" if others > 0 else ""
        return DataLossError(
            f"Messages of {named}{more} in the bucket {self.bucket!r} were deleted or replaced by "
            "a snapshot before they were read; set 'failOnDataLoss' to false to skip them."
        )


def is_typed(options: Options) -> bool:
    """Whether fields of JSON messages are columns."""
    if "jsonSchema" in options and "jsonSample" in options:
        raise SettingsError("Give either 'jsonSchema' or 'jsonSample', not both.")
    if "jsonSchema" in options or "jsonSample" in options:
        return True
    if "mode" in options:
        raise SettingsError("The option 'mode' is for reads with 'jsonSchema' or 'jsonSample'.")
    return False


def _store_place(options: Options) -> StoreLocation:
    addressing = options.one_of("storeAddressing", ("auto", "path", "virtual"), "auto")
    return StoreLocation(
        options.text("store").strip(),
        endpoint=options.text("storeEndpoint").strip(),
        region=options.text("storeRegion").strip(),
        addressing=addressing,  # type: ignore[arg-type]
        access_key_id=options.text("storeAccessKeyId"),
        secret_access_key=options.text("storeSecretAccessKey"),
        session_token=options.text("storeSessionToken"),
    )


@dataclass(frozen=True)
class Slice:
    """Streams from `first` to `last`, and their messages at log positions in (after, until].

    When the read was planned, messages up to `flushed` were in packs. Later ones may have been
    flushed since.
    """

    first: str
    # Empty: to the end of the bucket.
    last: str
    after: int
    flushed: int
    until: int
    size_bytes: int = 0
    # Whether `first` itself belongs to the slice before this one.
    excludes_first: bool = False
    # Where the whole read starts, if this slice starts later.
    read_after: int | None = None
    # Whether it holds what forks inherit, and nothing else.
    is_inherited: bool = False

    def covers(self, stream_id: str) -> bool:
        if stream_id < self.first or (self.excludes_first and stream_id == self.first):
            return False
        return not self.last or stream_id <= self.last

    @property
    def is_from_beginning(self) -> bool:
        """Whether the read starts with the log. Then missing messages are no loss to report."""
        return not (self.after if self.read_after is None else self.read_after)


@dataclass(frozen=True)
class StreamSlice:
    """One stream between two offsets, to be read by the plain protocol."""

    stream_id: str
    start: str
    # The stream's tail when the read was planned.
    end: str


@dataclass(frozen=True)
class PackPart:
    """Messages in packs at positions in (after, until], between two streams and offsets in them.

    Streams are sorted by their numbers. What the part is does not depend on the packs that held it
    when the read was planned.
    """

    after: int
    until: int
    # Stream and offset of the first message, and of the first one after the part, if there is one.
    first: tuple[int, int]
    last: tuple[int, int] | None
    packs: tuple[PackInfo, ...]
    size_bytes: int
    # Where the whole read starts: 0 if with the log.
    read_after: int


AnyPart = Slice | PackPart | StreamSlice


@dataclass(frozen=True)
class ReadPartition(InputPartition):
    """A slice with its source.

    Spark pickles a reader before it asks for partitions, so what planning finds out, such as where
    the store is, has to travel with each of them.
    """

    source: ReadSource
    part: AnyPart
