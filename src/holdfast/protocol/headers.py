"""Values of the protocol's headers, parsed and printed."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.errors import InvalidOffsetError, InvalidRequestError

START: Final = "-1"
NOW: Final = "now"
OFFSET_MAX: Final = 2**63 - 1
_OFFSET_DIGITS_MAX: Final = 20

# Of a list of message lengths in a header. Proxies refuse large headers; nginx by default those of
# more than 4 or 8 KiB.
LENGTHS_BYTES_MAX: Final = 2000
STREAM_SEQ_BYTES_MAX: Final = 255
TTL_S_MAX: Final = 10**10
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_LENGTHS: Final = re.compile(rb"[1-9][0-9]{0,9}(,[1-9][0-9]{0,9})*")
_TTL: Final = re.compile(rb"0|[1-9][0-9]{0,10}")
_RFC3339: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})"
)

CURSOR_EPOCH_MS: Final = 1_728_432_000_000  # 2024-10-09T00:00:00Z
CURSOR_INTERVAL_S: Final = 20
CURSOR_JITTER_S_MAX: Final = 3600
_CURSOR_DIGITS_MAX: Final = 18

# Methods that a request to an upstream may have.
UPSTREAM_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
HEADER_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# HTTP/2 can carry these; translated to HTTP/1.1 they would start another header.
CONTROL_CHARACTERS: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


# Offsets: byte positions in the stored form of a stream, printed as 20 zero-padded digits, so that
# they sort as text and never equal the sentinels `-1` (the start) and `now` (the tail). Fewer
# digits are accepted: there are clients that count bytes themselves.


def format_offset(offset: int) -> bytes:
    return b"%020d" % offset


def is_decimal(text: str) -> bool:
    """Whether this can be an offset or a cursor: 1 to 20 decimal digits."""
    return len(text) <= _OFFSET_DIGITS_MAX and text.isascii() and text.isdigit()


def parse_offset(text: str) -> int:
    """Parse an offset; the caller has handled the sentinels."""
    if not is_decimal(text):
        raise InvalidOffsetError(
            f"Malformed offset {text[:40]!r}: give back a Stream-Next-Offset (20 digits) "
            f"unchanged, or {START} for the start, or {NOW} for the tail."
        )
    offset = int(text)
    if offset > OFFSET_MAX:
        raise InvalidOffsetError(f"Malformed offset {text!r}: larger than any offset can be.")
    return offset


# Flags, lifetimes and sequences.


def is_true(raw: bytes | None) -> bool:
    """Whether a flag header is set: `true` in any case; every other value counts as absent."""
    return raw is not None and raw.lower() == b"true"


def parse_ttl_s(raw: bytes) -> int:
    """Parse `Stream-TTL`: decimal seconds without sign, leading zeros, point or exponent."""
    if _TTL.fullmatch(raw) and int(raw) <= TTL_S_MAX:
        return int(raw)
    text = raw[:40].decode("latin-1")
    raise InvalidRequestError(
        f"Malformed Stream-TTL {text!r}: expected whole seconds from 0 to {TTL_S_MAX}, "
        "without sign or leading zeros."
    )


def parse_expires_at_ms(raw: bytes) -> int:
    """Parse `Stream-Expires-At`, an RFC 3339 timestamp, to milliseconds since the Unix epoch."""
    text = raw.decode("latin-1")
    if _RFC3339.fullmatch(text):
        try:
            return (datetime.fromisoformat(text.upper()).astimezone(UTC) - _EPOCH) // _MS
        except (ValueError, OverflowError):
            pass
    raise InvalidRequestError(
        f"Malformed Stream-Expires-At {text[:40]!r}: expected an RFC 3339 timestamp "
        "such as 2030-01-31T12:00:00Z."
    )


def format_time_ms(at_ms: int) -> bytes:
    """Print an RFC 3339 timestamp in UTC; milliseconds only where they are not zero."""
    moment = _EPOCH + at_ms * _MS
    spec = "milliseconds" if at_ms % 1000 else "seconds"
    return moment.isoformat(timespec=spec).replace("+00:00", "Z").encode()


def check_stream_seq(raw: bytes | None) -> bytes | None:
    """Check the length of `Stream-Seq`, which is otherwise opaque and compared as bytes."""
    if raw is not None and not 0 < len(raw) <= STREAM_SEQ_BYTES_MAX:
        raise InvalidRequestError(f"Stream-Seq must have 1 to {STREAM_SEQ_BYTES_MAX} bytes.")
    return raw


def parse_lengths(raw: bytes, body_bytes: int) -> list[int]:
    """`Stream-Message-Lengths` of an append: the lengths of the messages in its body."""
    if len(raw) > LENGTHS_BYTES_MAX or not _LENGTHS.fullmatch(raw):
        raise InvalidRequestError(
            "Stream-Message-Lengths lists the lengths of the messages in bytes, such as 5,7, with "
            f"at most {LENGTHS_BYTES_MAX} characters."
        )
    lengths = list(map(int, raw.split(b",")))
    if sum(lengths) != body_bytes:
        raise InvalidRequestError(
            f"Stream-Message-Lengths adds up to {sum(lengths)} bytes; the body has {body_bytes}."
        )
    return lengths


# Entity tags: the stream's number, the range of bytes, and whether the stream is closed there.


def read_etag(number: int, start: int, end: int, *, closed: bool) -> bytes:
    """The ETag of the bytes from `start` to `end`; closing the stream there changes it."""
    return b'"%x:%d:%d%b"' % (number, start, end, b":c" if closed else b"")


def state_etag(number: int, tail: int, *, closed: bool) -> bytes:
    """The ETag of the whole stream; every append and its closure change it."""
    return b'"%x:%d%b"' % (number, tail, b":c" if closed else b"")


def matches_state(if_match: bytes, number: int, tail: int, *, closed: bool) -> bool:
    """Whether an `If-Match` value holds this state, by strong comparison.

    Both the stream's own tag and the tag of a read that ended at the tail match.
    """
    if if_match == state_etag(number, tail, closed=closed) or if_match.strip() == b"*":
        return True
    return any(_is_tag_of(each.strip(), number, tail, closed) for each in if_match.split(b","))


def _is_tag_of(tag: bytes, number: int, tail: int, closed: bool) -> bool:
    if len(tag) < 2 or not tag.startswith(b'"') or not tag.endswith(b'"'):
        return False
    parts = tag[1:-1].split(b":")
    if (parts[-1] == b"c") != closed:
        return False
    known = parts[:-1] if closed else parts
    return len(known) in {2, 3} and known[0] == b"%x" % number and known[-1] == b"%d" % tail


def matches_etag(if_none_match: bytes, etag: bytes) -> bool:
    """Whether an `If-None-Match` value holds this tag, by weak comparison."""
    if if_none_match == etag or if_none_match.strip() == b"*":
        return True
    return any(
        candidate.strip().removeprefix(b"W/") == etag for candidate in if_none_match.split(b",")
    )


# Cursors: interval numbers that keep a CDN from serving one cached live response forever.


def interval_at(now_ms: int) -> int:
    """The number of the 20-second interval that contains `now_ms`."""
    return (now_ms - CURSOR_EPOCH_MS) // (CURSOR_INTERVAL_S * 1000)


def parse_cursor(text: str | None) -> int | None:
    """The cursor that a client echoed; any other value counts as none."""
    if text and len(text) <= _CURSOR_DIGITS_MAX and text.isascii() and text.isdigit():
        return int(text)
    return None


def next_cursor(echoed: int | None, now_ms: int, jitter_s: int) -> int:
    """The cursor of a response: the current interval, or one strictly past the echoed one."""
    current = interval_at(now_ms)
    if echoed is None or echoed < current:
        return current
    return echoed + max(1, -(-jitter_s // CURSOR_INTERVAL_S))


# Headers passed on from one server to another.


def header_text(value: bytes) -> str:
    """Decode a header value as UTF-8, or as Latin-1 if it is not."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def header_value(text: str) -> bytes:
    """Encode foreign text as a header value that cannot start another header."""
    return CONTROL_CHARACTERS.sub(b" ", text.encode("utf-8", "replace"))
