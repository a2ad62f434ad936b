"""HEAD and DELETE, which are for services."""

import pytest

from tests.proxy.proxying import PATH, SECRET, check_error, expired, id_of


@pytest.mark.spec("proxy 4.7-1", "proxy 4.7-3", "proxy 10.1-1")
def test_head(proxy, upstream) -> None:
    location = proxy.created(upstream.url("/fixed", body="hello"))
    proxy.frames(location)
    size = len(proxy.client.get(location).content)
    path = f"{PATH}/{id_of(location)}"
    for answer in (
        proxy.client.head(path, headers=proxy.service),
        proxy.client.head(f"{path}?secret={SECRET}"),
        proxy.client.head(expired(location), headers=proxy.service),
    ):
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-type"] == "application/octet-stream"
        assert int(answer.headers["stream-next-offset"]) == size
        assert answer.headers["cache-control"] == "no-store"
        assert "etag" in answer.headers
    proxy.close(location)
    assert proxy.client.head(path, headers=proxy.service).headers["stream-closed"] == "true"


@pytest.mark.spec("proxy 4.7-2", "proxy 4.7-3", "proxy 8.3-2", "proxy 10.1-1")
def test_head_with_a_signed_url(proxy, upstream) -> None:
    location = proxy.created(upstream.url())
    assert proxy.client.head(location).status_code == 401
    assert proxy.client.head(location.partition("?")[0]).status_code == 401
    wrong = {"Authorization": "Bearer wrong"}
    assert proxy.client.head(location, headers=wrong).status_code == 401


@pytest.mark.spec("proxy 4.7-3")
def test_head_of_nothing(proxy) -> None:
    assert proxy.client.head(f"{PATH}/x", headers=proxy.service).status_code == 404


@pytest.mark.spec("proxy 4.8-1", "proxy 4.8-4", "proxy 10.1-1")
def test_delete(proxy, upstream) -> None:
    location = proxy.created(upstream.url("/fixed", body="hello"))
    proxy.frames(location)
    path = f"{PATH}/{id_of(location)}"
    for _ in range(3):
        answer = proxy.client.delete(path, headers=proxy.service)
        assert (answer.status_code, answer.content) == (204, b"")
    assert proxy.client.delete(f"{path}?secret={SECRET}").status_code == 204
    check_error(proxy.client.get(location), 404, "STREAM_NOT_FOUND")
    assert proxy.client.head(path, headers=proxy.service).status_code == 404
    assert id_of(location) not in proxy.streams()


@pytest.mark.spec("proxy 4.8-4")
def test_delete_of_what_never_was(proxy) -> None:
    for name in ("x", "%C3%BC", "00000000-0000-4000-8000-000000000000"):
        assert proxy.client.delete(f"{PATH}/{name}", headers=proxy.service).status_code == 204


@pytest.mark.spec("proxy 4.8-3", "proxy 8.3-2", "proxy 10.1-1")
def test_delete_with_a_signed_url(proxy, upstream) -> None:
    location = proxy.created(upstream.url())
    check_error(proxy.client.delete(location), 401, "MISSING_SECRET")
    wrong = {"Authorization": "Bearer wrong"}
    check_error(proxy.client.delete(location, headers=wrong), 401, "INVALID_SECRET")
    assert proxy.client.get(location).status_code == 200


@pytest.mark.spec("proxy 4.8-2")
def test_delete_ends_the_upstreams(proxy, upstream) -> None:
    location = proxy.connected()
    for _ in range(2):
        proxy.appended(location, upstream.url("/bytes", count=9, gate=1))
    requests = [upstream.next(), upstream.next()]
    assert proxy.client.delete(location, headers=proxy.service).status_code == 204
    for request in requests:
        request.wait_for_disconnect()
    check_error(proxy.client.get(location), 404, "STREAM_NOT_FOUND")
