"""Upstreams that take too long."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from holdfast.settings import ProxySettings
from tests.proxy.proxying import body_of, check_error, ended, kinds_of
from tests.upstreams import pattern


@pytest.mark.spec("proxy 9.1-1", "proxy 12.4-1", "proxy 4.4-10", "proxy 5.3-3")
def test_upstreams_that_never_answer(strict, upstream) -> None:
    """A create, an append and a connect, all at once since it takes a while."""
    location, session_id = strict.connected(), uuid4().hex
    before = strict.streams()
    url = upstream.url("/never")
    with ThreadPoolExecutor(3) as pool:
        create = pool.submit(strict.create, url)
        append = pool.submit(strict.append, location, url)
        connect = pool.submit(strict.connect, session_id, headers={"Upstream-URL": url})
        error = check_error(create.result(), 504, "UPSTREAM_TIMEOUT")
        check_error(append.result(), 504, "UPSTREAM_TIMEOUT")
        check_error(connect.result(), 401, "CONNECT_REJECTED")
    assert "1.5 s" in error["message"]
    for _ in range(3):
        upstream.next().wait_for_disconnect()
    assert strict.streams() == before
    assert strict.now(location) == []
    assert strict.appended(location, upstream.url()) == 1


@pytest.mark.spec("proxy 9.1-2", "proxy 5.2-10", "proxy 5.2-11", "proxy 9.2-2")
def test_upstreams_that_fall_silent_and_those_that_are_only_slow(strict, upstream) -> None:
    location = strict.connected()
    strict.appended(location, upstream.url("/bytes", count=20, piece=10, after=1, end="silent"))
    silent = upstream.next()
    strict.appended(location, upstream.url("/bytes", count=15, piece=1, delay_ms=150))
    frames = strict.frames(location, ended(1, 2))
    assert kinds_of(frames, 1) == "SDE"
    assert body_of(frames, 1) == pattern(10)
    error = next(each for each in frames if each.type == "E")
    assert error.json["code"] == "UPSTREAM_TIMEOUT"
    assert "2 s" in error.json["message"]
    silent.wait_for_disconnect()
    assert kinds_of(frames, 2) == "SDC", "longer than that in all, but never silent for so long"
    assert body_of(frames, 2) == pattern(15)


@pytest.mark.spec("proxy 9.1-1", "proxy 9.1-2", "proxy 8.4-1", "proxy 13.2-2")
def test_times_unless_settings_say_otherwise(strict) -> None:
    settings = ProxySettings()
    assert settings.header_timeout_s == 60
    assert settings.inactivity_timeout_s == 600
    assert settings.url_ttl_s == 86_400
    assert settings.url_ttl_max_s == 7 * 86_400
