"""Some more, in a file of their own so that another processor takes them."""

import pytest

from tests.simulation.run import run_seed

pytestmark = pytest.mark.slow

CHUNK = 10


@pytest.mark.parametrize("first", range(100, 150, CHUNK))
def test_what_clients_were_told_is_true(first):
    for seed in range(first, first + CHUNK):
        run_seed(seed)
