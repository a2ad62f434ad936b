"""What is gone before it was read, and how that is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.errors import HoldfastError

_SHOWN: Final = 5


class DataLossError(HoldfastError):
    """Something that a read should have covered is gone."""

    code = "data_loss"
    status = 410


def lost(bucket: str, stream_ids: Sequence[str]) -> DataLossError:
    """The error for messages that were deleted or replaced by a snapshot too early."""
    shown = ", ".join(repr(each) for each in stream_ids[:_SHOWN])
    more = f" and {len(stream_ids) - _SHOWN} more" if len(stream_ids) > _SHOWN else ""
    return DataLossError(
        f"Messages of {shown}{more} in the bucket {bucket!r} were deleted or replaced by a "
        "snapshot before they were read; set 'failOnDataLoss' to false to go on without them."
    )
