"""Stream paths as the subscription API spells them, and the names behind them.

A path is relative to `/v1/stream/`. One segment is a stream of the default bucket, exactly as in
the URLs of streams: `a` is the stream `_default/a`.
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import InvalidRequestError, NotFoundError, SubscriptionError
from holdfast.protocol.names import DEFAULT_BUCKET, NAME_BYTES_MAX, parse_flat_path

SUBSCRIPTION_ID_BYTES_MAX: Final = 256
_DEFAULT: Final = f"{DEFAULT_BUCKET}/"


def name_of(path: str) -> str:
    """The name of the stream at a path; slashes in front do not count."""
    path = path.lstrip("/")
    try:
        # The percent sign stands for itself here: paths in JSON are not encoded.
        return parse_flat_path(path.replace("%", "%25").encode())
    except (InvalidRequestError, NotFoundError, UnicodeEncodeError):
        raise SubscriptionError(
            f"{path[:80]!r} is no stream path: expected {{id}} or {{bucket}}/{{id}} of at most "
            f"{NAME_BYTES_MAX} bytes, relative to /v1/stream/."
        ) from None


def path_of(name: str) -> str:
    """The path of a stream."""
    if name.startswith(_DEFAULT):
        stream_id = name[len(_DEFAULT) :]
        if "/" not in stream_id:
            return stream_id
    return name


def check_subscription_id(text: str) -> str:
    """A subscription's id as it was given, if it can be one."""
    if (
        not text
        or len(text.encode()) > SUBSCRIPTION_ID_BYTES_MAX
        or "/" in text
        or not text.isprintable()
    ):
        raise SubscriptionError(
            f"A subscription's id has 1 to {SUBSCRIPTION_ID_BYTES_MAX} bytes of printable text "
            "and no slash."
        )
    return text
