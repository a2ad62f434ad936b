"""Servers for the whole run, clients of them, and streams with names of their own."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from holdfast.client import Client, Stream
from tests.client.targets import TEXT, Target, cold_url, new_name, reference_target
from tests.server_process import ServerProcess

MakeStream = Callable[..., Any]
OpenClient = Callable[..., Client]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with fsync, shared by all tests of a worker: use new stream names."""
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as process:
        yield process


@pytest.fixture(scope="session")
def ours(server: ServerProcess) -> Target:
    """The shared server of ours."""
    return Target(server.url, tells_boundaries=True)


@pytest.fixture(scope="session")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """One of ours that reads everything from packs."""
    with cold_url(tmp_path_factory.mktemp("cold") / "data") as url:
        yield Target(url, tells_boundaries=True)


@pytest.fixture(scope="session")
def node() -> Iterator[Target]:
    """The reference server."""
    with reference_target() as target:
        yield target


@pytest.fixture(scope="session", params=["ours", "cold", "node"])
def target(request: pytest.FixtureRequest) -> Target:
    """Every server that the contract is shown with."""
    found: Target = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def open_client() -> AsyncIterator[OpenClient]:
    """Make clients that are closed with the test."""
    async with AsyncExitStack() as stack:

        def make(url: str, **options: Any) -> Client:
            client = Client(url, **options)
            stack.push_async_callback(client.aclose)
            return client

        yield make


@pytest.fixture
async def client(target: Target, open_client: OpenClient) -> Client:
    """A client of the server that the contract is shown with."""
    return open_client(target.url)


@pytest.fixture
async def new_stream(client: Client) -> MakeStream:
    """Create a stream under a new name."""

    async def create(content_type: str = TEXT, *, framing: Any = None, **options: Any) -> Stream:
        stream = client.stream(new_name(), framing=framing)
        assert (await stream.create(content_type, **options)).created
        return stream

    return create
