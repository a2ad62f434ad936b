"""Append: a further response in a stream that is there."""

import pytest

from tests.proxy.proxying import (
    SECRET,
    body_of,
    check_error,
    ended,
    expired,
    expires_of,
    id_of,
    kinds_of,
    sign,
)


@pytest.mark.spec("proxy 4.3-1", "proxy 4.3-5", "proxy 5.3-2")
def test_the_answer_of_an_append(proxy, server, upstream) -> None:
    location = proxy.created(upstream.url("/fixed", body="one"))
    before = proxy.frames(location)
    tail = proxy.client.get(location).headers["stream-next-offset"]
    answer = proxy.append(location, upstream.url("/fixed", body="two", type="text/x-two"))
    assert answer.status_code == 200
    assert answer.content == b""
    assert answer.headers["upstream-content-type"] == "text/x-two"
    assert answer.headers["stream-response-id"] == "2"
    assert answer.headers["stream-start-offset"] == tail
    assert answer.headers["cache-control"] == "no-store"
    fresh, stream_id = answer.headers["location"], id_of(location)
    assert fresh == f"{server.url}/v1/proxy/{stream_id}?{sign(stream_id, expires_of(fresh))}"
    frames = proxy.frames(fresh, ended(2))
    assert frames[: len(before)] == before
    assert kinds_of(frames, 2) == "SDC"
    assert body_of(frames, 2) == b"two"


@pytest.mark.spec("proxy 4.3-1", "proxy 5.3-2")
def test_ids_count_up(proxy, upstream) -> None:
    location = proxy.connected()
    for expected in range(1, 6):
        assert proxy.appended(location, upstream.url("/fixed", body=expected)) == expected
        frames = proxy.frames(location, ended(expected))
        assert body_of(frames, expected) == b"%d" % expected


@pytest.mark.spec("proxy 4.3-2", "proxy 8.5-1", "proxy 4.3-6", "proxy 8.4-5")
def test_expired_urls_will_do_and_lead_to_fresh_ones(proxy, upstream) -> None:
    location = proxy.created(upstream.url())
    old = expired(location)
    check_error(proxy.client.get(old), 401, "SIGNATURE_EXPIRED")
    answer = proxy.append(old, upstream.url("/fixed", body="two"))
    assert answer.status_code == 200
    assert expires_of(answer.headers["location"]) > expires_of(old)
    assert body_of(proxy.frames(answer.headers["location"], ended(2)), 2) == b"two"


@pytest.mark.spec("proxy 4.3-6", "proxy 8.4-5", "proxy 4.4-15")
def test_every_success_has_a_fresh_url(proxy, upstream) -> None:
    location = proxy.connected()
    for ttl in ("1000", "3000", "2000"):
        headers = {"Stream-Signed-URL-TTL": ttl}
        before = expires_of(location)
        location = proxy.append(location, upstream.url(), headers=headers).headers["location"]
        assert expires_of(location) != before
        assert proxy.client.get(location).status_code == 200


@pytest.mark.parametrize(
    "form",
    [
        "{location}",
        "http://elsewhere.example/other/prefix/{id}?{query}",
        "/v1/proxy/{id}?{query}",
        "{id}?{query}",
        "{location}&offset=5&live=sse",
    ],
)
def test_only_the_end_of_the_url_matters(proxy, upstream, form) -> None:
    """A proxy in front of the server may have another name and path for it."""
    location = proxy.created(upstream.url())
    stream_id = id_of(location)
    query = location.partition("?")[2]
    assert proxy.appended(form.format(location=location, id=stream_id, query=query), upstream.url())


@pytest.mark.spec("proxy 4.3-7")
@pytest.mark.parametrize(
    "form",
    [
        "nonsense",
        "",
        "http://[::1/x?expires=1&signature=x",
        "{base}",
        "{base}?",
        "{base}?expires={expires}",
        "{base}?signature={signature}",
        "{base}?expires={expires}&expires={expires}&signature={signature}",
        "{base}?expires={expires}&signature={signature}&signature={signature}",
        "{base}/?expires={expires}&signature={signature}",
        "http://127.0.0.1/v1/proxy/?expires={expires}&signature={signature}",
        "{base}?expires={expires}&signature={signature}" + "&x=1" * 30,
    ],
)
def test_urls_that_are_no_signed_ones(proxy, upstream, form) -> None:
    location = proxy.connected()
    base, _, query = location.partition("?")
    expires, signature = (part.partition("=")[2] for part in query.split("&"))
    text = form.format(base=base, expires=expires, signature=signature)
    check_error(proxy.append(text, upstream.url()), 400, "MALFORMED_STREAM_URL")
    assert not upstream.requests


@pytest.mark.spec("proxy 4.3-8", "proxy 8.2-4", "proxy 8.3-3", "proxy 13.3-1")
def test_signatures_that_are_not_good(proxy, upstream) -> None:
    location = proxy.connected()
    base, _, query = location.partition("?")
    stream_id, expires = id_of(location), expires_of(location)
    other = id_of(proxy.connected())
    for wrong in (
        f"expires={expires}&signature=",
        f"expires={expires}&signature=x",
        f"expires={expires + 1}&{query.partition('&')[2]}",
        sign(stream_id, expires, "another secret"),
        sign(other, expires),
        f"{query}%3D",
        query.swapcase(),
    ):
        url = f"{base}?{wrong}".replace("EXPIRES", "expires").replace("SIGNATURE", "signature")
        check_error(proxy.append(url, upstream.url()), 401, "SIGNATURE_INVALID")
    for url in (f"{base}x?{query}", f"http://127.0.0.1/v1/proxy/not-a-uuid?{query}"):
        check_error(proxy.append(url, upstream.url()), 401, "SIGNATURE_INVALID")
    assert not upstream.requests


@pytest.mark.spec("proxy 4.3-9")
def test_streams_that_are_not_there(proxy, upstream) -> None:
    location = proxy.created(upstream.url())
    proxy.client.delete(location, headers=proxy.service)
    upstream.next()
    check_error(proxy.append(location, upstream.url()), 404, "STREAM_NOT_FOUND")
    unknown = f"/v1/proxy/not-a-uuid?{sign('not-a-uuid', 1)}"
    check_error(proxy.append(unknown, upstream.url()), 404, "STREAM_NOT_FOUND")
    assert len(upstream.requests) == 1


@pytest.mark.spec("proxy 4.3-10", "proxy 4.9-2", "proxy 12.5-1")
def test_closed_streams(proxy, upstream) -> None:
    location = proxy.created(upstream.url("/fixed", body="kept"))
    proxy.frames(location)
    upstream.next()
    assert proxy.close(location).status_code == 204
    answer = proxy.append(location, upstream.url())
    check_error(answer, 409, "STREAM_CLOSED")
    assert answer.headers["stream-closed"] == "true"
    assert len(upstream.requests) == 1
    read = proxy.client.get(location)
    assert read.headers["stream-closed"] == "true"
    assert b"kept" in read.content


@pytest.mark.spec("proxy 4.3-3", "proxy 4.3-4")
def test_what_is_checked_first_is_told_first(proxy, upstream) -> None:
    """Each request has all the faults of those after it."""
    closed = proxy.connected()
    proxy.close(closed)
    gone = proxy.connected()
    proxy.client.delete(gone, headers=proxy.service)
    forged = f"{gone.partition('?')[0]}?{sign(id_of(gone), 1, SECRET[:-1])}"
    url = "http://192.0.2.1/not/allowed"
    faults = [
        ("nonsense", {"Authorization": "Bearer wrong"}, 401, "INVALID_SECRET"),
        ("nonsense", {}, 400, "MALFORMED_STREAM_URL"),
        (forged, {}, 401, "SIGNATURE_INVALID"),
        (expired(gone), {}, 404, "STREAM_NOT_FOUND"),
        (expired(closed), {}, 409, "STREAM_CLOSED"),
        (expired(proxy.connected()), {}, 403, "UPSTREAM_NOT_ALLOWED"),
    ]
    for location, headers, status, code in faults:
        check_error(proxy.append(location, url, headers=headers), status, code)


@pytest.mark.spec("proxy 4.3-11")
def test_what_can_be_wrong_with_a_create_can_be_wrong_here(proxy, upstream) -> None:
    location = proxy.connected()
    use = {"Use-Stream-URL": location}
    for headers, status, code in [
        ({"Upstream-Method": "GET"}, 400, "MISSING_UPSTREAM_URL"),
        ({"Upstream-URL": upstream.url()}, 400, "MISSING_UPSTREAM_METHOD"),
        ({"Upstream-URL": upstream.url(), "Upstream-Method": "X"}, 400, "INVALID_UPSTREAM_METHOD"),
    ]:
        check_error(proxy.post(use | headers), status, code)
    assert not upstream.requests
    answer = proxy.append(location, upstream.url("/redirect"))
    check_error(answer, 400, "REDIRECT_NOT_ALLOWED")
    answer = proxy.append(location, upstream.url("/fixed", body="no", status=418))
    assert (answer.status_code, answer.headers["upstream-status"]) == (502, "418")
    assert answer.content == b"no"
    assert proxy.now(location) == []
