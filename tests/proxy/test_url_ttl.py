"""How long signed URLs are good."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.proxy.proxying import expires_of

# Between the server's look at the clock and ours.
SLACK_S = 30
HEADER = "Stream-Signed-URL-TTL"


def lifetimes(proxy, upstream, headers: dict[str, str]) -> list[int]:
    """Of the URLs that a create, an append and a connect give."""
    location = proxy.connected()
    answers = [
        proxy.create(upstream.url(), headers=headers),
        proxy.append(location, upstream.url(), headers=headers),
        proxy.connect(headers=headers),
    ]
    now_s = time.time()
    assert {each.status_code for each in answers} <= {200, 201}, answers[0].text
    return [round(expires_of(each.headers["location"]) - now_s) for each in answers]


def is_about(lifetime_s: int, expected_s: int) -> bool:
    return expected_s - SLACK_S <= lifetime_s <= expected_s + 1


@pytest.mark.spec("proxy 8.4-3")
@pytest.mark.parametrize("seconds", [0, 60, 3600, 604_800])
def test_as_the_request_says(proxy, upstream, seconds) -> None:
    for lifetime_s in lifetimes(proxy, upstream, {HEADER: str(seconds)}):
        assert is_about(lifetime_s, seconds)


@pytest.mark.spec("proxy 8.4-1", "proxy 13.2-2")
def test_a_day_unless_the_request_says(proxy, upstream) -> None:
    for lifetime_s in lifetimes(proxy, upstream, {}):
        assert is_about(lifetime_s, 86_400)


@pytest.mark.spec("proxy 8.4-2")
def test_as_the_setting_says(strict, upstream) -> None:
    for lifetime_s in lifetimes(strict, upstream, {}):
        assert is_about(lifetime_s, 1000)


@pytest.mark.spec("proxy 8.4-4")
@pytest.mark.parametrize("seconds", ["5001", "86400", "999999999999", "1" * 40])
def test_what_is_too_long_is_cut(strict, upstream, seconds) -> None:
    for lifetime_s in lifetimes(strict, upstream, {HEADER: seconds}):
        assert is_about(lifetime_s, 5000)


@pytest.mark.parametrize(
    "value", ["", "-0", "-1", "1.5", "1e3", "x", "+5", "5 s", "0x10", "²", "١"]
)
def test_what_is_no_time(proxy, upstream, value) -> None:
    headers = {HEADER: value.encode()}
    for answer in (
        proxy.create(upstream.url(), headers=headers),
        proxy.append(proxy.connected(), upstream.url(), headers=headers),
        proxy.connect(headers=headers),
    ):
        assert answer.status_code == 400, answer.text
        assert HEADER in answer.json()["error"]["message"]
    assert not upstream.requests


@pytest.mark.spec("proxy 8.4-3")
def test_the_time_starts_with_the_answer(proxy, upstream) -> None:
    """However long the upstream took: here long enough for the request's own time to be past."""
    headers = {HEADER: "1"}
    url = upstream.url("/fixed", gate="headers")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(proxy.create, url, headers=headers)
        request = upstream.next()
        asked_s = int(time.time())
        while time.time() < asked_s + 1.5:
            time.sleep(0.05)
        released_s = int(time.time())
        request.release_all()
        assert expires_of(answer.result().headers["location"]) >= released_s + 1
