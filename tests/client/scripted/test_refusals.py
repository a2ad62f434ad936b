"""What is not sent to anybody, and what is not taken from anybody."""

import gzip

import pytest

from holdfast.client import ProducerStamp
from holdfast.errors import BadAnswerError, OutboundError
from holdfast.testing import HurriedClock
from tests.client.scripted.server import ScriptedServer, answer, events, page, run, scripted

STAMP = ProducerStamp("me", 0, 0)


@pytest.mark.parametrize("value", ["a\r\nX-Injected: b", "a\nb", "a\0b", "a\x7f", "für"])
@pytest.mark.parametrize("stamp", [None, STAMP], ids=["plain", "producer"])
def test_header_that_is_none_is_not_sent_and_not_tried_again(value, stamp):
    async def scenario():
        clock = HurriedClock()
        async with scripted(clock=clock) as (server, client):
            stream = client.stream("b/s", content_type="text/plain")
            with pytest.raises(OutboundError, match="cannot be sent") as caught:
                await stream.append("hello", seq=value, producer=stamp)
            assert caught.value.sent is False
            assert server.requests == []
            assert clock.delays_s == []

    run(scenario())


def test_credentials_of_a_single_request_do_not_follow_a_redirect_elsewhere():
    async def scenario():
        async with ScriptedServer(answer(200)) as elsewhere:
            hop = answer(302, location=f"{elsewhere.url}/x#fragment")
            async with scripted(hop) as (server, client):
                secrets = {"authorization": "Bearer secret", "Cookie": "a=b", "X-Other": "kept"}
                await client.request("GET", "/y", headers=secrets)
                assert server.sent("authorization") == ["Bearer secret"]
            assert elsewhere.sent("authorization") == [None]
            assert elsewhere.sent("cookie") == [None]
            assert elsewhere.sent("x-other") == ["kept"]
            # A fragment is for whoever follows, and not sent.
            assert elsewhere.requests[0].target == "/x"

    run(scenario())


def test_compressed_answer_is_not_taken_for_the_bytes_of_a_stream():
    async def scenario():
        body = gzip.compress(b"hello")
        async with scripted(page(body, 5, content_encoding="gzip")) as (_, client):
            with pytest.raises(BadAnswerError, match="unexpected encoding"):
                await client.stream("b/s").read().read_bytes()
        tail = page(b"", 0, up_to_date=True, content_encoding="identity")
        live = events(body, content_encoding="gzip")
        async with scripted(tail, live) as (_, client):
            with pytest.raises(BadAnswerError, match="unexpected encoding"):
                await client.stream("b/s").read(live="sse").read_bytes()

    run(scenario())
