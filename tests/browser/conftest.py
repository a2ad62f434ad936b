"""One browser for all tests here, and for each of them a server, a model and the example."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Chromium
from tests.browser.example import ChatPage, Example
from tests.client.restarting import RestartingServer
from tests.upstreams import Upstream
from tests.upstreams.fixtures import upstream

__all__ = ["upstream"]

SECRET = "a secret that is long enough for a test"
MODEL = "/v1/chat/completions"

Visit = Callable[..., ChatPage]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """The browser."""
    with Chromium() as running:
        yield running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestartingServer]:
    """A server with the proxy on."""
    with RestartingServer(
        tmp_path / "data", proxy_secret=SECRET, proxy_allowlist="http://127.0.0.1:*/v1/*"
    ) as process:
        yield process


@pytest.fixture
def visit(
    chromium: Chromium, server: RestartingServer, upstream: Upstream, request: pytest.FixtureRequest
) -> Iterator[Visit]:
    """Open the page, for a new visitor or `beside` another page, with a model that says `text`.

    The model waits for every word to be released. `url_ttl_s` is for the signed URLs.
    """
    examples: list[Example] = []
    pages: list[ChatPage] = []

    def open_page(
        text: str = "", beside: ChatPage | None = None, url_ttl_s: int = 600, **model: object
    ) -> ChatPage:
        if beside is None:
            asked = upstream.url(MODEL, **{"text": text, "gate": 1, **model})
            examples.append(
                Example(
                    HOLDFAST_URL=server.url,
                    HOLDFAST_PROXY_SECRET=SECRET,
                    MODEL_URL=asked,
                    URL_TTL_S=url_ttl_s,
                ).start()
            )
        page = chromium.open(None if beside is None else beside.page)
        pages.append(ChatPage(page, examples[-1].url))
        return pages[-1]

    yield open_page
    thrown = [error for each in pages for error in each.page.errors]
    for each in pages:
        each.page.leave()
    ended = [example.stop() for example in examples]
    assert thrown == []
    assert ended == [(0, "")] * len(examples)
