"""Servers with settings of their own, and clients of them, as for the tests of HTTP."""

from tests.http.conftest import client_of, start_server, stream_on

__all__ = ["client_of", "start_server", "stream_on"]
