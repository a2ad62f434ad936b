"""Parameters and header fields, which many operations share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.http.openapi.pieces import FLAG, NUMBER, OFFSET, TEXT, parameter
from holdfast.http.read import LAST_MAX
from holdfast.http.scan import PARTITION_BYTES_MAX, PARTITION_BYTES_MIN
from holdfast.http.storage_routes import DATA_BYTES_MAX, PACK_NAME_CHARACTERS_MAX
from holdfast.protocol.headers import STREAM_SEQ_BYTES_MAX, TTL_S_MAX
from holdfast.protocol.producer import ID_BYTES_MAX, NUMBER_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.http.openapi.pieces import Json

_TRUE: Final[Json] = {"const": "true"}
_PRODUCER_NUMBER: Final[Json] = {"type": "integer", "minimum": 0, "maximum": NUMBER_MAX}
_OR_START: Final[Json] = {"type": "string", "pattern": "^([0-9]{20}|-1)$"}
_START_OR_NOW: Final[Json] = {"type": "string", "pattern": "^([0-9]{20}|-1|now)$"}


def _parameter(place: str, name: str, kind: Json, description: str, example: object = None) -> Json:
    found: Json = {"name": name, "in": place, "schema": kind, "description": description}
    if place == "path":
        found["required"] = True
    return found if example is None else found | {"example": example}


def _query(name: str, kind: Json, description: str) -> Json:
    return _parameter("query", name, kind, description)


def _header(name: str, kind: Json, description: str) -> Json:
    return _parameter("header", name, kind, description)


PARAMETERS: Final[dict[str, Json]] = {
    "path": _parameter(
        "path",
        "path",
        TEXT | {"minLength": 1, "maxLength": 1024},
        "Bucket and id, or the id alone of a stream in `_default`. It may hold slashes, "
        "as they are or as `%2F`.",
        "demo/hello",
    ),
    "bucket": _parameter(
        "path", "bucket", TEXT | {"pattern": "^[a-z0-9_-]{4,64}$"}, "The bucket's id.", "demo"
    ),
    "stream": _parameter(
        "path",
        "stream",
        TEXT | {"minLength": 1, "maxLength": 117},
        "The stream's id: no slash and no `..`, not `streams`, and with bucket and slash at most "
        "122 bytes.",
        "hello",
    ),
    "snapshot": _parameter(
        "path", "offset", OFFSET, "A `Stream-Next-Offset`.", "00000000000000000005"
    ),
    "subscription": _parameter(
        "path", "subscription", TEXT | {"minLength": 1, "maxLength": 256}, "Its id.", "workers"
    ),
    "linked": _parameter(
        "path", "path", TEXT | {"minLength": 1}, "The stream's path below `/v1/stream/`.", "demo/a"
    ),
    "proxied": _parameter(
        "path",
        "stream_id",
        TEXT | {"format": "uuid"},
        "The stream's id, as the `Location` of a POST has it.",
        "0f8b2c1e-5d6f-4a7b-8c9d-0e1f2a3b4c5d",
    ),
    # Query.
    "offset": _query(
        "offset", _START_OR_NOW, "From where to read; `-1` is the start, `now` the tail."
    ),
    "live": _query(
        "live",
        {"enum": ["long-poll", "sse"]},
        "Wait for what comes; needs `offset` or `last` on a stream.",
    ),
    "last_messages": _query(
        "last",
        {"type": "integer", "minimum": 1, "maximum": LAST_MAX},
        "Start so many messages before the tail; not together with `offset`.",
    ),
    "lengths": _query("lengths", FLAG, "Tell where the messages in the answer end."),
    "cursor": _query("cursor", TEXT, "The last `Stream-Cursor`, echoed."),
    "max_bytes": _query(
        "max_bytes", {"type": "integer", "minimum": 1}, "At most this many bytes in an answer."
    ),
    "prefix": _query("prefix", TEXT, "Only streams whose id starts so."),
    "after_id": _query("after", TEXT, "Only streams behind this id."),
    "limit": _query(
        "limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "At most this many streams."
    ),
    "after_cursor": _query(
        "after", _START_OR_NOW, "A `next_cursor`; `-1` or nothing is the start, `now` the end."
    ),
    "until_cursor": _query("until", _START_OR_NOW, "A cursor; nothing is the end."),
    "first": _query("first", TEXT, "Only streams from this id on: a `first_stream_id`."),
    "last": _query("last", TEXT, "Only streams up to this id: a `last_stream_id`."),
    "partition_bytes": _query(
        "partition_bytes",
        {"type": "integer", "minimum": PARTITION_BYTES_MIN, "maximum": PARTITION_BYTES_MAX},
        "About how large a partition is; 64 MiB by default.",
    ),
    "bytes_limit": _query("bytes", {"type": "integer", "minimum": 1}, "At most so many bytes."),
    "messages_limit": _query(
        "messages", {"type": "integer", "minimum": 1}, "At most so many messages."
    ),
    "pack": _query("pack", TEXT | {"maxLength": PACK_NAME_CHARACTERS_MAX}, "The name of a pack.")
    | {"required": True},
    "at": _query("at", NUMBER, "The first byte.") | {"required": True},
    "size": _query(
        "size", {"type": "integer", "minimum": 1, "maximum": DATA_BYTES_MAX}, "How many bytes."
    )
    | {"required": True},
    "expires": _query("expires", NUMBER, "Of a signed URL: when it ends, in seconds since 1970."),
    "action": _query("action", {"const": "abort"}, "What to do.") | {"required": True},
    "response": _query(
        "response", {"type": "integer", "minimum": 1}, "Only this response; an extension."
    ),
    "after_page": _query("after", TEXT, "The `next_after` of the page before."),
    "page": _query(
        "limit", {"type": "integer", "minimum": 1, "maximum": 10_000}, "At most this many."
    ),
    # Header fields.
    "If-Match": _header("If-Match", TEXT, "Write only if the stream is in this state: an `ETag`."),
    "If-None-Match": _header("If-None-Match", TEXT, "Answer 304 if this `ETag` still holds."),
    "Producer-Id": _header(
        "Producer-Id",
        TEXT | {"minLength": 1, "maxLength": ID_BYTES_MAX},
        "Who writes; the three `Producer-` fields come together.",
    ),
    "Producer-Epoch": _header("Producer-Epoch", _PRODUCER_NUMBER, "Which life of the producer."),
    "Producer-Seq": _header("Producer-Seq", _PRODUCER_NUMBER, "Which of its appends, from 0."),
    "Stream-Closed": _header("Stream-Closed", TEXT, "`true` closes the stream in the same step."),
    "Stream-Expires-At": _header(
        "Stream-Expires-At",
        TEXT | {"format": "date-time"},
        "When the stream ends; not together with `Stream-TTL`.",
    ),
    "Stream-Seq": _header(
        "Stream-Seq",
        TEXT | {"minLength": 1, "maxLength": STREAM_SEQ_BYTES_MAX},
        "Must increase, compared byte by byte.",
    ),
    "Stream-TTL": _header(
        "Stream-TTL",
        {"type": "integer", "minimum": 0, "maximum": TTL_S_MAX},
        "Seconds after the last use at which the stream ends.",
    ),
    "Stream-Forked-From": _header(
        "Stream-Forked-From", TEXT, "The path of the URL of the stream to fork."
    ),
    "Stream-Fork-Offset": _header(
        "Stream-Fork-Offset", _OR_START, "Where the fork starts; nothing is the source's tail."
    ),
    "Stream-Fork-Sub-Offset": _header(
        "Stream-Fork-Sub-Offset",
        NUMBER,
        "So many JSON messages, or bytes of the next append, behind `Stream-Fork-Offset`.",
    ),
    # Of the proxy.
    "Upstream-URL": _header(
        "Upstream-URL", TEXT, "Whom to call; of a connect, the endpoint that is asked whether."
    ),
    "Upstream-Method": _header(
        "Upstream-Method",
        {"enum": ["GET", "POST", "PUT", "PATCH", "DELETE"]},
        "How to call it; a connect needs none.",
    ),
    "Upstream-Authorization": _header(
        "Upstream-Authorization", TEXT, "The upstream's `Authorization`."
    ),
    "Use-Stream-URL": _header(
        "Use-Stream-URL", TEXT, "Append to this stream: a signed URL, which may have expired."
    ),
    "Session-Id": _header(
        "Session-Id",
        TEXT | {"minLength": 1, "maxLength": 1024},
        "Connect to this session; with `Use-Stream-URL` it means nothing.",
    ),
    "Stream-Signed-URL-TTL": _header(
        "Stream-Signed-URL-TTL",
        {"type": "integer", "minimum": 1, "maximum": 999_999_999_999},
        "Seconds for which the URL in `Location` is to be good; the server has a limit.",
    ),
}


def parameters(*names: str) -> list[Json]:
    """References to these."""
    return [parameter(name) for name in names]


def _fields() -> dict[str, Json]:
    fields = {
        "Access-Control-Allow-Headers": (TEXT, "Header fields that pages may send."),
        "Access-Control-Allow-Methods": (TEXT, "Methods that pages may use."),
        "Access-Control-Max-Age": (NUMBER, "Seconds for which this holds."),
        "Allow": (TEXT, "The methods that the resource takes."),
        "Cache-Control": (TEXT, "For how long the answer may be kept."),
        "Changes-Earliest-Cursor": (OFFSET, "The earliest cursor that can be followed."),
        "ETag": (
            TEXT | {"pattern": '^"[0-9a-f]+:[0-9]+(:[0-9]+)?(:c)?"$'},
            "The state of the stream, or the bytes that were read.",
        ),
        "Location": (TEXT | {"format": "uri-reference"}, "The URL of what was made or found."),
        "Producer-Epoch": (_PRODUCER_NUMBER, "The producer's epoch."),
        "Producer-Expected-Seq": (_PRODUCER_NUMBER, "The number that comes next."),
        "Producer-Received-Seq": (_PRODUCER_NUMBER, "The number that came."),
        "Producer-Seq": (_PRODUCER_NUMBER, "The highest number that was accepted."),
        "Retry-After": (NUMBER, "Seconds after which to try again."),
        "Stream-Closed": (_TRUE, "There is nothing behind this, and never will be."),
        "Stream-Cursor": (NUMBER, "To be given back with the next live read."),
        "Stream-Earliest-Offset": (OFFSET, "The earliest offset that can be read."),
        "Stream-Expires-At": (TEXT | {"format": "date-time"}, "When the stream ends."),
        "Stream-Message-Lengths": (
            TEXT | {"pattern": "^(json|parts|events|none|[1-9][0-9]*(,[1-9][0-9]*)*)$"},
            "Of each message that ends here, or how else they are told.",
        ),
        "Stream-Next-Offset": (OFFSET, "Where to read on."),
        "Stream-Response-Id": (
            {"type": "integer", "minimum": 1},
            "The number of the response within its stream.",
        ),
        "Stream-SSE-Data-Encoding": ({"const": "base64"}, "How the data of events is written."),
        "Stream-Snapshot-Offset": (_OR_START, "The offset of the snapshot; `-1` if there is none."),
        "Stream-Start-Offset": (
            OFFSET,
            "With `last`: where the read starts. Of the proxy: where the response starts.",
        ),
        "Stream-TTL": (NUMBER, "Seconds after the last use at which the stream ends."),
        "Stream-Up-To-Date": (FLAG, "Whether this is all there is by now."),
        "Upstream-Content-Type": (TEXT, "The upstream's `Content-Type`."),
        "Upstream-Status": (
            {"type": "integer", "minimum": 400, "maximum": 999},
            "The upstream's status, if it answered at all.",
        ),
        "WWW-Authenticate": (TEXT, "How to say who one is."),
    }
    return {
        name: {"schema": kind, "description": description}
        for name, (kind, description) in fields.items()
    }


def headers(used: Iterable[str]) -> dict[str, Json]:
    """The header fields of answers; a name that ends in `-Always` is of one that is required."""
    fields = _fields()
    found = {}
    for name in sorted(used):
        plain = name.removesuffix("-Always")
        found[name] = fields[plain] | {"required": True} if name != plain else fields[plain]
    return found
