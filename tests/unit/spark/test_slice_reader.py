"""Items made prefetch, in a thread."""

import threading
from collections.abc import Generator

import pytest

from holdfast.spark.reading.slice_reader import prefetch


def test_the_same_items() -> None:
    assert list(prefetch(n for n in range(1000))) == list(range(1000))
    assert list(prefetch(n for n in ())) == []


def test_they_are_made_elsewhere_and_not_too_many() -> None:
    made: list[int] = []

    def items() -> Generator[str]:
        for number in range(100):
            made.append(number)
            yield threading.current_thread().name

    found = prefetch(items())
    assert next(found).startswith("holdfast-prefetch")
    assert len(made) <= 5
    found.close()
    assert len(made) <= 8


def test_an_error_comes_in_its_place() -> None:
    def items() -> Generator[int]:
        yield 1
        raise KeyError("gone")

    found = prefetch(items())
    assert next(found) == 1
    with pytest.raises(KeyError, match="gone"):
        next(found)


@pytest.mark.parametrize("taken", [0, 1, 2, 5])
def test_whoever_stops_early_leaves_no_thread_and_nothing_open(taken: int) -> None:
    closed = threading.Event()

    def items() -> Generator[int]:
        try:
            yield from range(1000)
        finally:
            closed.set()

    before = threading.active_count()
    found = prefetch(items())
    for _ in range(taken):
        next(found)
    found.close()
    assert threading.active_count() == before
    # A generator that was never begun has nothing to close.
    assert closed.is_set() or not taken
