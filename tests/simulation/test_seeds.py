"""The first half of the seeds that have to be green; `make sim SEEDS=5000` runs more."""

import pytest

from tests.simulation.run import run_seed

CHUNK = 10


@pytest.mark.parametrize("first", range(0, 100, CHUNK))
def test_what_clients_were_told_is_true(first):
    for seed in range(first, first + CHUNK):
        run_seed(seed)
