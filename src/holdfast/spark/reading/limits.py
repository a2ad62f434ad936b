"""Limits of micro-batches, which Spark has since 4.2.

PySpark 4.1 does not say where a micro-batch starts when it asks for its end. There each batch takes
all that is new, and an option that sets a limit is an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import pyspark

from holdfast.errors import SettingsError
from holdfast.spark.connection import Options

HAS_LIMITS: Final = find_spec("pyspark.sql.streaming.datasource") is not None

if TYPE_CHECKING or HAS_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """What Spark never passes here; the names are for the readers' annotations."""

    class ReadAllAvailable(ReadLimit):
        """All that is new."""

    class ReadMaxBytes(ReadLimit):
        """Refused by `check_limits`."""

    class ReadMaxRows(ReadLimit):
        """Refused by `check_limits`."""

    class SupportsTriggerAvailableNow:
        """Spark 4.1 itself fixes the end of such a query, since it makes one batch of it."""


__all__ = [
    "HAS_LIMITS",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "check_limits",
]


def check_limits(options: Options, names: Iterable[str]) -> None:
    """Refuse options that limit a micro-batch where Spark has no limits."""
    for name in names:
        if name in options and not HAS_LIMITS:
            raise SettingsError(
                f"The option {name!r} needs PySpark 4.2 or later, and this is "
                f"{pyspark.__version__}: leave it out, and each micro-batch takes all that is new."
            )
