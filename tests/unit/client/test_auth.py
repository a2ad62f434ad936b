"""Who the client says it is."""

import asyncio

import pytest

from holdfast.client import Basic, Bearer, Digest
from tests.unit.net.digests import is_right

URL = "http://host/v1/stream/s"
CHALLENGE = {"www-authenticate": 'Bearer realm="x"'}


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


class Tokens:
    """Gives a new token each time, once it may."""

    def __init__(self):
        self.calls = 0
        self.may = asyncio.Event()
        self.may.set()

    def sync(self):
        self.calls += 1
        return f"t{self.calls}"

    async def fetch(self):
        self.calls += 1
        token = f"t{self.calls}"
        await self.may.wait()
        return token


class TestBasic:
    def test_is_on_every_request(self):
        # The example of RFC 7617.
        basic = Basic("Aladdin", "open sesame")
        assert run(basic.header("GET", URL)) == "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="

    def test_is_in_utf8(self):
        assert run(Basic("test", "123£").header("GET", URL)) == "Basic dGVzdDoxMjPCow=="

    def test_stays_wrong(self):
        assert run(Basic("a", "b").refresh("GET", URL, CHALLENGE, None)) is False


class TestBearer:
    def test_fixed_token_stays(self):
        async def scenario():
            bearer = Bearer("token")
            assert await bearer.header("GET", URL) == "Bearer token"
            assert await bearer.refresh("GET", URL, CHALLENGE, None) is False
            assert await bearer.header("GET", URL) == "Bearer token"

        run(scenario())

    def test_empty_token_is_refused(self):
        with pytest.raises(ValueError, match="empty"):
            Bearer("")

    @pytest.mark.parametrize("kind", ["sync", "fetch"])
    def test_function_is_called_for_the_first_request_and_after_a_401(self, kind):
        async def scenario():
            tokens = Tokens()
            bearer = Bearer(getattr(tokens, kind))
            assert tokens.calls == 0
            assert [await bearer.header("GET", URL) for _ in range(3)] == ["Bearer t1"] * 3
            assert await bearer.refresh("GET", URL, CHALLENGE, "Bearer t1") is True
            assert [await bearer.header("GET", URL) for _ in range(3)] == ["Bearer t2"] * 3
            assert tokens.calls == 2

        run(scenario())

    def test_requests_at_once_share_the_first_token(self):
        async def scenario():
            tokens = Tokens()
            tokens.may.clear()
            bearer = Bearer(tokens.fetch)
            asking = [asyncio.create_task(bearer.header("GET", URL)) for _ in range(5)]
            await asyncio.sleep(0)
            tokens.may.set()
            assert await asyncio.gather(*asking) == ["Bearer t1"] * 5

        run(scenario())

    def test_requests_that_are_refused_at_once_share_the_next_token(self):
        async def scenario():
            tokens = Tokens()
            bearer = Bearer(tokens.fetch)
            await bearer.header("GET", URL)
            tokens.may.clear()
            asking = [
                asyncio.create_task(bearer.refresh("GET", URL, CHALLENGE, "Bearer t1"))
                for _ in range(5)
            ]
            for _ in range(3):
                await asyncio.sleep(0)
            tokens.may.set()
            assert await asyncio.gather(*asking) == [True] * 5
            assert await bearer.header("GET", URL) == "Bearer t2"
            assert tokens.calls == 2

        run(scenario())

    def test_request_that_is_refused_late_uses_the_token_that_is_there_by_then(self):
        async def scenario():
            tokens = Tokens()
            bearer = Bearer(tokens.fetch)
            await bearer.header("GET", URL)
            for _ in range(3):
                assert await bearer.refresh("GET", URL, CHALLENGE, "Bearer t1") is True
            assert await bearer.header("GET", URL) == "Bearer t2"
            assert tokens.calls == 2

        run(scenario())

    def test_failure_to_get_one_is_told_and_tried_again(self):
        async def scenario():
            answers = iter([RuntimeError("no token today"), "t1"])

            def fetch():
                answer = next(answers)
                if isinstance(answer, Exception):
                    raise answer
                return answer

            bearer = Bearer(fetch)
            with pytest.raises(RuntimeError, match="no token today"):
                await bearer.header("GET", URL)
            assert await bearer.header("GET", URL) == "Bearer t1"

        run(scenario())


class TestDigest:
    def test_answers_once_it_was_challenged(self):
        async def scenario():
            digest = Digest("me", "secret")
            assert await digest.header("GET", URL) is None
            told = {"www-authenticate": 'Digest realm="r", nonce="n", qop="auth"'}
            assert await digest.refresh("GET", URL, told, None) is True
            for method in ("GET", "POST", "GET"):
                assert is_right(await digest.header(method, URL), method, "secret")

        run(scenario())

    def test_has_nothing_to_say_to_other_challenges(self):
        assert run(Digest("me", "secret").refresh("GET", URL, CHALLENGE, None)) is False
