"""How much a test tries: a part of it in `make test`, all of it in `make test-all`."""

import inspect
import os
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest

THOROUGH = os.environ.get("THOROUGH") == "1"


def examples(count: int) -> int:
    """How many examples a property test draws."""
    return count if THOROUGH else max(count // 5, 10)


def some_of(values: Iterable[object], quick: int) -> list[object]:
    """Parameters of a test, of which all but the first `quick` are left to `make test-all`."""
    return [
        value if at < quick else pytest.param(value, marks=pytest.mark.slow)
        for at, value in enumerate(values)
    ]


def for_each(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[..., Any]:
    """Run a test with one value after the other, as one test; a failure names its value.

    For tests of pure functions and of requests that leave nothing behind: hundreds of parameters
    cost more as tests of their own than what they test.
    """
    arguments = (names,) if isinstance(names, str) else names
    rows = [value if len(arguments) > 1 else (value,) for value in values]

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(test)
        def run(*fixtures: Any, **more: Any) -> None:
            for row in rows:
                given = dict(zip(arguments, row, strict=True))
                try:
                    test(*fixtures, **more, **given)
                except BaseException as error:
                    error.add_note(f"with {given}")
                    raise

        signature = inspect.signature(test)
        left = [given for name, given in signature.parameters.items() if name not in arguments]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate


def some_rows_of(rows: Iterable[tuple[object, ...]], quick: int) -> list[object]:
    """The same for tests with several parameters: each row has a value for each of them."""
    return [
        pytest.param(*row, marks=[pytest.mark.slow] if at >= quick else [])
        for at, row in enumerate(rows)
    ]
