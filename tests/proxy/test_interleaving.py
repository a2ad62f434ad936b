"""Several responses of one stream at one time."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.proxy.proxying import TERMINAL, body_of, ended, kinds_of
from tests.upstreams import pattern


@pytest.mark.spec("proxy 5.3-4", "proxy 5.3-2")
def test_responses_take_turns(proxy, upstream) -> None:
    location = proxy.connected()
    requests = []
    for number in (1, 2, 3):
        url = upstream.url("/bytes", count=40, piece=10, gate=1)
        assert proxy.appended(location, url) == number
        requests.append(upstream.next())
    for turn in range(1, 5):
        for number, request in enumerate(requests, 1):
            request.release()
            proxy.frames(
                location,
                lambda frames, n=number, size=10 * turn: len(body_of(frames, n)) == size,
            )
    for number in (3, 1, 2):
        requests[number - 1].release()
        proxy.frames(location, ended(number))
    frames = proxy.now(location)
    data = [each.response_id for each in frames if each.type == "D"]
    assert data == [1, 2, 3] * 4
    assert [each.response_id for each in frames if each.type in TERMINAL] == [3, 1, 2]
    for number in (1, 2, 3):
        assert kinds_of(frames, number) == "SDC"
        assert body_of(frames, number) == pattern(40)


@pytest.mark.spec("proxy 5.3-2", "proxy 5.3-4", "proxy 5.2-4", "proxy 5.2-5")
def test_many_at_once_get_ids_without_gaps(proxy, upstream) -> None:
    location = proxy.connected()

    def append(at: int) -> tuple[int, int]:
        url = upstream.url("/bytes", count=1000 + at, piece=100, delay_ms=1)
        return proxy.appended(location, url), 1000 + at

    with ThreadPoolExecutor(8) as pool:
        sizes = dict(pool.map(append, range(24)))
    assert sorted(sizes) == list(range(1, 25))
    frames = proxy.frames(location, ended(*sizes))
    assert [each.response_id for each in frames if each.type == "S"] == sorted(sizes)
    for number, size in sizes.items():
        assert kinds_of(frames, number) == "SDC"
        assert body_of(frames, number) == pattern(size)


def test_a_slow_response_does_not_hold_up_the_next(proxy, upstream) -> None:
    location = proxy.created(upstream.url("/bytes", count=1, gate=1))
    slow = upstream.next()
    assert proxy.appended(location, upstream.url("/fixed", body="quick")) == 2
    frames = proxy.frames(location, ended(2))
    assert body_of(frames, 2) == b"quick"
    assert kinds_of(frames, 1) == "S"
    slow.release_all()
    proxy.frames(location, ended(1, 2))


@pytest.mark.spec("proxy 5.3-3")
def test_ids_are_given_in_the_order_of_answers(proxy, upstream) -> None:
    """Not in that of requests: an upstream may refuse, and then there must be no gap."""
    location = proxy.connected()
    with ThreadPoolExecutor(1) as pool:
        url = upstream.url("/fixed", body="late", gate="headers")
        late = pool.submit(proxy.append, location, url)
        request = upstream.next()
        assert proxy.appended(location, upstream.url("/fixed", body="early")) == 1
        request.release_all()
        assert late.result().headers["stream-response-id"] == "2"
