"""Errors of the data source as Spark's users see them: the sentence, without a traceback.

Spark runs readers and writers in Python workers. What they raise reaches the user as text, with the
traceback of the worker in front of the sentence that says what to do. A worker leaves the traceback
out if a variable is set in its environment when it fails, so `plain_errors` sets it for errors that
Holdfast raises on purpose, and for no others: a worker ends after an error, and the next one gets
its environment from Spark again. HOLDFAST_DEBUG=1 keeps the tracebacks.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import isfunction
from typing import Any, Final, NoReturn, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from holdfast.errors import HoldfastError

T = TypeVar("T", bound=type)

# Spark sets variables with these names for its workers.
_WORKER_VARIABLES: Final = "PYTHON_WORKER_FACTORY_"
_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"


def plain_errors(cls: T) -> T:
    """Class decorator: Holdfast's errors in the methods of a reader or writer are plain."""
    for name, method in list(vars(cls).items()):
        if isfunction(method) and not name.startswith("_"):
            setattr(cls, name, _plain(method))
    return cls


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _without_traceback():
            result = method(*args, **kwargs)
        return _items(result) if isinstance(result, Iterator) else result

    return call


def _items(items: Iterator[Any]) -> Iterator[Any]:
    with _without_traceback():
        yield from items


@contextmanager
def _without_traceback() -> Iterator[None]:
    try:
        yield
    except HoldfastError:
        is_worker = any(name.startswith(_WORKER_VARIABLES) for name in os.environ)
        if is_worker and os.environ.get("HOLDFAST_DEBUG", "") in {"", "0"}:
            os.environ[_HIDE_TRACEBACK] = "1"
        raise


@plain_errors
class RefusedStream(DataSourceStreamReader):
    """Stands for a reader that cannot be made, and says why when Spark first asks it.

    Spark replaces what `streamReader` raises by an UnboundLocalError of its own.
    """

    def __init__(self, error: HoldfastError) -> None:
        self._kind = type(error)
        self._message = error.message

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        self._refuse()

    def latestOffset(self, *_: Any) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        self._refuse()

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        error = self._kind.__new__(self._kind)
        HoldfastError.__init__(error, self._message)
        raise error
