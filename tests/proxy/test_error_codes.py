"""Every error code of the specification, once each."""

from pathlib import Path

import httpx
import pytest

import holdfast.errors.proxy
from holdfast.errors import HoldfastError
from tests.proxy.proxying import (
    ALLOWLIST,
    PATH,
    SECRET,
    Proxy,
    check_error,
    expired,
)
from tests.server_process import ServerProcess

pytestmark = pytest.mark.spec("proxy 12-1")


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """The proxy of a server that takes one stream in a bucket, and has little patience."""
    data_dir: Path = tmp_path_factory.mktemp("full") / "data"
    settings = {"proxy_secret": SECRET, "proxy_allowlist": ALLOWLIST, "bucket_streams_max": 1}
    with ServerProcess(data_dir, **settings, proxy_header_timeout=1.5) as process:
        with httpx.Client(base_url=process.url, timeout=20) as client:
            proxy = Proxy(client)
            proxy.connected("the only one")
            yield proxy


def missing_url(proxy, _upstream):
    return proxy.post({"Upstream-Method": "GET"})


def missing_method(proxy, upstream):
    return proxy.post({"Upstream-URL": upstream.url()})


def invalid_method(proxy, upstream):
    return proxy.create(upstream.url(), "HEAD")


def redirect(proxy, upstream):
    return proxy.create(upstream.url("/redirect"))


def invalid_action(proxy, _upstream):
    return proxy.client.patch(f"{proxy.connected()}&action=close")


def malformed_url(proxy, upstream):
    return proxy.append("nonsense", upstream.url())


def missing_secret(proxy, _upstream):
    return proxy.client.post(PATH, headers={"Session-Id": "x"})


def invalid_secret(proxy, _upstream):
    return proxy.client.post(PATH, headers={"Authorization": "Bearer x"})


def signature_expired(proxy, _upstream):
    return proxy.client.get(expired(proxy.connected()))


def signature_invalid(proxy, _upstream):
    return proxy.client.get(f"{proxy.connected()}x")


def missing_signature(proxy, _upstream):
    return proxy.client.get(proxy.connected().partition("?")[0])


def connect_rejected(proxy, upstream):
    return proxy.connect(headers={"Upstream-URL": upstream.url("/auth", status=403)})


def not_allowed(proxy, _upstream):
    return proxy.create("https://example.com/")


def broken_upstream(proxy, upstream):
    return proxy.create(upstream.url("/raw", body="nonsense"))


def stream_closed(proxy, upstream):
    location = proxy.connected()
    proxy.close(location)
    return proxy.append(location, upstream.url())


def not_found(proxy, _upstream):
    return proxy.client.get(f"{PATH}/a/b", headers=proxy.service)


def stream_not_found(proxy, _upstream):
    return proxy.client.get(f"{PATH}/x", headers=proxy.service)


CASES = [
    pytest.param(missing_url, 400, "MISSING_UPSTREAM_URL", marks=pytest.mark.spec("proxy 12.1-1")),
    (missing_method, 400, "MISSING_UPSTREAM_METHOD"),
    (invalid_method, 400, "INVALID_UPSTREAM_METHOD"),
    (redirect, 400, "REDIRECT_NOT_ALLOWED"),
    (invalid_action, 400, "INVALID_ACTION"),
    (malformed_url, 400, "MALFORMED_STREAM_URL"),
    pytest.param(missing_secret, 401, "MISSING_SECRET", marks=pytest.mark.spec("proxy 12.2-1")),
    (invalid_secret, 401, "INVALID_SECRET"),
    (signature_expired, 401, "SIGNATURE_EXPIRED"),
    (signature_invalid, 401, "SIGNATURE_INVALID"),
    (missing_signature, 401, "MISSING_SIGNATURE"),
    (connect_rejected, 401, "CONNECT_REJECTED"),
    pytest.param(not_allowed, 403, "UPSTREAM_NOT_ALLOWED", marks=pytest.mark.spec("proxy 12.3-1")),
    pytest.param(broken_upstream, 502, "UPSTREAM_ERROR", marks=pytest.mark.spec("proxy 12.4-1")),
    pytest.param(stream_closed, 409, "STREAM_CLOSED", marks=pytest.mark.spec("proxy 12.5-1")),
    pytest.param(not_found, 404, "NOT_FOUND", marks=pytest.mark.spec("proxy 12.6-1")),
    (stream_not_found, 404, "STREAM_NOT_FOUND"),
]
# Those that take a server of their own, below.
ELSEWHERE = {"STORAGE_ERROR", "UPSTREAM_TIMEOUT"}


@pytest.mark.parametrize(("ask", "status", "code"), CASES)
def test_an_error(proxy, upstream, ask, status, code) -> None:
    error = check_error(ask(proxy, upstream), status, code)
    more = {"renewable", "streamId"} if code == "SIGNATURE_EXPIRED" else set()
    assert set(error) == {"code", "message"} | more


@pytest.mark.spec("proxy 12.4-2")
def test_a_stream_that_cannot_be_created(full, upstream) -> None:
    """A storage failure; the upstream is not left waiting for a reader."""
    check_error(full.connect("another one"), 502, "STORAGE_ERROR")
    url = upstream.url("/bytes", count=10, gate=1)
    check_error(full.create(url), 502, "STORAGE_ERROR")
    upstream.next().wait_for_disconnect()
    assert full.append(full.connected("the only one"), upstream.url()).status_code == 200


@pytest.mark.spec("proxy 12.4-1")
def test_an_upstream_that_takes_too_long(full, upstream) -> None:
    check_error(full.create(upstream.url("/never")), 504, "UPSTREAM_TIMEOUT")


def test_the_table_has_every_code() -> None:
    tested = {getattr(case, "values", case)[2] for case in CASES}
    assert not tested & ELSEWHERE
    codes = {
        each.code
        for each in vars(holdfast.errors.proxy).values()
        if isinstance(each, type)
        and issubclass(each, HoldfastError)
        and each.__module__ == "holdfast.errors.proxy"
    }
    assert tested | ELSEWHERE == codes


def test_the_table_has_the_statuses_of_the_classes(proxy) -> None:
    for case in CASES:
        _, status, code = getattr(case, "values", case)
        (found,) = (
            each
            for each in vars(holdfast.errors.proxy).values()
            if isinstance(each, type) and getattr(each, "code", "") == code
        )
        assert found.status == status
