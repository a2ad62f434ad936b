"""What a read is about, as executors are told: they connect and open the store by themselves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from holdfast.errors import SettingsError
from holdfast.objects.place import StorePlace
from holdfast.spark.connection import CONNECTION_OPTIONS, Options, SparkConnection
from holdfast.spark.reading.columns import DEFAULT, check_columns
from holdfast.spark.reading.selection import (
    EARLIEST,
    LATEST,
    Bound,
    Selection,
    parse_bound,
    parse_selection,
)

STORE_OPTIONS: Final = (
    "store",
    "storeEndpoint",
    "storeRegion",
    "storeAddressing",
    "storeAccessKeyId",
    "storeSecretAccessKey",
    "storeSessionToken",
    "via",
)
READ_OPTIONS: Final = (
    *CONNECTION_OPTIONS,
    *STORE_OPTIONS,
    "bucket",
    "streams",
    "streamPattern",
    "startingOffsets",
    "endingOffsets",
    "minPartitions",
    "partitionBytes",
    "columns",
    "framing",
    "failOnDataLoss",
    "maxBytesPerTrigger",
    "maxRowsPerTrigger",
)
FRAMING: Final = "length-prefixed"
Via = Literal["auto", "store", "server", "http"]


@dataclass(frozen=True)
class Source:
    """A bucket on a server, which of its streams, and how their rows look."""

    connection: SparkConnection
    bucket: str
    selection: Selection = field(default_factory=Selection)
    columns: tuple[str, ...] = DEFAULT
    # Whether the messages of byte streams hold records behind their lengths, which become rows.
    framed: bool = False
    fail_on_data_loss: bool = True
    # The store as executors see it; an empty URL stands for the one that the server names.
    place: StorePlace = field(default_factory=lambda: StorePlace(""))
    store_id: str = ""
    # `auto`: packs from the store if it can be reached, else through the server; `store` and
    # `server` insist on one of them. `http`: streams as any server of the protocol has them.
    via: str = "auto"

    @classmethod
    def of(cls, options: Options) -> Source:
        """The source that the options of a read describe."""
        columns = options.words("columns")
        framing = options.one_of("framing", ("none", FRAMING), "none")
        return cls(
            connection=SparkConnection.from_options(options),
            bucket=options.required("bucket"),
            selection=parse_selection(options),
            columns=check_columns(columns) if columns else DEFAULT,
            framed=framing == FRAMING,
            fail_on_data_loss=options.flag("failOnDataLoss", default=True),
            place=store_place(options),
            via=options.one_of("via", ("auto", "store", "server", "http"), "auto"),
        )

    def at(self, store: str, store_id: str) -> Source:
        """The same, with the store that the server names unless the user named one."""
        place = self.place if self.place.url else replace(self.place, url=store)
        return replace(self, place=place, store_id=store_id)


def store_place(options: Options) -> StorePlace:
    """The store that the options describe; without a URL it is the server's."""
    addressing = options.one_of("storeAddressing", ("auto", "path", "virtual"), "auto")
    return StorePlace(
        options.text("store").strip(),
        endpoint=options.text("storeEndpoint").strip(),
        region=options.text("storeRegion").strip(),
        addressing=addressing,  # type: ignore[arg-type]
        access_key_id=options.text("storeAccessKeyId"),
        secret_access_key=options.text("storeSecretAccessKey"),
        session_token=options.text("storeSessionToken"),
    )


@dataclass(frozen=True)
class Extent:
    """How much of the source a batch read covers, and in how many parts."""

    starting: Bound
    ending: Bound
    min_partitions: int | None
    partition_bytes: int | None

    @classmethod
    def of(cls, options: Options) -> Extent:
        """What the options of a read say."""
        starting = parse_bound(options, "startingOffsets", EARLIEST)
        ending = parse_bound(options, "endingOffsets", LATEST)
        if ending.cursor == EARLIEST:
            raise SettingsError("The option 'endingOffsets' cannot be 'earliest'.")
        return cls(
            starting,
            ending,
            options.count("minPartitions"),
            options.size("partitionBytes"),
        )
