"""A proxy for each test, and what is left of it is let go."""

import pytest

from tests.unit.proxy.driver import Proxy


@pytest.fixture
def make_proxy():
    """A proxy with settings of one's own; `engine` has those of its shard."""
    made = []

    def make(**settings):
        made.append(Proxy(**settings))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


@pytest.fixture
def proxy(make_proxy):
    return make_proxy()
