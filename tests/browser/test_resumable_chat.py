"""The example's page in a real browser: what is on its way survives the page, and Stop stops it."""

import httpx
import pytest

from tests.browser.conftest import SECRET
from tests.upstreams import Upstream

TEXT = "Kelp holds on to the rock, and gives way — 海藻 🌊 —\n\nto the waves."
# The first event has no words.
EVENTS_BEFORE = 1
SO_FAR = "Kelp holds on"


@pytest.fixture(scope="module")
def example(start_example):
    return start_example(text=TEXT)


@pytest.mark.spec("proxy 4.5-2", "proxy 4.5-3", "proxy 5.4-1", "proxy 11.2-1")
def test_an_answer_comes_word_by_word_and_goes_on_after_a_reload(
    visit, example, upstream: Upstream
):
    chat = visit(example)
    chat.ask("What does kelp do?")
    request = upstream.next()
    request.release(EVENTS_BEFORE + 2)
    chat.wait_for_answer(0, "Kelp holds", "answering")
    request.release()
    chat.wait_for_answer(0, SO_FAR, "answering")
    chat.reload()
    chat.wait_for_answer(0, SO_FAR, "answering")
    request.release(2)
    chat.wait_for_answer(0, f"{SO_FAR} to the", "answering")
    request.release_all()
    chat.wait_for_answer(0, TEXT, "complete")

    chat.ask("And then?")
    request = upstream.next()
    assert [each["content"] for each in request.json["messages"]] == [
        "What does kelp do?",
        TEXT,
        "And then?",
    ]
    request.release_all()
    chat.wait_for_answer(1, TEXT, "complete")
    chat.reload()
    chat.wait_for_answer(1, TEXT, "complete")
    assert chat.conversation() == [
        ["What does kelp do?", TEXT, "complete"],
        ["And then?", TEXT, "complete"],
    ]
    assert len(upstream.requests) == 2


@pytest.mark.spec("proxy 9.2-2")
def test_an_answer_is_finished_while_nobody_looks(visit, start_example, upstream: Upstream):
    example = start_example(text=TEXT, piece=7)  # no piece is an event, some cut a character
    chat = visit(example)
    chat.ask("Are you there?")
    chat.page.call("goto", "about:blank")
    request = upstream.next()
    request.release_all()
    request.wait_for_end()
    visit(example, beside=chat).wait_for_answer(0, TEXT, "complete")


@pytest.mark.spec("proxy 4.6-1", "proxy 9.3-1", "proxy 9.3-3", "proxy 11.1-1")
def test_stop_stops_the_model_and_keeps_its_words(visit, example, upstream: Upstream):
    chat = visit(example)
    chat.ask("What does kelp do?")
    request = upstream.next()
    request.release(EVENTS_BEFORE + 3)
    chat.wait_for_answer(0, SO_FAR, "answering")
    second = visit(example, beside=chat)
    second.wait_for_answer(0, SO_FAR, "answering")
    chat.stop()
    request.wait_for_disconnect()
    for page in (chat, second):
        page.wait_for_answer(0, SO_FAR, "stopped")
    chat.reload()
    chat.wait_for_answer(0, SO_FAR, "stopped")
    chat.ask("Go on?")
    upstream.next().release_all()
    for page in (chat, second):
        page.wait_for_answer(1, TEXT, "complete")


def test_stop_stops_a_model_that_has_not_begun(visit, start_example, upstream: Upstream):
    chat = visit(start_example(text=TEXT, gate="headers"))
    chat.ask("What does kelp do?")
    request = upstream.next()
    chat.stop()
    request.wait_for_disconnect()
    chat.wait_for_answer(0, "", "failed")
    assert "aborted" in chat.conversation()[0][2]
    chat.ask("Again?")
    upstream.next().release_all()
    chat.wait_for_answer(1, TEXT, "complete")


def test_leaving_is_not_stopping(visit, example, upstream: Upstream):
    chat = visit(example)
    chat.ask("What does kelp do?")
    request = upstream.next()
    request.release(EVENTS_BEFORE + 3)
    chat.wait_for_answer(0, SO_FAR, "answering")
    second = visit(example, beside=chat)
    chat.page.call("close")
    second.wait_for_answer(0, SO_FAR, "answering")
    assert not request.disconnected
    request.release_all()
    second.wait_for_answer(0, TEXT, "complete")


@pytest.mark.spec("proxy 5.3-1")
def test_an_answer_cut_off_by_a_killed_server_has_failed_and_the_next_one_works(
    visit, example, server, upstream: Upstream
):
    chat = visit(example)
    chat.ask("What does kelp do?")
    request = upstream.next()
    request.release(EVENTS_BEFORE + 3)
    chat.wait_for_answer(0, SO_FAR, "answering")
    server.kill()
    chat.page.wait("document.getElementById('connection').textContent !== ''")
    request.wait_for_disconnect()
    server.start()
    chat.wait_for_answer(0, SO_FAR, "failed")
    chat.ask("Again?")
    upstream.next().release_all()
    chat.wait_for_answer(1, TEXT, "complete")
    chat.page.wait("document.getElementById('connection').textContent === ''")


@pytest.mark.spec("proxy 4.4-16", "proxy 4.5-8")
def test_an_expired_url_is_renewed(visit, start_example, upstream: Upstream):
    chat = visit(start_example(text=TEXT, url_ttl_s=1))
    chat.page.call("evaluate", "window.stayed = true")
    chat.ask("What does kelp do?")
    request = upstream.next()
    request.release(EVENTS_BEFORE + 3)
    chat.wait_for_answer(0, SO_FAR, "answering")
    connects = (
        "performance.getEntriesByType('resource').filter(one => /sessions.{37}$/.test(one.name))"
    )
    chat.page.wait(f"{connects}.length >= 2")
    request.release(2)
    chat.wait_for_answer(0, f"{SO_FAR} to the", "answering")
    chat.stop()
    chat.wait_for_answer(0, f"{SO_FAR} to the", "stopped")
    assert chat.page.call("evaluate", "window.stayed")


@pytest.mark.spec("proxy 4.8-1")
def test_a_deleted_conversation_begins_anew(visit, example, upstream: Upstream):
    chat = visit(example)
    chat.ask("What does kelp do?")
    request = upstream.next()
    request.release(EVENTS_BEFORE + 3)
    chat.wait_for_answer(0, SO_FAR, "answering")
    reads = "performance.getEntriesByType('resource').filter(one => /v1.proxy/.test(one.name))"
    url = chat.page.call("evaluate", f"{reads}[0].name").partition("?")[0]
    httpx.delete(url, headers={"Authorization": f"Bearer {SECRET}"}).raise_for_status()
    request.wait_for_disconnect()
    chat.wait_for_answer(0, "", "failed")
    chat.ask("And now?")
    upstream.next().release_all()
    chat.wait_for_answer(1, TEXT, "complete")
    assert chat.conversation()[0] == [
        "What does kelp do?",
        "",
        "failed: The answer is not there any more.",
    ]


def test_a_refusal_is_shown(visit, start_example, upstream: Upstream):
    upstream.routes["/v1/refused"] = upstream.routes["/error"]
    chat = visit(start_example("/v1/refused", status=429, count=5, gate=""))
    chat.ask("What does kelp do?")
    upstream.next().wait_for_end()
    chat.wait_for_answer(0, "", "failed")
    assert chat.conversation() == [["What does kelp do?", "", "failed: xxxxx"]]


def test_the_page_can_be_read_by_day_and_by_night(visit, example):
    page = visit(example).page
    style = (
        "(({color, backgroundColor}) => [color, backgroundColor])(getComputedStyle(document.body))"
    )
    for scheme in ("light", "dark"):
        page.call("emulateMedia", {"colorScheme": scheme})
        text, ground = (
            sum(map(int, each[4:-1].split(", "))) for each in page.call("evaluate", style)
        )
        assert (text > ground) == (scheme == "dark")
