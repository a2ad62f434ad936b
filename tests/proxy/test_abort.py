"""Abort: a stop button, which is not the same as a disconnect."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.proxy.proxying import (
    PATH,
    SECRET,
    answers,
    body_of,
    check_error,
    ended,
    expired,
    id_of,
    kinds_of,
)
from tests.upstreams import pattern


def begun(proxy, upstream, location: str, pieces: int = 1):
    """A response that has begun, and of which so many pieces of ten bytes can be read."""
    number = proxy.appended(location, upstream.url("/bytes", count=1000, piece=10, gate=1))
    request = upstream.next()
    for count in range(1, pieces + 1):
        request.release()
        proxy.frames(location, lambda frames, n=10 * count: len(body_of(frames, number)) == n)
    return number, request


@pytest.mark.spec("proxy 4.6-1", "proxy 4.6-3", "proxy 4.6-4", "proxy 4.6-6", "proxy 9.3-1")
@pytest.mark.spec("proxy 9.3-3", "proxy 5.2-9", "proxy 8.3-1", "proxy 9.2-2")
def test_all_responses_under_way_are_aborted(proxy, upstream) -> None:
    location = proxy.created(upstream.url("/fixed", body="done"))
    proxy.frames(location)
    upstream.next()
    (first, one), (second, two) = (begun(proxy, upstream, location, n) for n in (1, 3))
    answer = proxy.abort(location)
    assert (answer.status_code, answer.content) == (204, b"")
    frames = proxy.now(location)
    assert kinds_of(frames, 1) == "SDC", "what had ended has ended"
    assert [kinds_of(frames, each) for each in (first, second)] == ["SDA", "SDA"]
    assert body_of(frames, first) == pattern(10)
    assert body_of(frames, second) == pattern(30)
    for request in (one, two):
        request.wait_for_disconnect()
    assert proxy.now(location) == frames


@pytest.mark.spec("proxy 4.6-5", "proxy 4.6-6")
def test_aborting_again_does_nothing(proxy, upstream) -> None:
    location = proxy.connected()
    assert proxy.abort(location).status_code == 204
    begun(proxy, upstream, location)
    assert [proxy.abort(location).status_code for _ in range(3)] == [204] * 3
    assert kinds_of(proxy.now(location)) == "SDA"
    assert proxy.abort(location, response=1).status_code == 204
    assert proxy.abort(location, response=99).status_code == 204
    assert kinds_of(proxy.now(location)) == "SDA"


@pytest.mark.spec("proxy 4.6-5")
def test_aborting_what_has_ended_or_is_gone(proxy, upstream) -> None:
    location = proxy.created(upstream.url("/fixed", body="x"))
    proxy.frames(location)
    assert proxy.abort(location).status_code == 204
    assert kinds_of(proxy.now(location)) == "SDC"
    proxy.client.delete(location, headers=proxy.service)
    assert proxy.abort(location).status_code == 204


@pytest.mark.spec("proxy 9.3-2", "proxy 9.3-3")
def test_what_was_gathered_comes_first(proxy, upstream) -> None:
    """The second piece arrives too soon after the first to have been written by itself."""
    location = proxy.connected()
    for _ in range(5):
        number, request = begun(proxy, upstream, location)
        request.release(3)
        assert proxy.abort(location).status_code == 204
        frames = proxy.frames(location, ended(number))
        assert kinds_of(frames, number) == "SDA"
        body = body_of(frames, number)
        assert body == pattern(len(body))
        assert len(body) in {10, 20, 30, 40}


def test_one_response_can_be_aborted(proxy, upstream) -> None:
    location = proxy.connected()
    responses = [begun(proxy, upstream, location) for _ in range(3)]
    assert proxy.abort(location, response=2).status_code == 204
    responses[1][1].wait_for_disconnect()
    frames = proxy.now(location)
    assert [kinds_of(frames, number) for number in (1, 2, 3)] == ["SD", "SDA", "SD"]
    for _, request in (responses[0], responses[2]):
        assert not request.disconnected
        request.release_all()
    frames = proxy.frames(location, ended(1, 2, 3))
    assert [kinds_of(frames, number) for number in (1, 2, 3)] == ["SDC", "SDA", "SDC"]


@pytest.mark.parametrize("value", ["", "x", "-1", "1.0", "99999999999", "²"])
def test_odd_numbers_of_responses(proxy, value) -> None:
    answer = proxy.abort(proxy.connected(), response=value)
    assert answer.status_code == 400
    assert "response" in answer.json()["error"]["message"]


def test_a_call_without_an_answer_is_aborted_as_well(proxy, upstream) -> None:
    """Its client is told, and there are no frames: nothing had begun."""
    location = proxy.connected()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(proxy.append, location, upstream.url("/never"))
        request = upstream.next()
        assert proxy.abort(location).status_code == 204
        error = check_error(waiting.result(), 502, "UPSTREAM_ERROR")
    assert "aborted" in error["message"]
    request.wait_for_disconnect()
    assert proxy.now(location) == []
    assert proxy.appended(location, upstream.url()) == 1


def test_what_is_aborted_was_answered_already(proxy, upstream) -> None:
    """Nobody counts another answer, which nobody got."""
    before = answers(proxy)
    location = proxy.created(upstream.url("/bytes", count=10, gate=1))
    request = upstream.next()
    assert proxy.abort(location).status_code == 204
    request.wait_for_disconnect()
    assert answers(proxy) - before == {"201": 1, "204": 1}


def test_the_stream_goes_on_after_an_abort(proxy, upstream) -> None:
    location = proxy.connected()
    begun(proxy, upstream, location)
    proxy.abort(location)
    assert proxy.appended(location, upstream.url("/fixed", body="next")) == 2
    assert body_of(proxy.frames(location, ended(2)), 2) == b"next"


@pytest.mark.spec("proxy 4.6-2", "proxy 10.2-2")
def test_service_authentication_does_not_abort(proxy, upstream) -> None:
    location = proxy.connected()
    _, request = begun(proxy, upstream, location)
    path = f"{PATH}/{id_of(location)}?action=abort"
    for answer in (
        proxy.client.patch(path, headers=proxy.service),
        proxy.client.patch(f"{path}&secret={SECRET}"),
        proxy.client.patch(path),
        proxy.client.patch(f"{path}&expires=1", headers=proxy.service),
        proxy.client.patch(f"{path}&signature=x", headers=proxy.service),
    ):
        check_error(answer, 401, "MISSING_SIGNATURE")
    assert kinds_of(proxy.now(location)) == "SD"
    assert not request.disconnected
    request.release_all()


@pytest.mark.spec("proxy 8.5-2", "proxy 8.2-3", "proxy 8.2-4", "proxy 10.2-2")
def test_a_url_that_will_not_do_does_not_abort(proxy, upstream) -> None:
    location = proxy.connected()
    _, request = begun(proxy, upstream, location)
    for headers in ({}, proxy.service):
        answer = proxy.client.patch(f"{expired(location)}&action=abort", headers=headers)
        error = check_error(answer, 401, "SIGNATURE_EXPIRED")
        assert error["renewable"] is True
        answer = proxy.client.patch(f"{location}x&action=abort", headers=headers)
        check_error(answer, 401, "SIGNATURE_INVALID")
        other = proxy.connected().partition("?")[2]
        answer = proxy.client.patch(f"{PATH}/{id_of(location)}?{other}&action=abort")
        check_error(answer, 401, "SIGNATURE_INVALID")
    assert kinds_of(proxy.now(location)) == "SD"
    request.release_all()


@pytest.mark.spec("proxy 12.1-1")
@pytest.mark.parametrize("query", ["", "&action=", "&action=close", "&action=ABORT", "&abort"])
def test_other_actions(proxy, query) -> None:
    answer = proxy.client.patch(proxy.connected() + query)
    check_error(answer, 400, "INVALID_ACTION")


@pytest.mark.spec("proxy 4.6-3", "proxy 5.3-1")
def test_aborts_at_once_write_one_frame(proxy, upstream) -> None:
    location = proxy.connected()
    begun(proxy, upstream, location)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: proxy.abort(location).status_code, range(16)))
    assert set(answers) == {204}
    assert [each.type for each in proxy.now(location)].count("A") == 1
