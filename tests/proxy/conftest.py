"""A server with the proxy on, and upstreams it may call."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.http.raw import RawConnection
from tests.proxy.proxying import ALLOWLIST, DEADLINE_S, OLD_SECRET, SECRET, Proxy
from tests.server_process import ServerProcess
from tests.upstreams.fixtures import upstream

__all__ = ["upstream"]

StartProxy = Callable[..., Proxy]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the proxy on, shared by all tests of a worker."""
    data_dir = tmp_path_factory.mktemp("proxy") / "data"
    with ServerProcess(data_dir, proxy_secret=SECRET, proxy_allowlist=ALLOWLIST) as process:
        yield process


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    """An HTTP client of the shared server."""
    with httpx.Client(base_url=server.url, timeout=DEADLINE_S) as client:
        yield client


@pytest.fixture(scope="session")
def proxy(client: httpx.Client) -> Proxy:
    """The proxy of the shared server."""
    return Proxy(client)


@pytest.fixture
def connect(server: ServerProcess) -> Iterator[Callable[[], RawConnection]]:
    """Open raw connections to the shared server."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(RawConnection(server.port))


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Start further servers, with settings of their own, one after the other on the same data."""
    with ExitStack() as stack:

        def start(**settings: object) -> ServerProcess:
            settings = {"proxy_secret": SECRET, "proxy_allowlist": ALLOWLIST, **settings}
            return stack.enter_context(ServerProcess(tmp_path / "data", **settings))

        yield start


@pytest.fixture
def client_of() -> Iterator[Callable[[ServerProcess], httpx.Client]]:
    """Make HTTP clients of servers other than the shared one."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(
            httpx.Client(base_url=server.url, timeout=DEADLINE_S)
        )


@pytest.fixture
def start_proxy(
    start_server: Callable[..., ServerProcess],
    client_of: Callable[[ServerProcess], httpx.Client],
) -> StartProxy:
    """The proxy of a further server."""
    return lambda **settings: Proxy(client_of(start_server(**settings)))


@pytest.fixture(scope="session")
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with little patience and small limits, which says more than it should have to."""
    data_dir = tmp_path_factory.mktemp("strict") / "data"
    settings = {
        "proxy_secret": f"{SECRET},{OLD_SECRET}",
        "proxy_allowlist": ALLOWLIST,
        "proxy_header_timeout": 1.5,
        "proxy_inactivity_timeout": 2,
        "proxy_url_ttl": 1000,
        "proxy_url_ttl_max": 5000,
        "proxy_request_bytes_max": 200_000,
        "proxy_response_bytes_max": 300_000,
        "public_url": "https://streams.example/base",
        "log_level": "debug",
    }
    with ServerProcess(data_dir, **settings) as process:
        yield process


@pytest.fixture(scope="session")
def strict(strict_server: ServerProcess) -> Iterator[Proxy]:
    """The proxy of the strict server."""
    with httpx.Client(base_url=strict_server.url, timeout=DEADLINE_S) as client:
        yield Proxy(client)
