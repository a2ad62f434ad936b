"""The fixtures of the tests of HTTP, with Holdfast under uvicorn instead of its own server."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.asgi.host_process import HostProcess
from tests.http.conftest import (
    absent,
    client,
    client_of,
    connect,
    new_patient_stream,
    new_stream,
    patient_client,
    start_long_poll,
    stream_on,
)

__all__ = [
    "absent",
    "client",
    "client_of",
    "connect",
    "new_patient_stream",
    "new_stream",
    "patient_client",
    "start_long_poll",
    "stream_on",
]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    """A host with fsync, shared by all tests of a worker: use new stream names."""
    with HostProcess(tmp_path_factory.mktemp("host") / "data") as process:
        yield process


@pytest.fixture(scope="session")
def patient_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    """A host whose long-polls outlast every deadline here."""
    data_dir = tmp_path_factory.mktemp("patient-host") / "data"
    with HostProcess(data_dir, long_poll_timeout=600) as process:
        yield process


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., HostProcess]]:
    """Start further hosts, with settings of their own."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(HostProcess(tmp_path / "data", **settings))
