"""Proxy streams by the base protocol: for services only, and never to be written to."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

from holdfast.http.app import TREE
from holdfast.http.storage_routes import DATA_BYTES_MAX
from holdfast.http.storage_routes import RESOURCES as PACKS
from tests.proxy.proxying import (
    PATH,
    SECRET,
    check_error,
    ended,
    frames_of,
    id_of,
    kinds_of,
)
from tests.storage_stats import flush
from tests.thorough import for_each
from tests.upstreams import pattern

ID = "{id}"
OFFSET = "0" * 20


def routes():
    """Every method and path that leads to streams of the proxy's bucket."""
    yield from product(TREE.stream.routes, [f"/v1/stream/_proxy/{ID}", f"/_proxy/{ID}"])
    yield from product(TREE.bucket.routes, ["/_proxy"])
    for below, resource in TREE.of_bucket.items():
        path = "/_proxy/streams" + (f"/{below.decode()}" if below else "")
        yield from product(resource.routes, [path])
    for below, resource in TREE.of_stream.items():
        yield from product(resource.routes, [f"/_proxy/{ID}/{below.decode()}"])
    yield from product(TREE.snapshot.routes, [f"/_proxy/{ID}/snapshot/{OFFSET}"])
    for path, resource in PACKS.items():
        if path.startswith(b"/cluster/packs"):
            yield from product(resource.routes, [path.decode()])


ROUTES = sorted((method.decode(), path) for method, path in routes())
READING = [
    (f"/v1/stream/_proxy/{ID}", ""),
    (f"/_proxy/{ID}", ""),
    (f"/_proxy/{ID}", "?offset=-1&live=long-poll"),
    ("/_proxy", ""),
    ("/_proxy/streams", ""),
    ("/_proxy/streams/changes", "?after=-1"),
    ("/_proxy/streams/scan", ""),
    ("/_proxy/streams/scan/ranges", ""),
    ("/_proxy/streams/scan/until", ""),
    ("/_proxy/streams/scan/forks", ""),
    ("/_proxy/streams/scan/inherited", ""),
    ("/_proxy/streams/records", ""),
    (f"/_proxy/{ID}/bootstrap", ""),
    ("/cluster/packs", ""),
]


@pytest.fixture(scope="module")
def location(proxy) -> str:
    """A stream of a session, which is there for all tests."""
    return proxy.connected("the one of the other surfaces")


def test_there_are_routes() -> None:
    assert len(ROUTES) > 40


@for_each(("method", "path"), ROUTES)
def test_no_route_is_open(proxy, location, method, path) -> None:
    path = path.format(id=id_of(location))
    if method == "OPTIONS":
        assert proxy.client.options(path).status_code == 204
        return
    signed = location.partition("?")[2]
    wrong = {"Authorization": "Bearer wrong"}
    for query, headers, code in [
        ("", {}, "MISSING_SECRET"),
        (f"?{signed}", {}, "MISSING_SECRET"),
        ("?secret=wrong", {}, "INVALID_SECRET"),
        ("", wrong, "INVALID_SECRET"),
    ]:
        answer = proxy.client.request(method, path + query, headers=headers)
        assert answer.status_code == 401, answer.text
        if method != "HEAD":
            check_error(answer, 401, code)


@pytest.mark.parametrize(("path", "query"), READING)
def test_services_may_read(proxy, upstream, path, query) -> None:
    location = proxy.created(upstream.url("/fixed", body="x"))
    proxy.frames(location)
    path = path.format(id=id_of(location))
    answer = proxy.client.get(path + query, headers=proxy.service)
    assert answer.status_code == 200, answer.text
    mark = "&" if query else "?"
    assert proxy.client.get(f"{path}{query}{mark}secret={SECRET}").status_code == 200


@pytest.mark.spec("proxy 1.1-2")
def test_what_is_read_is_the_same_everywhere(proxy, upstream) -> None:
    location = proxy.created(upstream.url("/bytes", count=5000))
    proxy.frames(location)
    stream_id, service = id_of(location), proxy.service
    whole = proxy.client.get(location).content
    for path in (f"/v1/stream/_proxy/{stream_id}", f"/_proxy/{stream_id}"):
        assert proxy.client.get(path, headers=service).content == whole
        head = proxy.client.head(path, headers=service)
        assert int(head.headers["stream-next-offset"]) == len(whole)
    bootstrap = proxy.client.get(f"/_proxy/{stream_id}/bootstrap", headers=service)
    assert pattern(5000) in bootstrap.content
    records = proxy.client.get(f"/_proxy/streams/records?prefix={stream_id}", headers=service)
    assert records.status_code == 200
    assert records.content
    changes = proxy.client.get("/_proxy/streams/changes?after=-1", headers=service)
    assert stream_id in changes.text


def test_packs_can_be_read_by_services(proxy, upstream) -> None:
    """Without access control they would be open, and there are proxy streams in them."""
    stream_id = id_of(proxy.created(upstream.url("/fixed", body="a secret answer")))
    proxy.frames(f"/v1/proxy/{stream_id}?secret={SECRET}")
    flush(proxy.client)
    assert proxy.client.get("/cluster/packs").status_code == 401
    found = b""
    for line in proxy.client.get("/cluster/packs", headers=proxy.service).text.splitlines():
        pack = json.loads(line)
        extents = {"pack": pack["name"]}
        # Other tests of this server may have filled it.
        data = extents | {"at": 0, "size": min(pack["size_bytes"], DATA_BYTES_MAX)}
        assert proxy.client.get("/cluster/packs/extents", params=extents).status_code == 401
        assert proxy.client.get("/cluster/packs/data", params=data).status_code == 401
        for at in range(0, pack["size_bytes"], DATA_BYTES_MAX):
            left = pack["size_bytes"] - at
            part = extents | {"at": at, "size": min(left, DATA_BYTES_MAX)}
            read = proxy.client.get("/cluster/packs/data", params=part, headers=proxy.service)
            assert read.status_code == 200
            found += read.content
    assert b"a secret answer" in found
    for path in ("/metrics", "/cluster/status", "/cluster/hot-cold-stats", "/cluster/store"):
        assert stream_id not in proxy.client.get(path).text


@pytest.mark.parametrize(
    "path",
    [
        "/v1/stream/%5Fproxy/{id}",
        "/v1/stream/%5fproxy/{id}",
        "/v1/stream/_prox%79/{id}",
        "/v1/stream/_proxy%2F{id}",
        "/v1/stream//_proxy/{id}",
        "/v1/stream/x/../_proxy/{id}",
        "/v1/stream/./_proxy/{id}",
        "/v1/stream/_default/../_proxy/{id}",
        "/v1/%73tream/_proxy/{id}",
        "/%5Fproxy/{id}",
        "/%5Fproxy/streams",
        "/%5Fproxy/streams/scan",
        "/%5Fproxy/{id}/bootstrap",
        "/_prox%79/streams",
        "//_proxy/{id}",
        "/x/../_proxy/{id}",
        "/_PROXY/{id}",
        "/cluster%2Fpacks",
        "/cluster/%70acks",
        "/cluster//packs",
    ],
)
def test_no_other_spelling_is_open(proxy, location, connect, path) -> None:
    target = path.format(id=id_of(location))
    for prefix in ("", f"http://127.0.0.1:{proxy.client.base_url.port}"):
        connection = connect()
        connection.request("GET", prefix + target)
        answer = connection.response()
        assert answer.status in {400, 401, 404}, answer.body
        connection.request("DELETE", prefix + target)
        assert connection.response().status in {400, 401, 404, 405}
    assert proxy.client.get(location).status_code == 200


def test_a_target_with_a_host_is_guarded_as_well(proxy, location, connect) -> None:
    connection = connect()
    base = f"http://127.0.0.1:{proxy.client.base_url.port}"
    for path in (proxy.base_path(location), f"/_proxy/{id_of(location)}", f"{PATH}/x"):
        connection.request("GET", base + path)
        assert connection.response().status == 401


def test_the_bucket_itself_tells_strangers_nothing(proxy, location) -> None:
    for path in ("/_proxy", "/%5Fproxy"):
        answer = proxy.client.get(path)
        assert answer.status_code in {400, 401, 404}
        assert "streams" not in answer.json()


@for_each(("method", "path"), ROUTES)
def test_only_the_proxy_writes(proxy, location, method, path) -> None:
    """Not even services do, but to close and to delete."""
    if method not in {"PUT", "POST", "DELETE"} or (method == "DELETE" and path.endswith(ID)):
        return
    headers = proxy.service | {"Content-Type": "application/octet-stream"}
    before = proxy.client.get(location).headers["etag"]
    path = path.format(id=id_of(location))
    answer = proxy.client.request(method, path, headers=headers, content=b"x")
    assert answer.status_code == 403, answer.text
    assert "Only the proxy" in answer.json()["error"]["message"]
    assert proxy.client.get(location).headers["etag"] == before


@pytest.mark.parametrize(
    ("more", "content"),
    [
        ({}, b""),
        ({}, b"D\x00\x00\x00\x01\x00\x00\x00\x00"),
        ({"Stream-Closed": "true"}, b"x"),
        ({"Stream-Closed": "false"}, b""),
        ({"Stream-Seq": "1"}, b"x"),
        ({"Producer-Id": "proxy-0", "Producer-Epoch": "9", "Producer-Seq": "0"}, b"x"),
    ],
)
def test_appends_are_refused(proxy, location, more, content) -> None:
    headers = proxy.service | {"Content-Type": "application/octet-stream"} | more
    for path in (proxy.base_path(location), f"/_proxy/{id_of(location)}"):
        answer = proxy.client.post(path, headers=headers, content=content)
        assert answer.status_code == 403, answer.text
        chunked = proxy.client.post(path, headers=headers, content=iter([content]))
        assert chunked.status_code == 403
    assert proxy.now(location) == []


@pytest.mark.parametrize("form", ["/v1/stream/_proxy/{id}", "/_proxy/{id}", "/v1/proxy/{id}"])
@pytest.mark.parametrize("encode", [False, True])
def test_proxy_streams_are_not_forked(proxy, upstream, form, encode) -> None:
    """A fork would be in a bucket that everybody may read."""
    location = proxy.created(upstream.url("/fixed", body="a secret answer"))
    proxy.frames(location)
    source = form.format(id=id_of(location))
    if encode:
        source = source.replace("_proxy", "%5Fproxy").replace("v1/proxy", "v1/%70roxy")
    for where in (source, f"{str(proxy.client.base_url).rstrip('/')}{source}"):
        for headers in ({}, proxy.service):
            fork = headers | {"Stream-Forked-From": where}
            answer = proxy.client.put(f"/v1/stream/test/fork-{id_of(location)}", headers=fork)
            assert answer.status_code in {400, 403, 404}, answer.text
    assert proxy.client.get(f"/v1/stream/test/fork-{id_of(location)}").status_code == 404


def test_nothing_is_forked_into_the_bucket(proxy) -> None:
    proxy.client.put("/v1/stream/test/source", headers={"Content-Type": "text/plain"})
    headers = proxy.service | {"Stream-Forked-From": "/v1/stream/test/source"}
    answer = proxy.client.put("/v1/stream/_proxy/fork", headers=headers)
    assert answer.status_code == 403
    assert "fork" not in proxy.streams()


@pytest.mark.spec("proxy 4.9-2")
@pytest.mark.parametrize("form", ["/v1/stream/_proxy/{id}", "/_proxy/{id}"])
def test_streams_are_closed_by_the_base_protocol(proxy, upstream, form) -> None:
    location = proxy.created(upstream.url("/fixed", body="done"))
    proxy.frames(location)
    proxy.appended(location, upstream.url("/bytes", count=9, gate=1))
    upstream.next()
    request = upstream.next()
    path = form.format(id=id_of(location))
    for _ in range(2):
        headers = proxy.service | {"Stream-Closed": "true"}
        answer = proxy.client.post(path, headers=headers)
        assert answer.status_code == 204, answer.text
        assert answer.headers["stream-closed"] == "true"
    request.wait_for_disconnect()
    read = proxy.client.get(location)
    assert read.headers["stream-closed"] == "true"
    frames = frames_of(read.content)
    assert ended(1, 2)(frames)
    assert [kinds_of(frames, number) for number in (1, 2)] == ["SDC", "SA"]
    check_error(proxy.append(location, upstream.url()), 409, "STREAM_CLOSED")
    assert proxy.abort(location).status_code == 204


@pytest.mark.parametrize(
    "more",
    [
        {"If-Match": '"x"'},
        {"Producer-Id": "a", "Producer-Epoch": "0", "Producer-Seq": "0"},
        {"Producer-Seq": "0"},
        {"Stream-Seq": "1"},
    ],
)
def test_a_stream_is_not_closed_on_conditions(proxy, upstream, more) -> None:
    """They might not hold, and its responses would have ended for nothing."""
    location = proxy.created(upstream.url("/bytes", count=9, gate=1))
    request = upstream.next()
    for path in (proxy.base_path(location), f"/_proxy/{id_of(location)}"):
        headers = proxy.service | {"Stream-Closed": "true"} | more
        assert proxy.client.post(path, headers=headers).status_code == 400
    assert not request.disconnected
    request.release_all()
    assert kinds_of(proxy.frames(location)) == "SDC"


def test_a_call_without_an_answer_ends_with_the_stream(proxy, upstream) -> None:
    location = proxy.connected()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(proxy.append, location, upstream.url("/never"))
        request = upstream.next()
        assert proxy.close(location).status_code == 204
        answer = waiting.result()
    check_error(answer, 409, "STREAM_CLOSED")
    assert answer.headers["stream-closed"] == "true"
    request.wait_for_disconnect()
    assert proxy.now(location) == []


def test_strangers_do_not_use_up_what_services_may_ask(start_proxy) -> None:
    proxy = start_proxy(bucket_rate=2)
    location = proxy.connected()
    for path in (f"/_proxy/{id_of(location)}", proxy.base_path(location), "/_proxy/streams"):
        assert {proxy.client.get(path).status_code for _ in range(6)} == {401}
    assert proxy.client.get("/_proxy/streams", headers=proxy.service).status_code == 200
    assert proxy.close(location).status_code == 204


def test_streams_are_deleted_by_the_base_protocol(proxy, upstream) -> None:
    location = proxy.created(upstream.url("/bytes", count=9, gate=1))
    request = upstream.next()
    path = proxy.base_path(location)
    assert proxy.client.delete(path, headers=proxy.service).status_code == 204
    request.wait_for_disconnect()
    assert proxy.client.delete(path, headers=proxy.service).status_code == 404
    check_error(proxy.client.get(location), 404, "STREAM_NOT_FOUND")
