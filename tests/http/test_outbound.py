"""Calls to other servers, over real connections: limits, refusals, pinned addresses, TLS."""

import asyncio
import logging
import socket
import ssl
from contextlib import aclosing, asynccontextmanager

import pytest
import trustme
from hypercorn.asyncio import serve as serve_hypercorn
from hypercorn.config import Config

from holdfast.errors import OutboundError, OutboundRefusedError
from holdfast.net.outbound import Outbound
from holdfast.net.targets import TargetPolicy
from tests.http.loopback import answer, serving

LOOPBACK = ["http://127.0.0.1:*", "https://127.0.0.1:*"]
SECRET = "sesame-open-9f2c"


def run(scenario):
    async def limited():
        async with asyncio.timeout(20):
            await scenario

    asyncio.run(limited())


@asynccontextmanager
async def calling(*patterns, **options):
    outbound = Outbound(TargetPolicy(patterns or LOOPBACK), **options)
    try:
        yield outbound
    finally:
        await outbound.aclose()


async def get(outbound, url, *, timeout_s=5.0, bytes_max=100_000, **headers):
    return await outbound.request("GET", url, headers, timeout_s=timeout_s, bytes_max=bytes_max)


async def say_hello(_head, _body, writer):
    writer.write(answer("200 OK", b"hello"))


def addresses(*answers):
    """A resolver that gives one answer after the other, and the last one for ever."""
    left = list(answers)
    asked = []

    async def resolve(host, _port):
        asked.append(host)
        return left.pop(0) if len(left) > 1 else left[0]

    resolve.asked = asked
    return resolve


def test_a_call_carries_method_headers_and_body():
    async def scenario():
        async def echo(_head, body, writer):
            writer.write(answer("201 Created", body[::-1], "X-A: 1", "x-a: 2"))

        async with serving(echo) as server, calling() as outbound:
            url = f"http://127.0.0.1:{server.port}/a?b=c"
            response = await outbound.request(
                "POST", url, {"X-Mine": "yes"}, b"abc", timeout_s=5, bytes_max=10
            )
            assert (response.status, response.body) == (201, b"cba")
            assert response.headers["x-a"] == "1, 2"
            head = server.heads[0]
            assert head.startswith(b"POST /a?b=c HTTP/1.1\r\n")
            assert b"\r\nX-Mine: yes\r\n" in head
            assert b"\r\nAccept-Encoding: identity\r\n" in head
            assert b"\r\nUser-Agent: holdfast/" in head
            assert f"\r\nHost: 127.0.0.1:{server.port}\r\n".encode() in head

    run(scenario())


def test_the_caller_s_headers_replace_ours():
    async def scenario():
        async with serving(say_hello) as server, calling() as outbound:
            headers = {"user-agent": "mine/1", "accept-encoding": "gzip"}
            await get(outbound, f"http://127.0.0.1:{server.port}/", **headers)
            head = server.heads[0].lower()
            assert head.count(b"user-agent: mine/1") == head.count(b"user-agent") == 1
            assert head.count(b"accept-encoding: gzip") == head.count(b"accept-encoding") == 1

    run(scenario())


def test_connections_are_used_again():
    async def scenario():
        async with serving(say_hello) as server, calling() as outbound:
            for _ in range(5):
                await get(outbound, f"http://127.0.0.1:{server.port}/")
            assert server.connections == 1

    run(scenario())


def test_redirects_are_not_followed_and_cookies_not_kept():
    async def scenario():
        async def redirect(_head, _body, writer):
            place = "Location: http://169.254.169.254/latest"
            writer.write(answer("302 Found", b"", place, "Set-Cookie: a=b"))

        async with serving(redirect) as server, calling() as outbound:
            url = f"http://127.0.0.1:{server.port}/"
            response = await get(outbound, url)
            assert response.status == 302
            assert response.headers["location"] == "http://169.254.169.254/latest"
            await get(outbound, url)
            assert b"cookie" not in server.heads[1].lower()

    run(scenario())


def test_proxies_of_the_environment_are_ignored(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def scenario():
        async with serving(say_hello) as server, calling() as outbound:
            assert (await get(outbound, f"http://127.0.0.1:{server.port}/")).body == b"hello"

    run(scenario())


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\n", answer("200 OK", b"ab")[:-1]])
def test_a_slow_answer_is_given_up(first):
    async def scenario():
        async def stall(_head, _body, writer):
            writer.write(first)
            await writer.drain()
            await asyncio.sleep(60)

        async with serving(stall) as server, calling() as outbound:
            with pytest.raises(OutboundError, match=r"within 0\.2 s"):
                await get(outbound, f"http://127.0.0.1:{server.port}/", timeout_s=0.2)

    run(scenario())


def test_a_trickle_does_not_stretch_the_time_limit():
    async def scenario():
        async def trickle(_head, _body, writer):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            for _ in range(1000):
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)

        async with serving(trickle) as server, calling() as outbound:
            with pytest.raises(OutboundError, match="within"):
                await get(outbound, f"http://127.0.0.1:{server.port}/", timeout_s=0.3)

    run(scenario())


@pytest.mark.parametrize("framing", ["Content-Length: 1000001", "Transfer-Encoding: chunked"])
def test_a_large_body_is_cut_off(framing):
    async def scenario():
        sent = 0

        async def flood(_head, _body, writer):
            nonlocal sent
            writer.write(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode())
            while sent < 1_000_000:
                sent += 1000
                piece = b"x" * 1000
                writer.write(b"3e8\r\n%b\r\n" % piece if "chunked" in framing else piece)
                await writer.drain()

        async with serving(flood) as server, calling() as outbound:
            with pytest.raises(OutboundError, match="exceeds 5000 bytes"):
                await get(outbound, f"http://127.0.0.1:{server.port}/", bytes_max=5000)

    run(scenario())


def test_a_body_of_exactly_the_limit_is_taken():
    async def scenario():
        async with serving(say_hello) as server, calling() as outbound:
            url = f"http://127.0.0.1:{server.port}/"
            assert (await get(outbound, url, bytes_max=5)).body == b"hello"
            with pytest.raises(OutboundError):
                await get(outbound, url, bytes_max=4)

    run(scenario())


@pytest.mark.parametrize("size", [40_000, 300_000])
def test_large_headers_are_refused(size):
    async def scenario():
        async def boast(_head, _body, writer):
            writer.write(answer("200 OK", b"", "X-Long: " + "x" * size))

        async with serving(boast) as server, calling() as outbound:
            with pytest.raises(OutboundError, match=r"headers|valid HTTP"):
                await get(outbound, f"http://127.0.0.1:{server.port}/")

    run(scenario())


@pytest.mark.parametrize(
    "said", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"]
)
def test_what_is_no_http_or_breaks_off_is_an_error(said):
    async def scenario():
        async def babble(_head, _body, writer):
            writer.write(said)
            writer.close()

        async with serving(babble) as server, calling() as outbound:
            with pytest.raises(OutboundError, match="valid HTTP, or broke off"):
                await get(outbound, f"http://127.0.0.1:{server.port}/")

    run(scenario())


def test_a_refused_connection_says_so():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    async def scenario():
        async with calling() as outbound:
            with pytest.raises(OutboundError, match=r"127\.0\.0\.1:\d+ cannot be connected to"):
                await get(outbound, f"http://127.0.0.1:{port}/{SECRET}")

    run(scenario())


def test_a_name_without_an_address_says_so():
    async def nowhere(_host, _port):
        raise socket.gaierror(-2, "Name or service not known")

    async def scenario():
        async with calling(resolve=nowhere) as outbound:
            with pytest.raises(OutboundError, match=r"nowhere\.example has no address"):
                await get(outbound, "https://nowhere.example/")

    run(scenario())


@pytest.mark.parametrize(
    "answers",
    [
        ["127.0.0.1"],
        ["93.184.215.14", "127.0.0.1"],
        ["::1"],
        ["169.254.169.254"],
        ["::ffff:7f00:1"],
    ],
)
def test_a_name_with_an_inner_address_is_not_connected_to(answers):
    async def scenario():
        async with (
            serving(say_hello) as server,
            calling("http://127.0.0.1:*", resolve=addresses(answers)) as outbound,
        ):
            with pytest.raises(OutboundRefusedError, match="address"):
                await get(outbound, f"https://rebound.example:{server.port}/")
            assert server.connections == 0

    run(scenario())


def test_a_name_that_changes_its_address_is_checked_for_each_connection():
    """The first connection is fine; the second would go where the name has moved to."""

    async def scenario():
        async def hang_up(_head, _body, writer):
            writer.write(answer("200 OK", b"hello", "Connection: close"))
            writer.close()

        resolve = addresses(["127.0.0.1"], ["169.254.169.254"])
        async with (
            serving(hang_up) as server,
            calling("http://hook.example:*", resolve=resolve) as outbound,
        ):
            url = f"http://hook.example:{server.port}/"
            assert (await get(outbound, url)).status == 200
            with pytest.raises(OutboundRefusedError, match="link-local"):
                await get(outbound, url)
            assert server.connections == 1
            assert resolve.asked == ["hook.example", "hook.example"]
            # The name stays in the Host header.
            assert f"\r\nHost: hook.example:{server.port}\r\n".encode() in server.heads[0]

    run(scenario())


def test_a_second_address_is_tried_if_the_first_does_not_answer():
    async def scenario():
        resolve = addresses(["127.0.0.2", "127.0.0.1"])
        async with (
            serving(say_hello) as server,
            calling("http://hook.example:*", resolve=resolve) as outbound,
        ):
            assert (await get(outbound, f"http://hook.example:{server.port}/")).status == 200

    run(scenario())


def test_a_refused_url_is_not_resolved():
    async def scenario():
        resolve = addresses(["93.184.215.14"])
        async with calling(resolve=resolve) as outbound:
            with pytest.raises(OutboundRefusedError, match="not https"):
                await get(outbound, "http://example.com/")
            assert resolve.asked == []

    run(scenario())


async def listening(port):
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.01)
        else:
            writer.close()
            return


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


def server_tls(authority, *names):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(*names).configure_cert(context)
    return context


def client_tls(authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_tls_is_for_the_name_though_the_address_is_pinned(authority):
    async def scenario():
        resolve = addresses(["127.0.0.1"])
        async with (
            serving(say_hello, server_tls(authority, "hook.example")) as server,
            calling("https://hook.example:*", resolve=resolve, tls=client_tls(authority)) as out,
        ):
            assert (await get(out, f"https://hook.example:{server.port}/")).body == b"hello"
            assert server.server_names == ["hook.example"]

    run(scenario())


@pytest.mark.parametrize("wrong", ["name", "authority"])
def test_a_wrong_certificate_is_refused(authority, wrong):
    async def scenario():
        resolve = addresses(["127.0.0.1"])
        name = "other.example" if wrong == "name" else "hook.example"
        trust = client_tls(authority if wrong == "name" else trustme.CA())
        async with (
            serving(say_hello, server_tls(authority, name)) as server,
            calling("https://hook.example:*", resolve=resolve, tls=trust) as outbound,
        ):
            with pytest.raises(OutboundError, match="certificate that is not accepted"):
                await get(outbound, f"https://hook.example:{server.port}/")
            assert server.heads == []

    run(scenario())


def test_tls_with_a_server_that_does_not_speak_it_is_an_error():
    async def scenario():
        async def greet(reader, writer):
            writer.write(b"220 mail.example ESMTP\r\n")
            await reader.read()
            writer.close()
            gone.set()

        gone = asyncio.Event()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, calling() as outbound:
            with pytest.raises(OutboundError, match="failed the TLS handshake"):
                await get(outbound, f"https://127.0.0.1:{port}/")
            await gone.wait()

    run(scenario())


def test_a_handshake_that_hangs_is_given_up_and_leaves_nothing_open():
    async def scenario():
        gone = asyncio.Event()

        async def ignore(reader, writer):
            while await reader.read(1000):
                pass
            gone.set()
            writer.close()

        server = await asyncio.start_server(ignore, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, calling() as outbound:
            with pytest.raises(OutboundError, match=r"within 0\.2 s"):
                await get(outbound, f"https://127.0.0.1:{port}/", timeout_s=0.2)
            await gone.wait()

    run(scenario())


def test_http_2_is_spoken_where_it_is_offered(authority, tmp_path):
    certificate = authority.issue_cert("hook.example")
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.certfile, config.keyfile = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    config.errorlog = None

    async def app(scope, receive, send):
        if scope["type"] != "http":
            return
        body = scope["http_version"].encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def scenario():
        stop = asyncio.Event()
        server = asyncio.create_task(serve_hypercorn(app, config, shutdown_trigger=stop.wait))
        resolve = addresses(["127.0.0.1"])
        async with calling(
            "https://hook.example:*", resolve=resolve, tls=client_tls(authority)
        ) as outbound:
            await listening(port)
            url = f"https://hook.example:{port}/"
            answers = await asyncio.gather(*(get(outbound, url) for _ in range(5)))
            assert [each.body for each in answers] == [b"2"] * 5
            assert len(resolve.asked) == 1
        stop.set()
        await server

    run(scenario())


def test_an_answer_can_be_taken_in_pieces_and_left_early():
    async def scenario():
        async def drip(_head, _body, writer):
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(100):
                writer.write(b"3\r\nabc\r\n")
                await writer.drain()
                await asyncio.sleep(0.001)
            writer.write(b"0\r\n\r\n")

        async with serving(drip) as server, calling() as outbound:
            url = f"http://127.0.0.1:{server.port}/"
            async with outbound.stream("GET", url, {}, silence_s=5) as response:
                assert response.status == 200
                async with aclosing(response.chunks()) as chunks:
                    assert await anext(chunks) == b"abc"
            assert (await get(outbound, url, bytes_max=300)).body == b"abc" * 100

    run(scenario())


def test_calls_under_way_are_limited():
    async def scenario():
        gate = asyncio.Event()

        async def wait(_head, _body, writer):
            await gate.wait()
            writer.write(answer("200 OK"))

        async with serving(wait) as server, calling(calls_max=2) as outbound:
            url = f"http://127.0.0.1:{server.port}/"
            first = [asyncio.create_task(get(outbound, url)) for _ in range(2)]
            while len(server.heads) < 2:
                await asyncio.sleep(0.01)
            with pytest.raises(OutboundError, match="2 calls"):
                await get(outbound, url)
            gate.set()
            assert [(await each).status for each in first] == [200, 200]
            assert (await get(outbound, url)).status == 200

    run(scenario())


def test_nothing_secret_is_said_or_logged(caplog):
    caplog.set_level(logging.DEBUG)
    said = []

    async def scenario():
        async def hang_up(_head, _body, writer):
            writer.close()

        async with serving(hang_up) as server, calling() as outbound:
            url = f"http://127.0.0.1:{server.port}/{SECRET}?token={SECRET}"
            calls = [
                (url, {"Authorization": f"Bearer {SECRET}"}),
                (url, {"Authorization": f"Bearer {SECRET}\r\nX: y"}),
                (url, {"Authorization": f"Bearer {SECRET}\N{SNOWMAN}"}),
                (f"https://u:{SECRET}@127.0.0.1/", {}),
                (f"http://example.com/{SECRET}", {}),
            ]
            for target, headers in calls:
                with pytest.raises((OutboundError, OutboundRefusedError)) as caught:
                    await get(outbound, target, **headers)
                said.append(caught.value.message)

    run(scenario())
    assert len(said) == 5
    assert not [text for text in said if SECRET in text]
    assert SECRET not in caplog.text
