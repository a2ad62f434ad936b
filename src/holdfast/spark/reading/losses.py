"""What is gone before it was read, and how that is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.errors import DataLossError

_SHOWN: Final = 5


def lost(bucket: str, stream_ids: Sequence[str]) -> DataLossError:
    """The error for messages that were deleted or replaced by a snapshot too early."""
    shown = ", ".join(repr(each) for each in stream_ids[:_SHOWN])
    more = f" and {len(stream_ids) - _SHOWN} more" if len(stream_ids) > _SHOWN else ""
    return DataLossError(
        f"Messages of {shown}{more} in the bucket {bucket!r} were deleted or replaced by a "
        "snapshot before they were read; set 'failOnDataLoss' to false to go on without them."
    )
