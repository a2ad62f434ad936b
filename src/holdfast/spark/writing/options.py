"""The columns and options of a write, checked; executors get them pickled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import BinaryType, CharType, DataType, StringType, StructType, VarcharType

from holdfast.client.messages import LENGTH_PREFIXED, Framing
from holdfast.errors import InvalidRequestError, SettingsError
from holdfast.protocol.content import DEFAULT, JSON, media_type, parse_content_type
from holdfast.protocol.producer import ID_BYTES_MAX, NUMBER_MAX
from holdfast.spark.connection import CONNECTION_OPTIONS, Options, SparkConnection

STREAM: Final = "stream_id"
BUCKET: Final = "bucket"
PAYLOAD: Final = "payload"
VALUE: Final = "value"
_TEXT: Final = (StringType, CharType, VarcharType)
_COLUMN_TYPES: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    STREAM: (_TEXT, "a string"),
    BUCKET: (_TEXT, "a string"),
    PAYLOAD: ((BinaryType,), "binary"),
    VALUE: (_TEXT, "a string"),
}
WRITE_OPTIONS: Final = (
    *CONNECTION_OPTIONS,
    "bucket",
    "stream",
    "contentType",
    "producerId",
    "producerEpoch",
    "createStreams",
    "closeStreams",
    "ttl",
    "framing",
    "listLengths",
    "requestBytes",
    "concurrency",
)
# Half of what a server accepts by default. Never change it: a batch that is repeated after an
# update of this package must be cut into the same requests.
REQUEST_BYTES: Final = 4 * 1024 * 1024
CONCURRENCY: Final = 32


@dataclass(frozen=True)
class WriteColumns:
    """Which of the columns that can be written a DataFrame has."""

    # `payload` or `value`.
    content: str
    has_stream: bool
    has_bucket: bool
    # Columns that nothing is in.
    empty: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, schema: StructType, *, dropped: Sequence[str] = (), empty: Sequence[str] = ()
    ) -> WriteColumns:
        """Check a schema; columns that are `dropped` before writing may be anything.

        Those that are `empty` may be there, and then every row must have null in them.
        """
        for field in schema.fields:
            if field.name in _COLUMN_TYPES:
                types, expected = _COLUMN_TYPES[field.name]
                if not isinstance(field.dataType, types):
                    actual = field.dataType.simpleString()
                    raise SettingsError(f"The column {field.name!r} is {expected}, not {actual}.")
            elif field.name not in dropped and field.name not in empty:
                raise SettingsError(
                    f"The column {field.name!r} cannot be written: drop it, or rename it to one of "
                    f"{', '.join(_COLUMN_TYPES)}."
                )
        names = set(schema.fieldNames())
        if len(names) < len(schema.fields):
            raise SettingsError("There are two columns of the same name: drop one of them.")
        if (PAYLOAD in names) == (VALUE in names):
            raise SettingsError(
                f"The content is either a column {PAYLOAD!r} (binary) or a column {VALUE!r} "
                "(string): there must be exactly one of them."
            )
        content = PAYLOAD if PAYLOAD in names else VALUE
        unused = tuple(name for name in empty if name in names and name not in _COLUMN_TYPES)
        return cls(content, STREAM in names, BUCKET in names, unused)

    @property
    def names(self) -> list[str]:
        present = {BUCKET: self.has_bucket, STREAM: self.has_stream, self.content: True}
        return [name for name in present if present[name]]


@dataclass(frozen=True)
class WriteOptions:
    """The options of a write."""

    connection: SparkConnection
    bucket: str = ""
    stream: str = ""
    content_type: str = JSON
    producer_id: str = ""
    # None: the number of the batch if Spark tells it, else 0.
    producer_epoch: int | None = None
    create_streams: bool = True
    close_streams: bool = False
    ttl_s: int | None = None
    framing: Framing | None = None
    # Whether a request to a byte stream may hold several messages, and list their lengths.
    list_lengths: bool = False
    request_bytes: int = REQUEST_BYTES
    concurrency: int = CONCURRENCY

    @classmethod
    def of(cls, given: Mapping[str, str], columns: WriteColumns) -> WriteOptions:
        options = Options(given, WRITE_OPTIONS)
        content_type = _content_type(options, columns)
        return cls(
            connection=SparkConnection.from_options(options),
            bucket=_bucket(options, columns),
            stream=_stream(options, columns),
            content_type=content_type,
            producer_id=_producer_id(options),
            producer_epoch=_epoch(options),
            create_streams=options.flag("createStreams", default=True),
            close_streams=options.flag("closeStreams", default=False),
            ttl_s=options.count("ttl"),
            framing=_framing(options, content_type),
            list_lengths=options.flag("listLengths", default=False),
            request_bytes=options.size("requestBytes") or REQUEST_BYTES,
            concurrency=options.count("concurrency") or CONCURRENCY,
        )

    @property
    def media(self) -> str:
        """The content type without its parameters."""
        return media_type(self.content_type)


def check_bucket(bucket: str) -> None:
    if not bucket:
        raise SettingsError("A row has no bucket: fill the column, or give the option 'bucket'.")
    if "/" in bucket:
        raise SettingsError(f"The bucket {bucket!r} contains a slash, which no bucket id may.")


def _bucket(options: Options, columns: WriteColumns) -> str:
    if columns.has_bucket and "bucket" not in options:
        return ""
    bucket = options.required("bucket")
    check_bucket(bucket)
    return bucket


def _stream(options: Options, columns: WriteColumns) -> str:
    stream = options.text("stream")
    if columns.has_stream and stream:
        raise SettingsError("Give either a column 'stream_id' or the option 'stream', not both.")
    if not columns.has_stream and not stream:
        raise SettingsError(
            "There is neither a column 'stream_id' nor the option 'stream': one of them has to "
            "name the stream of each row."
        )
    return stream


def _content_type(options: Options, columns: WriteColumns) -> str:
    text = options.text("contentType", JSON if columns.content == VALUE else DEFAULT)
    try:
        return parse_content_type(text.encode("latin-1", "replace"))
    except InvalidRequestError:
        raise SettingsError(
            f"The option 'contentType' is a type such as text/plain, not {text!r}."
        ) from None


def _framing(options: Options, content_type: str) -> Framing | None:
    if options.one_of("framing", ("none", LENGTH_PREFIXED), "none") == "none":
        return None
    if media_type(content_type) == JSON:
        raise SettingsError(
            "A JSON stream needs no framing: leave the option 'framing' out, or give another "
            "'contentType'."
        )
    return "length-prefixed"


def _producer_id(options: Options) -> str:
    text = options.text("producerId").strip()
    if len(text) > ID_BYTES_MAX or not text.isascii() or not text.isprintable():
        raise SettingsError(
            f"The option 'producerId' has at most {ID_BYTES_MAX} characters, all of them ASCII."
        )
    return text


def _epoch(options: Options) -> int | None:
    epoch = options.count("producerEpoch", least=0)
    if epoch is not None and epoch > NUMBER_MAX:
        raise SettingsError(f"The option 'producerEpoch' is at most {NUMBER_MAX}, not {epoch}.")
    return epoch
