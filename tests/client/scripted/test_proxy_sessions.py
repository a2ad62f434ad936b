"""Sessions of a proxy: their URL is kept fresh, and what was read is not read again."""

import asyncio

import pytest

from holdfast.client import Outcome
from holdfast.errors import ConnectRejectedError, HoldfastError, SignatureExpiredError
from holdfast.testing import HurriedClock
from tests.client.scripted.proxying import (
    ProxyServer,
    complete,
    data,
    refusal,
    start,
)
from tests.client.scripted.server import answer, at, run, scripted

UPSTREAM = "https://api.example.com/v1/chat"


class Conversation(ProxyServer):
    """Answers each request with a response of its own, and counts them."""

    def __init__(self, **options):
        super().__init__(**options)
        self.responses = 0
        self.aborts = []
        self.appended_to = []

    async def __call__(self, request):
        if request.method == "PATCH":
            self.aborts.append(request.query["signature"])
            if int(request.query["signature"].removeprefix("sig")) < self.oldest_good:
                return refusal(401, "SIGNATURE_EXPIRED", renewable=self.renewable)
            return answer(204)
        if "use-stream-url" not in request.headers:
            return await super().__call__(request)
        self.appended_to.append(request.headers["use-stream-url"].partition("?")[2])
        self.responses += 1
        number = self.responses
        body = data(request.body, number)
        await self.write(start(number), body, complete(number))
        self.connects += 1
        return answer(200, location=self.url(self.connects), stream_response_id=number)


class TestRenewal:
    @pytest.mark.spec("proxy 4.4-16", "proxy 4.5-8")
    @pytest.mark.parametrize("answer_bytes", [7, 1000])
    def test_goes_on_where_it_was_and_nobody_notices(self, answer_bytes):
        async def scenario():
            handler = ProxyServer(start(), answer_bytes=answer_bytes)
            async with scripted(handler=handler) as (_, client):
                session = await client.proxy.connect("chat")
                reading = session.follow(1, live="long-poll")
                found = []

                async def gather():
                    async for piece in reading.bytes():
                        found.append(piece)

                task = asyncio.create_task(gather())
                for number in range(3):
                    handler.expire()
                    await handler.write(data(b"piece %d;" % number))
                while b"".join(found) != b"piece 0;piece 1;piece 2;":
                    await asyncio.sleep(0)
                handler.expire()
                await handler.write(complete())
                await task
                assert b"".join(found) == b"piece 0;piece 1;piece 2;"
                assert reading.outcome is Outcome.COMPLETE
                assert session.url.endswith(f"sig{handler.connects}")
                assert handler.connects > 1

        run(scenario())

    def test_is_done_once_for_all_readers(self):
        async def scenario():
            handler = ProxyServer(start(), data(b"x"), complete())
            async with scripted(handler=handler) as (_, client):
                session = await client.proxy.connect("chat")
                handler.expire()
                readings = [session.follow() for _ in range(5)]
                assert await asyncio.gather(*(each.read() for each in readings)) == [b"x"] * 5
                assert handler.connects == 2
                # Made by now, with the new URL.
                assert await session.follow().read() == b"x"
                assert [frame async for frame, _ in session.frames(live=False)]
                assert handler.connects == 2

        run(scenario())

    def test_asks_the_same_as_before(self):
        async def scenario():
            handler, tokens = ProxyServer(start(), complete()), iter("ab")
            async with scripted(handler=handler) as (server, client):
                session = await client.proxy.connect(
                    "chat",
                    auth_url=UPSTREAM,
                    upstream_authorization=lambda: f"Bearer {next(tokens)}",
                    body={"room": 5},
                    url_ttl_s=5,
                )
                handler.expire()
                await session.follow().read()
                first, second = [each for each in server.requests if each.method == "POST"]
                assert first.body == second.body == b'{"room":5}'
                for name in ("session-id", "upstream-url", "stream-signed-url-ttl"):
                    assert first.headers[name] == second.headers[name]
                assert first.headers["upstream-authorization"] == "Bearer a"
                assert second.headers["upstream-authorization"] == "Bearer b"

        run(scenario())

    def test_may_be_refused(self):
        async def scenario():
            handler = ProxyServer(start())
            async with scripted(handler=handler) as (server, client):
                session = await client.proxy.connect("chat")
                handler.expire()
                server.script = [
                    refusal(401, "SIGNATURE_EXPIRED", renewable=True),
                    refusal(401, "CONNECT_REJECTED"),
                ]
                with pytest.raises(ConnectRejectedError):
                    await session.follow().read()

        run(scenario())

    def test_is_given_up_if_fresh_urls_have_expired_as_well(self):
        async def scenario():
            handler, clock = ProxyServer(start()), HurriedClock()
            async with scripted(handler=handler, clock=clock) as (_, client):
                session = await client.proxy.connect("chat")
                handler.oldest_good = 1_000_000
                with pytest.raises(SignatureExpiredError):
                    await session.follow().read()
                assert handler.connects == 1 + 4
                assert len(clock.delays_s) == 3

        run(scenario())

    @pytest.mark.spec("proxy 4.5-10")
    def test_is_not_tried_where_it_is_of_no_use(self):
        async def scenario():
            handler = ProxyServer(start())
            handler.renewable = False
            async with scripted(handler=handler) as (_, client):
                session = await client.proxy.connect("chat")
                handler.expire()
                readings = [session.follow(), client.proxy.follow(session.url)]
                for reading in readings:
                    with pytest.raises(SignatureExpiredError) as caught:
                        await reading.read()
                    assert not caught.value.renewable
                    assert "signature=" not in str(caught.value)
                with pytest.raises(SignatureExpiredError):
                    await session.abort()
                assert handler.connects == 1

        run(scenario())

    def test_by_a_function_of_ones_own(self):
        async def scenario():
            handler = ProxyServer(start(), data(b"x"), complete())
            handler.renewable = False
            async with scripted(handler=handler) as (server, client):
                old = server.url + handler.url()
                handler.expire()

                async def fetch():
                    return server.url + handler.url(1)

                reading = client.proxy.follow(old, renew=fetch)
                assert await reading.read() == b"x"
                again = lambda: server.url + handler.url(1)  # noqa: E731
                frames = client.proxy.frames(old, live=False, renew=again)
                assert len([frame async for frame, _ in frames]) == 3
                assert handler.connects == 0

        run(scenario())


class TestSession:
    @pytest.mark.spec("proxy 4.3-6", "proxy 8.4-5")
    def test_keeps_the_url_of_every_answer(self):
        async def scenario():
            handler = Conversation()
            async with scripted(handler=handler) as (_, client):
                session = await client.proxy.connect("chat")
                for number in (1, 2, 3):
                    response = await session.request(UPSTREAM, body=f"turn {number}")
                    assert response.response_id == number
                    assert session.url == response.url
                    assert session.url.endswith(f"sig{number + 1}")
                assert handler.appended_to == [f"expires=9&signature=sig{at}" for at in (1, 2, 3)]
                assert await session.renew() == session.url
                assert session.url.endswith("sig5")

        run(scenario())

    def test_reads_no_turn_twice(self):
        async def scenario():
            handler = Conversation()
            async with scripted(handler=handler) as (server, client):
                session = await client.proxy.connect("chat")
                offsets = []
                for number in (1, 2, 3):
                    response = await session.request(UPSTREAM, body=f"turn {number}")
                    tail = len(handler.stored)
                    before = len(server.requests)
                    assert await response.follow().read() == b"turn %d" % number
                    offsets.append((server.requests[before].query["offset"], at(tail)))
                starts, tails = zip(*offsets, strict=True)
                assert starts == ("-1", *tails[:-1])
                # Each of them can be had again, from its beginning.
                assert await response.follow().read() == b"turn 3"
                assert await session.follow(1).read() == b"turn 1"

        run(scenario())

    def test_reads_from_where_the_server_says(self):
        async def scenario():
            handler = Conversation()
            async with scripted(handler=handler) as (server, client):
                session = await client.proxy.connect("chat")
                await session.request(UPSTREAM, body="passed over")
                offset = at(len(handler.stored))
                await handler.write(start(2), data(b"second", 2), complete(2))
                server.script = [
                    answer(
                        200,
                        location=handler.url(9),
                        stream_response_id=2,
                        stream_start_offset=offset,
                    )
                ]
                response = await session.request(UPSTREAM)
                before = len(server.requests)
                assert await response.follow().read() == b"second"
                assert response.offset == server.requests[before].query["offset"] == offset

        run(scenario())

    def test_starts_anew_if_its_stream_is_new(self):
        async def scenario():
            handler = Conversation()
            async with scripted(handler=handler) as (server, client):
                session = await client.proxy.connect("chat")
                assert await (await session.request(UPSTREAM, body="x")).follow().read() == b"x"
                handler.stored, handler.responses = b"", 0
                server.script = [answer(201, location=handler.url(9))]
                await session.renew()
                assert session.created
                response = await session.request(UPSTREAM, body="anew")
                assert await response.follow().read() == b"anew"

        run(scenario())

    @pytest.mark.spec("proxy 4.6-1")
    def test_abort_renews_as_well(self):
        async def scenario():
            handler = Conversation()
            async with scripted(handler=handler) as (server, client):
                session = await client.proxy.connect("chat")
                await session.abort()
                handler.expire()
                await session.abort(2)
                assert handler.aborts == ["sig1", "sig1", "sig2"]
                assert server.requests[-1].query["response"] == "2"

        run(scenario())

    def test_request_that_fails_leaves_the_url(self):
        async def scenario():
            async with scripted(handler=Conversation()) as (server, client):
                session = await client.proxy.connect("chat")
                before = session.url
                server.script = [answer(502, upstream_status="500")]
                with pytest.raises(HoldfastError):
                    await session.request(UPSTREAM)
                assert session.url == before

        run(scenario())
