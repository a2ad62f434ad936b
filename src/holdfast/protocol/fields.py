"""Values of the protocol's header fields, parsed and printed."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.errors import InvalidRequestError

STREAM_SEQ_BYTES_MAX: Final = 255
TTL_S_MAX: Final = 10**10
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_TTL: Final = re.compile(rb"0|[1-9][0-9]{0,10}")
_RFC3339: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})"
)


def is_true(raw: bytes | None) -> bool:
    """Whether a flag header is set: exactly `true`, in any case; anything else is absent."""
    return raw is not None and raw.lower() == b"true"


def parse_ttl_s(raw: bytes) -> int:
    """`Stream-TTL` in seconds: decimal, without sign, leading zeros, point or exponent."""
    if _TTL.fullmatch(raw) and int(raw) <= TTL_S_MAX:
        return int(raw)
    text = raw[:40].decode("latin-1")
    raise InvalidRequestError(
        f"Malformed Stream-TTL {text!r}: expected whole seconds from 0 to {TTL_S_MAX}, "
        "without sign or leading zeros."
    )


def parse_expires_at_ms(raw: bytes) -> int:
    """`Stream-Expires-At`, an RFC 3339 timestamp, in milliseconds since the Unix epoch."""
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
    """An RFC 3339 timestamp in UTC, with milliseconds only where there are any."""
    moment = _EPOCH + at_ms * _MS
    spec = "milliseconds" if at_ms % 1000 else "seconds"
    return moment.isoformat(timespec=spec).replace("+00:00", "Z").encode()


def check_stream_seq(raw: bytes | None) -> bytes | None:
    """`Stream-Seq`: opaque bytes, compared as bytes, with a limit on their length."""
    if raw is not None and not 0 < len(raw) <= STREAM_SEQ_BYTES_MAX:
        raise InvalidRequestError(f"Stream-Seq must have 1 to {STREAM_SEQ_BYTES_MAX} bytes.")
    return raw
