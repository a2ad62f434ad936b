"""What a POST is follows from its headers."""

from uuid import UUID, uuid4

import pytest

from tests.proxy.proxying import check_error, id_of


@pytest.mark.spec("proxy 4.1-3", "proxy 3-1")
def test_without_either_header_it_is_a_create(proxy, upstream) -> None:
    answer = proxy.create(upstream.url())
    assert answer.status_code == 201
    assert UUID(id_of(answer.headers["location"])).version == 4


@pytest.mark.spec("proxy 4.1-2")
def test_with_a_session_it_is_a_connect(proxy, upstream) -> None:
    answer = proxy.connect()
    assert answer.status_code == 201
    assert UUID(id_of(answer.headers["location"])).version == 5
    assert not upstream.requests


@pytest.mark.spec("proxy 4.1-1")
def test_with_a_stream_url_it_is_an_append(proxy, upstream) -> None:
    location = proxy.created(upstream.url())
    answer = proxy.append(location, upstream.url())
    assert answer.status_code == 200
    assert id_of(answer.headers["location"]) == id_of(location)


@pytest.mark.spec("proxy 4.1-4")
def test_a_stream_url_comes_before_a_session(proxy, upstream) -> None:
    location = proxy.created(upstream.url())
    session_id = uuid4().hex
    answer = proxy.append(location, upstream.url(), headers={"Session-Id": session_id})
    assert answer.status_code == 200
    assert answer.headers["stream-response-id"] == "2"
    assert id_of(answer.headers["location"]) == id_of(location)
    assert proxy.connect(session_id).status_code == 201, "the append has connected nothing"


def test_a_bad_stream_url_is_not_passed_over_for_a_session(proxy, upstream) -> None:
    answer = proxy.append("nonsense", upstream.url(), headers={"Session-Id": uuid4().hex})
    check_error(answer, 400, "MALFORMED_STREAM_URL")


@pytest.mark.parametrize("value", ["", "x" * 1025, "ü" * 513])
def test_session_ids_have_a_length(proxy, value) -> None:
    answer = proxy.post({"Session-Id": value.encode()})
    assert answer.status_code == 400
    assert "Session-Id" in answer.json()["error"]["message"]


def test_a_slash_at_the_end_is_no_stream(proxy, upstream) -> None:
    headers = {"Upstream-URL": upstream.url(), "Upstream-Method": "GET"}
    answer = proxy.client.post("/v1/proxy/", headers=proxy.service | headers)
    assert answer.status_code == 201
    location = answer.headers["location"]
    assert f"/v1/proxy/{id_of(location)}?" in location


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "HEAD"])
def test_the_proxy_itself_takes_posts_only(proxy, method) -> None:
    answer = proxy.client.request(method, "/v1/proxy", headers=proxy.service)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "OPTIONS, POST"


@pytest.mark.spec("proxy 3-1")
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_streams_take_neither_post_nor_put(proxy, upstream, method) -> None:
    location = proxy.created(upstream.url())
    answer = proxy.client.request(method, location, headers=proxy.service)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "DELETE, GET, HEAD, OPTIONS, PATCH"


@pytest.mark.parametrize("path", ["/v1/proxy/a/b", "/v1/proxy//", "/v1/proxy/a/"])
def test_there_is_nothing_below_streams(proxy, path) -> None:
    check_error(proxy.client.get(path, headers=proxy.service), 404, "NOT_FOUND")


@pytest.mark.parametrize("path", ["/v1/proxys", "/v1/proxy-x", "/v1/prox"])
def test_other_paths_are_not_the_proxys(proxy, path) -> None:
    assert proxy.client.get(path, headers=proxy.service).json()["error"]["code"] == "not_found"
