"""The options of a write, checked and typed; executors get them pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.client.payloads import LENGTH_PREFIXED, Framing
from holdfast.errors import InvalidRequestError, SettingsError
from holdfast.protocol.content import DEFAULT, JSON, media_type, parse_content_type
from holdfast.protocol.producer import ID_BYTES_MAX, NUMBER_MAX
from holdfast.spark.connection import CONNECTION_OPTIONS, Options, SparkConnection
from holdfast.spark.writing.rows import VALUE, Columns, check_bucket

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
    "requestBytes",
    "concurrency",
)
# Half of what a server takes unless it is told otherwise. What is done again after an update of
# this package must be cut as before: this does not change.
REQUEST_BYTES: Final = 4 * 1024 * 1024
CONCURRENCY: Final = 32


@dataclass(frozen=True)
class WriteOptions:
    """What a write was told."""

    connection: SparkConnection
    bucket: str = ""
    stream: str = ""
    content_type: str = JSON
    producer_id: str = ""
    # None: the number of the batch where Spark tells it, else 0.
    producer_epoch: int | None = None
    create_streams: bool = True
    close_streams: bool = False
    ttl_s: int | None = None
    framing: Framing | None = None
    request_bytes: int = REQUEST_BYTES
    concurrency: int = CONCURRENCY

    @classmethod
    def of(cls, given: Mapping[str, str], columns: Columns) -> WriteOptions:
        """The options of a write of these columns."""
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
            request_bytes=options.size("requestBytes") or REQUEST_BYTES,
            concurrency=options.count("concurrency") or CONCURRENCY,
        )

    @property
    def media(self) -> str:
        """The content type without its parameters."""
        return media_type(self.content_type)


def _bucket(options: Options, columns: Columns) -> str:
    if columns.has_bucket and "bucket" not in options:
        return ""
    bucket = options.required("bucket")
    check_bucket(bucket)
    return bucket


def _stream(options: Options, columns: Columns) -> str:
    stream = options.text("stream")
    if columns.has_stream and stream:
        raise SettingsError(
            "There are a column 'stream_id' and an option 'stream': leave one of them out."
        )
    if not columns.has_stream and not stream:
        raise SettingsError(
            "Where the rows go is said by a column 'stream_id', or by the option 'stream'; "
            "there is neither."
        )
    return stream


def _content_type(options: Options, columns: Columns) -> str:
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
            "A JSON stream has messages by itself: leave the option 'framing' out, "
            "or give another 'contentType'."
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
