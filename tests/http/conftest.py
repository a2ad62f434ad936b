"""Server processes for the whole run, streams with names of their own, servers to order."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.http.raw import RawConnection
from tests.http.streams import TEXT, Stream
from tests.server_process import ServerProcess

# Against hangs: far longer than any answer takes.
DEADLINE_S = 10.0

MakeStream = Callable[..., Stream]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with fsync, shared by all tests of a worker: use new stream names."""
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as process:
        yield process


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    """An HTTP client of the shared server."""
    with httpx.Client(base_url=server.url, timeout=DEADLINE_S) as client:
        yield client


@pytest.fixture
def absent(client: httpx.Client) -> MakeStream:
    """Name a stream that does not exist yet."""
    return lambda content_type=TEXT: _name_stream(client, content_type)


@pytest.fixture
def new_stream(client: httpx.Client) -> MakeStream:
    """Create a stream under a new name."""
    return lambda *arguments, **headers: _create_stream(client, *arguments, **headers)


@pytest.fixture
def connect(server: ServerProcess) -> Iterator[Callable[[], RawConnection]]:
    """Open raw connections to the shared server."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(RawConnection(server.port))


@pytest.fixture(scope="session")
def patient_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose long-polls outlast every deadline here: an answer means that nobody waited."""
    data_dir = tmp_path_factory.mktemp("patient") / "data"
    with ServerProcess(data_dir, long_poll_timeout=600) as process:
        yield process


@pytest.fixture(scope="session")
def patient_client(patient_server: ServerProcess) -> Iterator[httpx.Client]:
    """An HTTP client of the patient server."""
    with httpx.Client(base_url=patient_server.url, timeout=DEADLINE_S) as client:
        yield client


@pytest.fixture
def new_patient_stream(patient_client: httpx.Client) -> MakeStream:
    """Create a stream on the patient server."""
    return lambda *arguments, **headers: _create_stream(patient_client, *arguments, **headers)


@pytest.fixture
def start_long_poll(
    patient_server: ServerProcess,
) -> Iterator[Callable[[Stream, str], RawConnection]]:
    """Start a long-poll on the patient server, and return once it waits."""
    with ExitStack() as stack:

        def start(stream: Stream, offset: str) -> RawConnection:
            connection = stack.enter_context(RawConnection(patient_server.port))
            connection.request("HEAD", stream.url)
            connection.response("HEAD")
            connection.request("GET", f"{stream.url}?offset={offset}&live=long-poll")
            # One loop serves both connections in the order of arrival, so that the long-poll
            # waits once this later request is answered.
            stream.head()
            return connection

        yield start


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Start further servers, with settings of their own, one after the other on the same data."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(ServerProcess(tmp_path / "data", **settings))


@pytest.fixture
def client_of() -> Iterator[Callable[[ServerProcess], httpx.Client]]:
    """Make HTTP clients of servers other than the shared ones."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(
            httpx.Client(base_url=server.url, timeout=DEADLINE_S)
        )


@pytest.fixture
def stream_on(client_of: Callable[[ServerProcess], httpx.Client]) -> MakeStream:
    """Create a stream on a server other than the shared ones."""
    return lambda server, *arguments, **headers: _create_stream(
        client_of(server), *arguments, **headers
    )


def _name_stream(client: httpx.Client, content_type: str = TEXT) -> Stream:
    return Stream(client, f"test/{uuid4().hex}", content_type)


def _create_stream(
    client: httpx.Client, content_type: str = TEXT, body: bytes | None = None, **headers: str
) -> Stream:
    stream = _name_stream(client, content_type)
    response = stream.create(body, **headers)
    assert response.status_code == 201, response.text
    return stream
