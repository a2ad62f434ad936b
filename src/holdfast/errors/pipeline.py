"""Errors of the pipeline on Spark; no server answers with them."""

from __future__ import annotations

from holdfast.errors.root import HoldfastError
from holdfast.errors.streams import GoneError


class DataLossError(GoneError):
    """Something that a read should have covered is gone."""

    code = "data_loss"


class SparkFailedError(HoldfastError):
    """Spark could not do it; the message is the root of what it says."""

    code = "spark_failed"
