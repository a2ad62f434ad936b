"""Servers with settings of their own, and clients of them, as for the tests of HTTP."""

import resource

import pytest

from tests.http.conftest import client_of, start_server, stream_on

__all__ = ["client_of", "start_server", "stream_on"]


@pytest.fixture(scope="session", autouse=True)
def _many_files() -> None:
    """An attack opens thousands of sockets; the server it starts inherits the limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
