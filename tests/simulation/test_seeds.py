"""The first of the seeds that have to be green, and that they have everything in them.

`make sim SEEDS=5000` runs more.
"""

from collections import Counter
from functools import cache

import pytest

from holdfast import failpoints
from tests.simulation.run import run_seed
from tests.thorough import some_of

CHUNK = 10
FIRST = range(0, 100, CHUNK)
SEEN = {
    "catalog full",
    "cold read",
    "cold read failed",
    "commit failed",
    "commit unknown",
    "confirmed append",
    "confirmed create",
    "confirmed create_bucket",
    "confirmed delete",
    "confirmed delete_bucket",
    "confirmed documents",
    "confirmed fork",
    "confirmed snapshot",
    "corrupt pack read",
    "duplicates",
    "evictions",
    "expirations",
    "flush retries",
    "followed",
    "kill",
    "killed at start",
    "late put",
    "loads",
    "merge failures",
    "merges",
    "object removed",
    "orphaned snapshot removed",
    "pending write kept",
    "pending writes lost",
    "power failure",
    "read cut short after many extents",
    "read of what is gone",
    "read through a fork",
    "rebuild",
    "refused: hot limit",
    "refused: pending bytes",
    "refused: stalled",
    "restarts of the storage process",
    "snapshot removed",
    "snapshot taken back",
    "start refused",
    "stopped",
    "store outage",
    "swaps",
    "unknown write found",
    "upload failed",
}


@cache
def seen_from(first):
    """What is seen in a chunk of seeds."""
    seen = Counter()
    for seed in range(first, first + CHUNK):
        seen.update(run_seed(seed)[0])
    return seen


@pytest.mark.parametrize("first", some_of(FIRST, 1))
def test_what_clients_were_told_is_true(first):
    seen_from(first)


@pytest.mark.slow
def test_runs_have_everything_in_them():
    # A few dozen are enough for that.
    seen = sum(map(seen_from, FIRST[:6]), Counter())
    work = {name for name in failpoints.NAMES if name.startswith(("flush.", "merge.", "garbage."))}
    killed = {f"storage process killed at {name}" for name in work}
    killed |= {f"node killed at {name}" for name in work}
    assert {each for each in SEEN | work | killed if not seen[each]} == set()
