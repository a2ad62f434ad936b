"""What the protocol asks a server to document is documented."""

import pytest

from tools.coverage_page import ROOT


def paragraphs_of(page: str) -> list[str]:
    """The paragraphs of a page, each in lower case on one line."""
    text = (ROOT / "docs" / page).read_text()
    return [" ".join(paragraph.lower().split()) for paragraph in text.split("\n\n")]


@pytest.mark.spec("base 5.2-7")
def test_scope_of_stream_seq_is_documented() -> None:
    about = [text for text in paragraphs_of("http.md") if "stream-seq" in text]
    assert any("per stream" in text for text in about)


@pytest.mark.spec("base 5.2.1-8")
def test_atomicity_of_producer_state_is_documented() -> None:
    about = [text for text in paragraphs_of("http.md") if "producer" in text]
    assert any("atomic" in text for text in about)


@pytest.mark.spec("proxy 7-3")
def test_syntax_of_the_allowlist_is_documented() -> None:
    about = [text for text in paragraphs_of("proxy.md") if "pattern" in text]
    assert any("[scheme://]host[:port][/path]" in text for text in about)


@pytest.mark.spec("proxy 10.1-2")
def test_service_authentication_is_documented() -> None:
    about = [text for text in paragraphs_of("proxy.md") if "**service**" in text]
    assert any("authorization: bearer" in text and "?secret=" in text for text in about)
