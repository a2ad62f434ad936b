"""Jobs whose work is done in this process instead of on executors, and that end in the middle."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast import failpoints
from holdfast.spark.jobs import tasks as tasks_module


class Killed(BaseException):
    """In place of a signal that nobody could catch."""


@contextmanager
def killed_at(name: str, visit: int) -> Iterator[None]:
    """Have the job inside end when a failpoint is passed for the so-manieth time."""
    visits = 0

    def hook(passed: str) -> None:
        nonlocal visits
        visits += passed == name
        if passed == name and visits >= visit:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks_module, "run_tasks", run_here)
        patch.setattr(failpoints, "hook", hook)
        with pytest.raises(Killed):
            yield


def run_here(
    _spark: Any, tasks: Sequence[Any], work: Callable[[Any], Any], **_options: Any
) -> list[Any]:
    """In place of `run_tasks`."""
    return [work(task) for task in tasks]
