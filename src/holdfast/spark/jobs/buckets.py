"""The bucket that a job writes to."""

from __future__ import annotations

from typing import Final

from holdfast.errors import HoldfastError
from holdfast.spark.connection import SparkClient

# A bucket that has no need to be created, or nobody who may, or a server of another make.
_AS_IT_IS: Final = frozenset({400, 403, 404, 405})


def ensure_bucket(server: SparkClient, bucket: str) -> None:
    """Create the bucket if it can be and is not there; a server that is away shows here."""
    try:
        server.run(lambda client: client.bucket(bucket).create(exist_ok=True))
    except HoldfastError as error:
        if error.status not in _AS_IT_IS:
            raise
