"""The upstreams of the tests do what their URLs say, as another client sees it."""

import gzip
import json
import ssl
import zlib
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.upstreams import Reply, Upstream, pattern
from tests.upstreams.fixtures import secure_upstream, upstream

__all__ = ["secure_upstream", "upstream"]

QUESTION = {"model": "some-model", "messages": [{"role": "user", "content": "What is a cleat?"}]}


@pytest.fixture(params=["1.1", "2"])
def either(request):
    """An upstream for each version of HTTP, and a client for it."""
    with Upstream(tls=request.param == "2") as running:
        with client_of(running) as client:
            yield running, client


def client_of(upstream):
    if upstream.authority is None:
        return httpx.Client(timeout=20)
    context = ssl.create_default_context()
    upstream.authority.configure_trust(context)
    return httpx.Client(verify=context, http2=True, timeout=20)


def events_of(text):
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(each) for each in data if each != "[DONE]"]


def test_fixed_answers_and_the_record_of_requests(either):
    upstream, client = either
    url = upstream.url("/fixed", body="hello", status=418, type="text/x-tea", header="A: b")
    response = client.put(url, content=b"leaves", headers=[("X-One", "1"), ("X-One", "2")])
    assert (response.status_code, response.text) == (418, "hello")
    assert response.headers["content-type"] == "text/x-tea"
    assert response.headers["a"] == "b"
    request = upstream.next()
    assert (request.method, request.path, request.body) == ("PUT", "/fixed", b"leaves")
    assert request.values("x-one") == ["1", "2"]
    assert request.http_version == response.http_version.removeprefix("HTTP/")
    request.wait_for_end()


def test_repeated_and_many_headers(either):
    upstream, client = either
    url = upstream.url("/fixed", header=["Set-Cookie: a=1", "Set-Cookie: b=2"], headers=150)
    response = client.get(url)
    assert response.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert sum(name.startswith("x-many-") for name in response.headers) == 150


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
def test_framings(upstream, framing):
    url = upstream.url("/bytes", count=10_000, piece=999, framing=framing)
    with client_of(upstream) as client:
        response = client.get(url)
        assert response.content == pattern(10_000)
        assert ("content-length" in response.headers) == (framing == "length")
        assert client.get(url).content == pattern(10_000)
    assert upstream.connections == (2 if framing == "close" else 1)


def test_huge_bodies(either):
    upstream, client = either
    assert client.get(upstream.url("/bytes", count=20_000_003)).content == pattern(20_000_003)


def test_pieces_go_when_they_are_released(either):
    upstream, client = either
    with client.stream("GET", upstream.url("/bytes", count=40, piece=10, gate=1)) as response:
        request, raw = upstream.next(), response.iter_raw()
        for at in range(4):
            request.release()
            assert next(raw) == pattern(10, at * 10)
        assert request.sent == 4
        request.release()
        assert list(raw) == []
        request.wait_for_end()


def test_the_head_may_wait_as_well(either):
    upstream, client = either
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.get, upstream.url("/never"))
        upstream.next().release_all()
        assert answer.result().text == "late"


@pytest.mark.parametrize("end", ["cut", "reset"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_connections_that_break(either, end, framing):
    upstream, client = either
    url = upstream.url("/bytes", count=30, piece=10, after=2, gate=1, end=end, framing=framing)
    with client.stream("GET", url) as response:
        request, raw = upstream.next(), response.iter_raw()
        for at in range(2):
            request.release()
            assert next(raw) == pattern(10, at * 10)
        request.release()
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            next(raw)
    request.wait_for_end()
    assert client.get(upstream.url("/fixed", body="again")).text == "again"
    assert upstream.connections == (1 if (upstream.scheme, end) == ("https", "reset") else 2)


def test_clients_that_leave_are_seen(either):
    upstream, client = either
    url = upstream.url("/bytes", count=9, piece=3, after=1, end="silent")
    with client.stream("GET", url) as response:
        raw = response.iter_raw()
        assert next(raw) == pattern(3)
        request = upstream.next()
        assert not request.disconnected
    client.close()  # with HTTP/2 this client leaves a stream only together with the connection
    request.wait_for_disconnect()


def test_encodings(either):
    upstream, client = either
    for encoding, window in (("gzip", 31), ("deflate", 15), ("raw-deflate", -15)):
        url = upstream.url("/fixed", body="hello " * 50, encoding=encoding, piece=3)
        with client.stream("GET", url) as response:
            raw = b"".join(response.iter_raw())
        assert response.headers["content-encoding"] == encoding.removeprefix("raw-")
        assert zlib.decompress(raw, window) == b"hello " * 50
    with client.stream(
        "GET", upstream.url("/fixed", body="hello", encoding="gzip", truncate=3)
    ) as response:
        raw = b"".join(response.iter_raw())
    with pytest.raises(EOFError):
        gzip.decompress(raw)


def test_events_can_be_compressed_one_by_one(either):
    upstream, client = either
    url = upstream.url("/v1/chat/completions", text="a b", gate=1, encoding="gzip")
    with client.stream("POST", url) as response:
        request, unpacker, raw = upstream.next(), zlib.decompressobj(31), response.iter_raw()
        for content in ("", "a", " b"):
            request.release()
            (event,) = events_of(unpacker.decompress(next(raw)).decode())
            assert event["choices"][0]["delta"]["content"] == content
        request.release_all()
        rest = unpacker.decompress(b"".join(raw)).decode()
    assert rest.endswith("data: [DONE]\n\n")
    assert unpacker.eof


def test_errors_redirects_and_early_hints(either):
    upstream, client = either
    response = client.get(upstream.url("/error", status=503, count=70_000))
    assert response.status_code == 503
    assert len(response.json()["error"]["message"]) == 70_000
    response = client.get(upstream.url("/redirect", to="http://other/", status=307))
    assert (response.status_code, response.headers["location"]) == (307, "http://other/")
    response = client.get(upstream.url("/fixed", body="x", early=103))
    assert (response.status_code, response.text) == (200, "x")
    assert client.get(upstream.url("/nothing")).status_code == 404
    assert client.get(upstream.url("/fixed", status=204)).content == b""


def test_echo(either):
    upstream, client = either
    said = client.post(upstream.url("/echo", a=1), content="é")
    assert said.json()["target"] == "/echo?a=1"
    assert said.json()["body"] == "é"


def test_raw_answers(upstream):
    with client_of(upstream) as client:
        raw = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi"
        assert client.get(upstream.url("/raw", body=raw)).text == "hi"
        with pytest.raises(httpx.RemoteProtocolError):
            client.get(upstream.url("/raw", body="SSH-2.0-test\r\n"))


def test_answers_of_models(either):
    upstream, client = either
    text = "Une réponse à deux lignes.\nVoilà 🦀"
    said = client.post(upstream.url("/v1/chat/completions", text=text), json=QUESTION)
    events = events_of(said.text)
    deltas = [each["choices"][0]["delta"] for each in events if each["choices"]]
    assert "".join(each.get("content", "") for each in deltas) == text
    assert events[-1]["usage"]["completion_tokens"] == len(text.split())
    assert said.text.endswith("data: [DONE]\n\n")
    said = client.post(upstream.url("/v1/messages", text=text), json=QUESTION)
    events = events_of(said.text)
    deltas = [each["delta"]["text"] for each in events if each["type"] == "content_block_delta"]
    assert "".join(deltas) == text
    assert events[0]["message"]["model"] == "some-model"
    assert events[-1]["type"] == "message_stop"
    whole = client.post(upstream.url("/v1/messages"), json={**QUESTION, "stream": False}).json()
    assert whole["content"][0]["text"] == "You asked: What is a cleat?"


def test_routes_of_a_test(upstream):
    upstream.routes["/mine"] = lambda request: Reply([b"a", request.body], status=202)
    with client_of(upstream) as client:
        response = client.post(upstream.url("/mine", piece=1), content=b"bcd")
    assert (response.status_code, response.text) == (202, "abcd")
    assert upstream.wait_for(lambda request: request.path == "/mine").sent == 4


def test_many_at_once(either):
    upstream, _ = either
    url = upstream.url("/bytes", count=300_000, delay_ms=1)

    def fetch(_: int) -> bytes:
        # Threads that share an HTTP/2 connection of httpx can end it for one another.
        with client_of(upstream) as client:
            return client.get(url).content

    with ThreadPoolExecutor(8) as pool:
        bodies = list(pool.map(fetch, range(24)))
    assert bodies == [pattern(300_000)] * 24
