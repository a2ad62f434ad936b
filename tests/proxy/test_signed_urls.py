"""Signed URLs: what they are good for, and until when."""

import time
from base64 import urlsafe_b64encode
from uuid import UUID, uuid4

import pytest

from tests.proxy.proxying import (
    PATH,
    SECRET,
    check_error,
    expired,
    expires_of,
    id_of,
    sign,
)

ACTIONS = [("GET", ""), ("GET", "&offset=-1&live=long-poll"), ("PATCH", "&action=abort")]


def signature_of(location: str) -> str:
    return location.rpartition("signature=")[2]


@pytest.mark.spec("proxy 8.1-1", "proxy 8.2-1")
def test_urls_are_signed_as_documented(proxy) -> None:
    location = proxy.connected()
    signature = signature_of(location)
    assert len(signature) == 43, "256 bits in base64url, without padding"
    assert "=" not in signature
    assert location.endswith(sign(id_of(location), expires_of(location)))


@pytest.mark.spec("proxy 8.3-1")
@pytest.mark.parametrize(("method", "query"), ACTIONS)
def test_a_signature_made_elsewhere_is_as_good(proxy, method, query) -> None:
    stream_id = id_of(proxy.connected())
    url = f"{PATH}/{stream_id}?{sign(stream_id, int(time.time()) + 100)}"
    assert proxy.client.request(method, url + query).status_code in {200, 204}


@pytest.mark.spec("proxy 8.2-4", "proxy 4.5-11", "proxy 8.5-2")
@pytest.mark.parametrize(("method", "query"), ACTIONS)
def test_signatures_that_are_not_good(proxy, method, query) -> None:
    location = proxy.connected()
    stream_id, expires, signature = id_of(location), expires_of(location), signature_of(location)
    other = id_of(proxy.connected())
    swapped = ("A" if signature[0] != "A" else "B") + signature[1:]
    for wrong in (
        f"expires={expires}&signature=",
        f"expires={expires}&signature={swapped}",
        f"expires={expires}&signature={signature[:-1]}",
        f"expires={expires}&signature={signature}=",
        f"expires={expires}&signature={signature}%00",
        f"expires={expires}&signature=%C3%BC",
        f"expires={expires + 1}&signature={signature}",
        f"expires=0{expires}&signature={signature}",
        f"expires=&signature={signature}",
        f"expires=x&signature={signature}",
        f"expires=%D9%A1&signature={signature}",
        sign(stream_id, expires, SECRET.upper()),
        sign(stream_id, expires, ""),
        sign(other, expires),
        sign(stream_id.upper(), expires),
        sign(stream_id, "x"),
        sign(stream_id, "-1"),
        sign(stream_id, "1.5e9"),
        f"expires={expires}&signature={urlsafe_b64encode(SECRET.encode()).decode()}",
    ):
        answer = proxy.client.request(method, f"{PATH}/{stream_id}?{wrong}{query}")
        check_error(answer, 401, "SIGNATURE_INVALID")
        assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.spec("proxy 8.3-3", "proxy 8.2-4")
@pytest.mark.parametrize(("method", "query"), ACTIONS)
def test_urls_are_good_for_one_stream(proxy, method, query) -> None:
    location, other = proxy.connected(), proxy.connected()
    url = f"{PATH}/{id_of(other)}?{location.partition('?')[2]}{query}"
    check_error(proxy.client.request(method, url), 401, "SIGNATURE_INVALID")


@pytest.mark.spec("proxy 8.2-3", "proxy 8.5-2", "proxy 4.5-8", "proxy 4.5-9", "proxy 4.5-10")
@pytest.mark.parametrize(("method", "query"), ACTIONS)
def test_urls_that_have_expired(proxy, upstream, method, query) -> None:
    for location, renewable in (
        (proxy.connected(), True),
        (proxy.created(upstream.url()), False),
    ):
        assert UUID(id_of(location)).version == (5 if renewable else 4)
        error = check_error(
            proxy.client.request(method, expired(location) + query), 401, "SIGNATURE_EXPIRED"
        )
        assert set(error) == {"code", "message", "renewable", "streamId"}
        assert error["renewable"] is renewable
        assert error["streamId"] == id_of(location)
        assert error["message"] == "Pre-signed URL has expired"


@pytest.mark.spec("proxy 4.5-10")
def test_an_append_makes_no_url_renewable(proxy, upstream) -> None:
    """Not even one that named a session."""
    location = proxy.created(upstream.url(), headers={})
    proxy.append(location, upstream.url(), headers={"Session-Id": uuid4().hex})
    error = check_error(proxy.client.get(expired(location)), 401, "SIGNATURE_EXPIRED")
    assert error["renewable"] is False


@pytest.mark.spec("proxy 4.5-11", "proxy 8.2-4")
def test_a_bad_signature_is_told_before_an_expired_one(proxy) -> None:
    location = proxy.connected()
    for wrong in (expired(location, "another secret"), f"{expired(location)}x"):
        error = check_error(proxy.client.get(wrong), 401, "SIGNATURE_INVALID")
        assert set(error) == {"code", "message"}


@pytest.mark.spec("proxy 8.2-3")
@pytest.mark.parametrize("expires", ["0", "1", "00000000001", "9" * 30])
def test_odd_times(proxy, expires) -> None:
    stream_id = id_of(proxy.connected())
    url = f"{PATH}/{stream_id}?{sign(stream_id, expires)}"
    check_error(proxy.client.get(url), 401, "SIGNATURE_EXPIRED")


@pytest.mark.spec("proxy 8.2-3")
def test_a_url_is_good_until_its_time_and_not_longer(proxy) -> None:
    stream_id = id_of(proxy.connected())
    now_s = int(time.time())
    past, future = (f"{PATH}/{stream_id}?{sign(stream_id, now_s + each)}" for each in (0, 60))
    check_error(proxy.client.get(past), 401, "SIGNATURE_EXPIRED")
    assert proxy.client.get(future).status_code == 200


@pytest.mark.spec("proxy 12.2-1", "proxy 4.5-7")
@pytest.mark.parametrize("query", ["", "?expires=1", "?signature=x", "?offset=-1"])
def test_what_is_no_signed_url(proxy, query) -> None:
    path = f"{PATH}/{id_of(proxy.connected())}"
    check_error(proxy.client.get(path + query), 401, "MISSING_SIGNATURE")
    mark = "&" if query else "?"
    answer = proxy.client.patch(f"{path}{query}{mark}action=abort")
    check_error(answer, 401, "MISSING_SIGNATURE")


def test_parameters_come_once(proxy) -> None:
    location = proxy.connected()
    for more in ("expires=1", f"signature={signature_of(location)}"):
        assert proxy.client.get(f"{location}&{more}").status_code == 400


@pytest.mark.spec("proxy 13.7-1")
def test_the_id_alone_is_of_no_use(proxy) -> None:
    stream_id = id_of(proxy.connected())
    for method in ("GET", "HEAD", "PATCH", "DELETE"):
        answer = proxy.client.request(method, f"{PATH}/{stream_id}?action=abort")
        assert answer.status_code == 401
