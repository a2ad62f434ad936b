"""How much a test tries: a part of it in `make test`, all of it in `make test-all`."""

import os
from collections.abc import Iterable

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
