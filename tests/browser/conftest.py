"""One browser, server, model and example for the tests of a file; the visitors are their own."""

from collections.abc import Callable, Iterator

import pytest

from tests.browser.chromium import Chromium
from tests.browser.example import ChatPage, Example
from tests.client.restarting import RestartingServer
from tests.upstreams import Upstream

SECRET = "a secret that is long enough for a test"
MODEL = "/v1/chat/completions"

Visit = Callable[..., ChatPage]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """The browser."""
    with Chromium() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartingServer]:
    """A server with the proxy on, which may be killed if it is started again."""
    settings = {"proxy_secret": SECRET, "proxy_allowlist": "http://127.0.0.1:*/v1/*"}
    with RestartingServer(tmp_path_factory.mktemp("server") / "data", **settings) as process:
        yield process


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    """The model."""
    with Upstream() as running:
        yield running


@pytest.fixture(scope="module")
def start_example(server: RestartingServer, upstream: Upstream) -> Iterator[Callable[..., Example]]:
    """Start the example, with a model that waits for every event to be released.

    What is passed goes into the query of the model's URL, and says how it answers. At the end none
    of them may have had anything to complain about.
    """
    started: list[Example] = []

    def start(path: str = MODEL, url_ttl_s: int = 600, **model: object) -> Example:
        started.append(
            Example(
                HOLDFAST_URL=server.url,
                HOLDFAST_PROXY_SECRET=SECRET,
                MODEL_URL=upstream.url(path, **{"gate": 1, **model}),
                URL_TTL_S=url_ttl_s,
            ).start()
        )
        return started[-1]

    yield start
    assert [each.stop() for each in started] == [(0, "")] * len(started)


@pytest.fixture
def visit(chromium: Chromium) -> Iterator[Visit]:
    """Open the example's page, for a new visitor or in another tab `beside` a page."""
    pages: list[ChatPage] = []

    def open_page(example: Example, beside: ChatPage | None = None) -> ChatPage:
        page = chromium.open(None if beside is None else beside.page)
        pages.append(ChatPage(page, example.url))
        return pages[-1]

    yield open_page
    thrown = [error for each in pages for error in each.page.errors]
    for each in pages:
        each.page.leave()
    assert thrown == []
