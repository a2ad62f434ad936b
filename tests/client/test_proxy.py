"""The proxy from the client's side: a real server, and a real upstream behind it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from holdfast.client import (
    Bearer,
    Client,
    Outcome,
    ResponseReading,
    Retry,
    SyncClient,
)
from holdfast.errors import (
    ConnectRejectedError,
    HoldfastError,
    InvalidSecretError,
    MissingSignatureError,
    ProxyStreamClosedError,
    ProxyStreamNotFoundError,
    RedirectNotAllowedError,
    SignatureExpiredError,
    SignatureInvalidError,
    UpstreamError,
    UpstreamNotAllowedError,
    UpstreamTimeoutError,
)
from tests.client.collecting import until_true
from tests.client.conftest import OpenClient
from tests.client.cutting_proxy import CuttingProxy
from tests.client.restarting import RestartingServer
from tests.client.scripted.server import TLS
from tests.server_process import ServerProcess
from tests.upstreams import Upstream, pattern

pytestmark = pytest.mark.anyio
SECRET = "the-secret-of-the-proxy-in-these-tests"
PATIENT = Retry(attempts=10_000, first_s=0.001, max_s=0.01)
Server = TypeVar("Server", bound=ServerProcess)
ASKED = {"messages": [{"role": "user", "content": "How deep is the sea?"}]}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream() as running:
        yield running


def proxied(data_dir: Path, kind: type[Server] = ServerProcess, **settings: object) -> Server:
    """A server whose proxy may call this machine."""
    return kind(data_dir, proxy_secret=SECRET, proxy_allowlist="http://127.0.0.1:*", **settings)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("proxied") / "data"
    with proxied(directory, proxy_header_timeout=0.5) as server:
        yield server


@pytest.fixture
async def client(served: ServerProcess, open_client: OpenClient) -> Client:
    return open_client(served.url, auth=Bearer(SECRET), tls=TLS)


@pytest.fixture
async def stranger(served: ServerProcess, open_client: OpenClient) -> Client:
    """Somebody who has no secret, only signed URLs."""
    return open_client(served.url, tls=TLS)


class ServiceOnly:
    """Credentials for requests to the proxy, but not for reading: there the signed URL has to do.

    With them a read that has a URL which has expired would be a service's, and go on.
    """

    async def header(self, method: str, _url: str) -> str | None:
        return None if method == "GET" else f"Bearer {SECRET}"

    async def refresh(self, *_: object) -> bool:
        return False


async def taken(reading: ResponseReading, count: int) -> list[bytes]:
    """The first pieces of a body."""
    pieces = []
    async for piece in reading.bytes():
        pieces.append(piece)
        if len(b"".join(pieces)) >= count:
            break
    return pieces


class TestResponses:
    @pytest.mark.spec("proxy 4.2-4", "proxy 6.1-2", "proxy 6.1-6")
    async def test_says_what_the_upstream_says(self, client: Client, upstream: Upstream) -> None:
        response = await client.proxy.create(
            upstream.url("/echo"),
            body={"a": "ä"},
            headers={"X-Own": "mine"},
            upstream_authorization="Bearer sk-1",
        )
        assert response.content_type == "application/json"
        async with response.follow() as reading:
            info = await reading.start()
            body = await reading.read()
        assert (info.status, info.headers["content-type"]) == (200, "application/json")
        assert b'\\"a\\":\\"\\u00e4\\"' in body
        request = upstream.wait_for(lambda each: each.header("x-own") == "mine")
        assert request.header("authorization") == "Bearer sk-1"
        assert request.header("content-type") == "application/json"
        assert SECRET not in str(request.headers)

    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
    async def test_events_while_they_are_written(
        self, client: Client, stranger: Client, upstream: Upstream, path: str
    ) -> None:
        url = upstream.url(path, gate=1, text="one two three", id=path)
        response = await client.proxy.create(url, body=ASKED)
        asked = upstream.wait_for(lambda each: url.endswith(each.target))
        found = []
        async with stranger.proxy.follow(response.url) as reading:
            assert (await reading.start()).status == 200
            events = reading.events()
            for _ in range(4):
                asked.release()
                found.append(await anext(events))
            assert reading.outcome is Outcome.OPEN
            asked.release_all()
            found += [event async for event in events]
        assert reading.outcome is Outcome.COMPLETE
        text = b"".join(event.data for event in found)
        assert all(word in text for word in (b"one", b" two", b" three"))
        kinds = {event.kind for event in found}
        assert kinds == {"message"} if path.endswith("completions") else "message_stop" in kinds

    async def test_large_bodies_are_whole(
        self, client: Client, stranger: Client, upstream: Upstream
    ) -> None:
        response = await client.proxy.create(upstream.url("/bytes", count=3_000_000), method="GET")
        readings = [stranger.proxy.follow(response.url, live=live) for live in _LIVE]
        bodies = await asyncio.gather(response.follow().read(), *(each.read() for each in readings))
        assert all(body == pattern(3_000_000) for body in bodies)

    async def test_state_goes_on_in_another_program(
        self, client: Client, stranger: Client, upstream: Upstream
    ) -> None:
        url = upstream.url("/bytes", count=200_000, piece=7000)
        response = await client.proxy.create(url, method="GET")
        body, state = b"", None
        while len(body) < 200_000:
            async with stranger.proxy.follow(response.url, state=state) as reading:
                body += b"".join(await taken(reading, 30_000))
            state = reading.state
        assert body == pattern(200_000)

    async def test_sync(self, served: ServerProcess, upstream: Upstream) -> None:
        def work() -> None:
            with SyncClient(served.url, auth=Bearer(SECRET), tls=TLS) as client:
                session = client.proxy.connect("sync")
                response = session.request(upstream.url("/fixed", body="hello"), method="GET")
                with response.follow() as reading:
                    assert b"".join(reading.bytes()) == b"hello"
                assert reading.outcome is Outcome.COMPLETE

        await asyncio.to_thread(work)


_LIVE = (True, "sse", "long-poll")


class TestFailures:
    @pytest.mark.parametrize(
        ("path", "query", "error"),
        [
            ("/error", {"status": 429}, UpstreamError),
            ("/never", {}, UpstreamTimeoutError),
            ("/redirect", {}, RedirectNotAllowedError),
        ],
    )
    async def test_before_the_response_begins(
        self,
        client: Client,
        upstream: Upstream,
        path: str,
        query: dict[str, object],
        error: type[HoldfastError],
    ) -> None:
        before = len(upstream.requests)
        with pytest.raises(error) as caught:
            await client.proxy.create(upstream.url(path, **query))
        assert len(upstream.requests) == before + 1
        if isinstance(caught.value, UpstreamError):
            assert caught.value.upstream_status == 429
            assert caught.value.content_type == "application/json"
            assert b"test_error" in caught.value.body

    async def test_in_the_middle_of_it(self, client: Client, upstream: Upstream) -> None:
        url = upstream.url("/bytes", count=5000, piece=1000, after=2, end="cut")
        response = await client.proxy.create(url, method="GET")
        reading, found = response.follow(), []
        with pytest.raises(UpstreamError):
            await _gather(reading, found)
        assert b"".join(found) == pattern(2000)
        assert reading.outcome is Outcome.FAILED

    async def test_of_credentials(
        self, served: ServerProcess, open_client: OpenClient, stranger: Client, upstream: Upstream
    ) -> None:
        wrong = open_client(served.url, auth=Bearer("not the secret"), tls=TLS)
        url = upstream.url("/fixed")
        with pytest.raises(InvalidSecretError):
            await wrong.proxy.create(url)
        with pytest.raises(MissingSignatureError):
            await stranger.proxy.follow(f"{stranger.proxy.url}/{'0' * 8}").read()

    async def test_of_signatures(self, client: Client, stranger: Client) -> None:
        session = await client.proxy.connect("forged")
        forged = session.url[:-4] + "AAAA"
        with pytest.raises(SignatureInvalidError) as caught:
            await stranger.proxy.follow(forged).read()
        assert forged.partition("signature=")[2] not in str(caught.value)
        with pytest.raises(SignatureInvalidError):
            await client.proxy.append(forged, "http://127.0.0.1:1/")

    async def test_of_upstreams_that_are_not_allowed(self, client: Client) -> None:
        with pytest.raises(UpstreamNotAllowedError):
            await client.proxy.create("https://elsewhere.example.com/")


async def _gather(reading: ResponseReading, found: list[bytes]) -> None:
    async for piece in reading.bytes():
        found.append(piece)


class TestAborting:
    @pytest.mark.spec("proxy 4.6-1", "proxy 4.6-4", "proxy 9.3-1", "proxy 9.3-3")
    async def test_stops_the_upstream_and_keeps_what_came(
        self, client: Client, stranger: Client, upstream: Upstream
    ) -> None:
        url = upstream.url("/bytes", count=5000, piece=1000, gate=1, id="abort")
        response = await client.proxy.create(url, method="GET")
        asked = upstream.wait_for(lambda each: url.endswith(each.target))
        asked.release(2)
        async with response.follow() as reading:
            assert b"".join(await taken(reading, 2000)) == pattern(2000)
        # Leaving is not the same as stopping.
        assert not asked.disconnected
        await stranger.proxy.abort(response.url)
        asked.wait_for_disconnect()
        again = response.follow()
        assert await again.read() == pattern(2000)
        assert again.outcome is Outcome.ABORTED
        await stranger.proxy.abort(response.url)

    async def test_of_one_response_leaves_the_others(
        self, client: Client, upstream: Upstream
    ) -> None:
        session = await client.proxy.connect("abort one")
        responses = [
            await session.request(
                upstream.url("/fixed", body="ab", piece=1, gate=1, id=f"one {at}")
            )
            for at in range(2)
        ]
        asked = [upstream.wait_for(lambda each, at=at: f"one+{at}" in each.target) for at in (0, 1)]
        await session.abort(1)
        asked[0].wait_for_disconnect()
        asked[1].release_all()
        readings = [response.follow() for response in responses]
        assert [await each.read() for each in readings] == [b"", b"ab"]
        assert [each.outcome for each in readings] == [Outcome.ABORTED, Outcome.COMPLETE]

    async def test_deleting_ends_it(self, client: Client, upstream: Upstream) -> None:
        url = upstream.url("/fixed", body="ab", piece=1, gate=1, id="delete")
        response = await client.proxy.create(url)
        asked = upstream.wait_for(lambda each: url.endswith(each.target))
        asked.release()
        reading = response.follow()
        pieces = reading.bytes()
        assert await anext(pieces) == b"a"
        assert (await client.proxy.head(response.stream_id)).next_offset == reading.offset
        await client.proxy.delete(response.stream_id)
        asked.wait_for_disconnect()
        with pytest.raises(ProxyStreamNotFoundError):
            await anext(pieces)
        await client.proxy.delete(response.stream_id)

    async def test_closed_stream_takes_no_more(self, client: Client, upstream: Upstream) -> None:
        url = upstream.url("/fixed", body="x")
        response = await client.proxy.create(url)
        await response.follow().read()
        await client.stream(f"_proxy/{response.stream_id}").close()
        with pytest.raises(ProxyStreamClosedError):
            await client.proxy.append(response.url, url)
        with pytest.raises(ProxyStreamClosedError, match="the end of response 2"):
            await client.proxy.follow(response.url, 2).read()
        frames = client.proxy.frames(response.url)
        assert [frame.type async for frame, _ in frames] == [b"S", b"D", b"C"]
        assert frames.closed


class TestSessions:
    @pytest.mark.spec("proxy 4.3-1", "proxy 4.4-15", "proxy 5.3-2")
    async def test_are_one_stream_for_everybody_who_connects(
        self, client: Client, upstream: Upstream
    ) -> None:
        session = await client.proxy.connect("shared")
        assert session.created
        turns = [
            await session.request(upstream.url("/fixed", body=f"turn {number}"))
            for number in range(3)
        ]
        assert [turn.response_id for turn in turns] == [1, 2, 3]
        again = await client.proxy.connect("shared")
        assert not again.created
        assert again.stream_id == session.stream_id == turns[0].stream_id
        bodies = await asyncio.gather(*(again.follow(number).read() for number in (1, 2, 3)))
        assert bodies == [b"turn 0", b"turn 1", b"turn 2"]
        assert [await turn.follow().read() for turn in turns] == bodies
        offsets = [turn.offset for turn in turns]
        assert offsets == sorted({*offsets})
        assert int(offsets[0]) == 0

    async def test_are_asked_for(self, client: Client, upstream: Upstream) -> None:
        url = upstream.url("/auth", id="asked")
        session = await client.proxy.connect(
            "asked", auth_url=url, upstream_authorization="Bearer me", body={"room": 5}
        )
        asked = upstream.wait_for(lambda each: url.endswith(each.target))
        assert asked.header("stream-id") == session.stream_id
        assert (asked.header("authorization"), asked.json) == ("Bearer me", {"room": 5})
        with pytest.raises(ConnectRejectedError):
            await client.proxy.connect("asked", auth_url=upstream.url("/auth", status=403))

    @pytest.mark.spec("proxy 4.4-16", "proxy 4.5-8", "proxy 8.4-3")
    async def test_outlive_their_urls(
        self, served: ServerProcess, open_client: OpenClient, upstream: Upstream
    ) -> None:
        """A URL that is good for a second, and a response that takes longer."""
        client = open_client(served.url, auth=ServiceOnly(), tls=TLS)
        session = await client.proxy.connect("outlive", url_ttl_s=1)
        url = upstream.url("/bytes", count=8000, piece=1000, gate=1, id="outlive")
        response = await session.request(url, method="GET", url_ttl_s=1)
        asked = upstream.wait_for(lambda each: url.endswith(each.target))
        first, found = session.url, []
        reading = response.follow()
        task = asyncio.create_task(_gather(reading, found))
        while session.url == first:
            asked.release()
            await asyncio.sleep(0.2)
        asked.release_all()
        await task
        assert b"".join(found) == pattern(8000)
        assert reading.outcome is Outcome.COMPLETE
        # The first URL is of no use by now, except for appending.
        with pytest.raises(SignatureExpiredError) as caught:
            await client.proxy.follow(first).read()
        assert caught.value.renewable
        assert caught.value.stream_id == session.stream_id
        late = await client.proxy.append(first, upstream.url("/fixed", body="late"))
        assert await late.follow().read() == b"late"

    async def test_urls_of_other_streams_cannot_be_renewed(
        self, client: Client, stranger: Client, upstream: Upstream
    ) -> None:
        response = await client.proxy.create(upstream.url("/fixed", body="x"), url_ttl_s=1)
        reading = stranger.proxy.follow(response.url, 2)
        with pytest.raises(SignatureExpiredError) as caught:
            await reading.read()
        assert not caught.value.renewable
        # Who has the secret needs no signature.
        assert await client.proxy.follow(response.url).read() == b"x"


class TestTrouble:
    async def test_connections_that_break_lose_nothing(
        self, served: ServerProcess, client: Client, open_client: OpenClient, upstream: Upstream
    ) -> None:
        url = upstream.url("/bytes", count=20_000, piece=500, delay_ms=2)
        response = await client.proxy.create(url, method="GET")
        # Connections are cut after so many bytes, until one is left alone.
        budgets = iter([50, 400, 700, 2000, 1000, 9000, 3000, 15_000, 20_000])
        async with CuttingProxy(served.port, lambda: next(budgets, None)) as cutting:
            reader = open_client(cutting.url, retry=PATIENT, tls=TLS)
            through = response.url.replace(served.url, cutting.url)
            assert await reader.proxy.follow(through).read() == pattern(20_000)
            assert cutting.cuts >= 5

    async def test_a_server_that_is_killed_ends_the_response(
        self, tmp_path: Path, open_client: OpenClient, upstream: Upstream
    ) -> None:
        with proxied(tmp_path / "data", RestartingServer) as server:
            client = open_client(server.url, auth=Bearer(SECRET), retry=PATIENT, tls=TLS)
            url = upstream.url("/bytes", count=5000, piece=1000, gate=1, id="killed")
            response = await client.proxy.create(url, method="GET")
            upstream.wait_for(lambda each: url.endswith(each.target)).release(2)
            reading, found = response.follow(), []
            task = asyncio.create_task(_gather(reading, found))
            await until_true(lambda: len(b"".join(found)) == 2000)
            await server.crash()
            with pytest.raises(UpstreamError):
                await task
            assert b"".join(found) == pattern(2000)
            assert reading.outcome is Outcome.FAILED
