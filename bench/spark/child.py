"""A measurement in a process of its own: Spark has all cores, unlike the bench itself.

`python -m bench.spark.child MODULE ARGUMENTS` calls `measure` of a module and prints what it finds.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench import tools
from bench.process import stop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIMEOUT_S = 600
Found = dict[str, Any]


def in_child(module: str, **arguments: Any) -> Found:
    """What `measure` of a module finds, in a process of its own."""
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.spark.child", module, json.dumps(arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd=tools.BENCH_DIR.parent,
    )
    try:
        printed = child.communicate(timeout=TIMEOUT_S)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        raise RuntimeError("Spark did not finish") from None
    finally:
        stop(child)
    lines = printed.strip().splitlines()
    if child.returncode != 0:
        raise RuntimeError(f"Spark failed: {' / '.join(lines[-3:])}")
    found: Found = json.loads(lines[-1])
    return found


def session() -> SparkSession:
    """Two cores, as many as the machine has."""
    from holdfast.spark.session import open_session  # noqa: PLC0415 (only in the child)

    memory = {"spark.driver.memory": "2g"}
    return open_session(f"local[{os.cpu_count()}]", "bench", memory)


def to_nowhere(frame: DataFrame) -> None:
    """Read every row, and drop it."""
    frame.write.format("noop").mode("overwrite").save()


def timed(action: Callable[[], object]) -> float:
    """The seconds that it takes."""
    started_s = time.perf_counter()
    action()
    return time.perf_counter() - started_s


def alternating(
    actions: dict[str, Callable[[], object]], rounds: int, warm: int = 2
) -> dict[str, list[float]]:
    """The seconds of each action in every round, the first ones left out."""
    found: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(warm + rounds):
        for name, action in actions.items():
            seconds = timed(action)
            if number >= warm:
                found[name].append(seconds)
    return found


def main() -> None:
    os.sched_setaffinity(0, set(range(os.cpu_count() or 1)))
    module, arguments = sys.argv[1:]
    print(json.dumps(importlib.import_module(module).measure(**json.loads(arguments))))


if __name__ == "__main__":
    main()
