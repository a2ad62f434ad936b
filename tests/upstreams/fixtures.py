"""Upstreams as fixtures; a conftest imports them, or names this file among its plugins."""

from collections.abc import Iterator

import pytest

from tests.upstreams.server import Upstream


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    """An upstream that speaks HTTP/1.1."""
    with Upstream() as running:
        yield running


@pytest.fixture
def secure_upstream() -> Iterator[Upstream]:
    """An upstream that speaks TLS, and HTTP/2 with those who want it."""
    with Upstream(tls=True) as running:
        yield running
