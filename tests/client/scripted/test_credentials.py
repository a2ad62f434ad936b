"""Credentials and redirects: on every request to its server, and never to another one."""

import asyncio

import pytest

from holdfast.client import Basic, Bearer, Digest
from holdfast.errors import BadAnswerError, HoldfastError, UnauthorizedError
from tests.client.scripted.server import answer, at, events, page, run, scripted
from tests.unit.net.digests import fields_of, is_right

STORED = answer(204, stream_next_offset=at(5))


def text_stream(client):
    return client.stream("b/s", content_type="text/plain")


class TestAuthentication:
    @staticmethod
    async def everything(client):
        """A request of every kind, among them SSE and those of a producer."""
        stream = text_stream(client)
        await stream.append("hello")
        assert [message async for message in stream.read(live="sse")] == []
        async with stream.producer("me") as producer:
            await producer.append("x")

    SCRIPT = (
        STORED,
        page(b"", 0, up_to_date=True),
        events(b'event: control\ndata:{"streamNextOffset":"5","streamClosed":true}\n\n'),
        STORED,
    )

    @pytest.mark.spec("base 10.1-1")
    def test_basic_is_on_every_request(self):
        async def scenario():
            async with scripted(*self.SCRIPT, auth=Basic("me", "secret")) as (server, client):
                await self.everything(client)
                assert server.sent("authorization") == ["Basic bWU6c2VjcmV0"] * 4

        run(scenario())

    @pytest.mark.spec("base 10.1-1")
    def test_token_is_on_every_request_and_renewed_after_a_401(self):
        async def scenario():
            tokens = iter(["t1", "t2", "t3", "t4"])
            first, second, third, last = self.SCRIPT
            script = (first, answer(401), second, answer(401), third, answer(401), last)
            async with scripted(*script, auth=Bearer(lambda: next(tokens))) as (server, client):
                await self.everything(client)
                sent = ["t1", "t1", "t2", "t2", "t3", "t3", "t4"]
                assert server.sent("authorization") == [f"Bearer {each}" for each in sent]
                assert server.requests[0].body == b"hello"
                assert server.requests[-1].body == server.requests[-2].body == b"x"

        run(scenario())

    @pytest.mark.parametrize("auth", [None, Basic("a", "b"), Bearer("token")])
    def test_refusal_that_nothing_can_be_done_about_is_raised_at_once(self, auth):
        async def scenario():
            async with scripted(answer(401), auth=auth) as (_, client):
                with pytest.raises(UnauthorizedError):
                    await text_stream(client).append("hello")

        run(scenario())

    def test_second_refusal_is_raised(self):
        async def scenario():
            async with scripted(answer(401), answer(401), auth=Bearer(lambda: "t")) as (_, client):
                with pytest.raises(UnauthorizedError):
                    await text_stream(client).append("hello")
            live = (page(b"", 0, up_to_date=True), answer(401), answer(401))
            async with scripted(*live, auth=Bearer(lambda: "t")) as (_, client):
                with pytest.raises(UnauthorizedError):
                    async for _ in text_stream(client).read(live=True):
                        pass

        run(scenario())

    def test_requests_that_are_refused_together_renew_the_token_once(self):
        async def scenario():
            fetched = 0
            refused = asyncio.Event()

            async def fetch():
                nonlocal fetched
                fetched += 1
                return f"t{fetched}"

            def judge(request):
                if request.headers["authorization"] == "Bearer t2":
                    return STORED
                return answer(401).after(refused)

            async with scripted(handler=judge, auth=Bearer(fetch)) as (server, client):
                stream = text_stream(client)
                working = [asyncio.create_task(stream.append("hello")) for _ in range(4)]
                await server.until(4)
                refused.set()
                await asyncio.gather(*working)
            assert fetched == 2

        run(scenario())

    @pytest.mark.spec("base 10.1-1")
    def test_digest_answers_a_challenge_and_is_on_every_request_from_then_on(self):
        async def scenario():
            challenge = (
                'Basic realm="x", Digest realm="r", nonce="n", qop="auth", algorithm=SHA-256'
            )
            script = (answer(401, www_authenticate=challenge), *self.SCRIPT)
            async with scripted(*script, auth=Digest("me", "secret")) as (server, client):
                await self.everything(client)
                assert server.sent("authorization")[0] is None
                for count, request in enumerate(server.requests[1:], start=1):
                    header = request.headers["authorization"]
                    assert is_right(header, request.method, "secret")
                    assert fields_of(header)["uri"] == request.target
                    assert int(fields_of(header)["nc"], 16) == count

        run(scenario())

    def test_digest_takes_up_a_new_challenge_on_the_way(self):
        async def scenario():
            def challenge(nonce):
                return answer(
                    401, www_authenticate=f'Digest realm="r", nonce="{nonce}", qop="auth"'
                )

            script = (challenge("one"), STORED, challenge("two"), STORED)
            async with scripted(*script, auth=Digest("me", "secret")) as (server, client):
                await text_stream(client).append("hello")
                await text_stream(client).append("hello")
                nonces = [fields_of(each)["nonce"] for each in server.sent("authorization")[1:]]
                assert nonces == ["one", "one", "two"]

        run(scenario())


class TestRedirects:
    def test_reads_follow_them(self):
        async def scenario():
            async with scripted(
                answer(302, location="/other?offset=-1"),
                answer(307, location="third"),
                page(b"x", 1, up_to_date=True),
                auth=Basic("me", "secret"),
                headers={"X-Own": "1"},
            ) as (server, client):
                assert await client.stream("b/s").read().read_bytes() == b"x"
                assert [each.path for each in server.requests] == [
                    "/v1/stream/b/s",
                    "/other",
                    "/third",
                ]
                assert server.sent("authorization") == ["Basic bWU6c2VjcmV0"] * 3
                assert server.sent("x-own") == ["1"] * 3

        run(scenario())

    def test_credentials_and_own_headers_never_go_elsewhere(self):
        async def scenario():
            async with scripted(page(b"x", 1, up_to_date=True)) as (elsewhere, _):
                async with scripted(
                    answer(302, location=f"{elsewhere.url}/copy"),
                    auth=Bearer("token"),
                    headers={"X-Own": "1", "Cookie": "secret"},
                ) as (server, client):
                    assert await client.stream("b/s").read().read_bytes() == b"x"
                    assert server.sent("authorization") == ["Bearer token"]
                    assert elsewhere.sent("authorization") == [None]
                    assert elsewhere.sent("x-own") == [None]
                    assert elsewhere.sent("cookie") == [None]

        run(scenario())

    def test_another_server_cannot_ask_for_a_new_token(self):
        async def scenario():
            fetched = []

            def fetch():
                fetched.append(1)
                return "token"

            async with scripted(answer(401)) as (elsewhere, _):
                location = f"{elsewhere.url}/copy"
                async with scripted(answer(302, location=location), auth=Bearer(fetch)) as (
                    _,
                    client,
                ):
                    with pytest.raises(UnauthorizedError):
                        await client.stream("b/s").head()
            assert len(fetched) == 1

        run(scenario())

    def test_live_reads_follow_them_as_well(self):
        async def scenario():
            told = b'event: control\ndata:{"streamNextOffset":"5","streamClosed":true}\n\n'
            async with scripted(events(told)) as (elsewhere, _):
                async with scripted(
                    page(b"", 0, up_to_date=True),
                    answer(307, location=f"{elsewhere.url}/live"),
                    auth=Bearer("token"),
                ) as (server, client):
                    stream = client.stream("b/s")
                    assert [each async for each in stream.read(live="sse")] == []
                    assert server.sent("authorization") == ["Bearer token"] * 2
                    assert elsewhere.sent("authorization") == [None]
                    assert elsewhere.sent("accept") == ["text/event-stream"]

        run(scenario())

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 304])
    def test_writes_do_not_and_are_not_taken_for_stored(self, status):
        async def scenario():
            async with scripted(answer(status, location="/other")) as (_, client):
                with pytest.raises(BadAnswerError, match=str(status)):
                    await text_stream(client).append("hello")

        run(scenario())

    def test_too_many_are_refused(self):
        async def scenario():
            hops = [answer(302, location=f"/{each}") for each in range(3)]
            async with scripted(*hops, answer(200)) as (_, client):
                await client.stream("b/s").head()
            async with scripted(*hops, answer(302, location="/last")) as (_, client):
                with pytest.raises(BadAnswerError, match="More than 3 redirects"):
                    await client.stream("b/s").head()

        run(scenario())

    @pytest.mark.parametrize(
        "location", [None, "http://[nonsense", "http://host:99999/", "ftp://x/"]
    )
    def test_that_lead_nowhere_are_refused(self, location):
        async def scenario():
            async with scripted(answer(302, location=location)) as (_, client):
                with pytest.raises(HoldfastError) as caught:
                    await client.stream("b/s").head()
                assert caught.value.code in {"bad_answer", "target_refused"}

        run(scenario())
