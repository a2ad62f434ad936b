"""Single requests: what is on them, and what is repeated."""

import asyncio
import socket

import pytest

from holdfast.client import NO_RETRY, Client, ProducerStamp, Retry, Timeouts
from holdfast.errors import (
    CommitUnknownError,
    HoldfastError,
    OutboundError,
    RateLimitedError,
    StreamNotFoundError,
    UnavailableError,
)
from holdfast.testing import FakeClock, HurriedClock
from tests.client.scripted.server import (
    Answer,
    answer,
    at,
    broken,
    events,
    page,
    rounds,
    run,
    scripted,
)

STAMP = ProducerStamp("me", 0, 0)
STORED = answer(204, stream_next_offset=at(5))


def error_answer(status, code="", **headers):
    body = b'{"error":{"code":"%b","message":"So it is."}}' % code.encode()
    return answer(status, body, **headers)


def text_stream(client):
    return client.stream("b/s", content_type="text/plain")


class TestRetries:
    """What is sent again: (answer, plain append, append of a producer)."""

    CASES = (
        ("408", answer(408), False, True),
        ("429", answer(429), True, True),
        ("500", answer(500), True, True),
        ("502", answer(502), False, True),
        ("503", answer(503), True, True),
        ("504", answer(504), False, True),
        ("commit unknown", error_answer(503, "commit_unknown"), False, True),
        ("commit failed", error_answer(503, "commit_failed"), True, True),
        ("broken off", broken(), False, True),
        ("cut head", answer(204, stream_next_offset=at(5)).cut(20), False, True),
        ("cut body", answer(200, b"x", length=2), False, True),
        ("404", answer(404), False, False),
        ("409", answer(409), False, False),
        ("501", answer(501), False, False),
        (
            "nonsense",
            Answer((b"SSH-2.0-nonsense\r\n\r\n",), breaks=True),
            False,
            True,
        ),
    )

    @pytest.mark.parametrize(
        ("first", "plain", "produced"),
        [case[1:] for case in CASES],
        ids=[case[0] for case in CASES],
    )
    @pytest.mark.parametrize("stamp", [None, STAMP], ids=["plain", "producer"])
    def test_appends(self, first, plain, produced, stamp):
        again = plain if stamp is None else produced

        async def scenario():
            clock = HurriedClock()
            script = (first, STORED) if again else (first,)
            async with scripted(*script, clock=clock) as (server, client):
                work = text_stream(client).append("hello", producer=stamp)
                if again:
                    assert (await work).next_offset == at(5)
                else:
                    with pytest.raises(HoldfastError):
                        await work
                assert len(server.requests) == len(script)
                assert len({(each.body, str(each.headers)) for each in server.requests}) == 1
                assert len(clock.delays_s) == len(script) - 1

        run(scenario())

    def test_what_does_no_harm_is_repeated(self):
        async def scenario():
            for work in ("head", "delete", "create", "close"):
                async with scripted(broken(), answer(502), STORED, clock=HurriedClock()) as pair:
                    server, client = pair
                    await getattr(text_stream(client), work)()
                    assert len(server.requests) == 3

        run(scenario())

    def test_refused_connection_is_tried_again_even_for_a_plain_append(self):
        async def scenario():
            with socket.create_server(("127.0.0.1", 0)) as nobody:
                port = nobody.getsockname()[1]
            clock, told = HurriedClock(), []
            async with Client(
                f"http://127.0.0.1:{port}",
                clock=clock,
                retry=Retry(attempts=3),
                on_retry=lambda error, delay_s: told.append((error, delay_s)),
            ) as client:
                with pytest.raises(OutboundError, match="cannot be connected to") as caught:
                    await text_stream(client).append("hello")
            assert caught.value.sent is False
            assert [delay_s for _, delay_s in told] == clock.delays_s
            assert [type(error) for error, _ in told] == [OutboundError] * 2

        run(scenario())

    def test_attempts_end_with_the_last_error(self):
        async def scenario():
            clock, told = HurriedClock(), []
            async with scripted(
                answer(503),
                broken(),
                answer(500, b"the last word"),
                clock=clock,
                retry=Retry(attempts=3, first_s=1, max_s=100),
                on_retry=lambda error, delay_s: told.append((error.status, delay_s)),
            ) as (_, client):
                with pytest.raises(HoldfastError, match="the last word"):
                    await text_stream(client).delete()
            assert [status for status, _ in told] == [503, 502]
            assert [delay_s for _, delay_s in told] == clock.delays_s
            assert 0.5 <= clock.delays_s[0] <= 1 <= clock.delays_s[1] <= 2

        run(scenario())

    @pytest.mark.parametrize(
        ("status", "error"), [(429, RateLimitedError), (503, UnavailableError)]
    )
    def test_server_says_how_long_to_wait(self, status, error):
        async def scenario():
            clock = HurriedClock()
            asked = answer(status, retry_after="7")
            async with scripted(asked, asked, STORED, clock=clock) as (_, client):
                await text_stream(client).append("hello")
            assert clock.delays_s == [7.0, 7.0]
            async with scripted(answer(status, retry_after="61"), clock=clock) as (_, client):
                with pytest.raises(error) as caught:
                    await text_stream(client).append("hello")
            assert caught.value.retry_after_s == 61
            assert clock.delays_s == [7.0, 7.0]

        run(scenario())

    def test_nothing_is_sent_before_the_time_has_come(self):
        async def scenario():
            clock = FakeClock()
            async with scripted(answer(503, retry_after="9"), STORED, clock=clock) as pair:
                server, client = pair
                working = asyncio.create_task(text_stream(client).append("hello"))
                await server.until(1)
                while not clock._heap:
                    await asyncio.sleep(0)
                clock.advance(8.9)
                await rounds()
                assert len(server.requests) == 1
                clock.advance(0.1)
                assert (await working).next_offset == at(5)

        run(scenario())

    def test_no_retry_is_none(self):
        async def scenario():
            async with scripted(answer(503), retry=NO_RETRY) as (_, client):
                with pytest.raises(UnavailableError):
                    await text_stream(client).head()

        run(scenario())

    def test_commit_that_may_have_happened_is_told(self):
        async def scenario():
            async with scripted(error_answer(503, "commit_unknown")) as (_, client):
                with pytest.raises(CommitUnknownError, match="So it is"):
                    await text_stream(client).append("hello")

        run(scenario())

    def test_an_answer_that_does_not_come_ends_with_the_time_limit(self):
        async def scenario():
            never = asyncio.Event()
            silent = answer(200).after(never)
            timeouts = Timeouts(request_s=0.05)
            async with scripted(silent, timeouts=timeouts, retry=NO_RETRY) as (_, client):
                with pytest.raises(OutboundError, match="did not respond") as caught:
                    await text_stream(client).head()
                assert caught.value.sent

        run(scenario())

    def test_an_answer_that_makes_progress_may_take_longer_than_the_time_limit(self):
        async def scenario():
            body = b'{"bucket_id": "b", "streams": 1, "bytes": 2}'
            whole = b"".join(answer(200, body).pieces)
            waits = [asyncio.Event() for _ in range(4)]
            pieces = []
            for turn, wait in enumerate(waits):
                pieces += [wait, whole[turn * len(whole) // 4 : (turn + 1) * len(whole) // 4]]
                asyncio.get_running_loop().call_later(0.3 * (turn + 1), wait.set)
            timeouts = Timeouts(request_s=1)
            async with scripted(Answer(tuple(pieces)), timeouts=timeouts, retry=NO_RETRY) as (
                _,
                client,
            ):
                assert (await client.bucket("b").info()).bytes == 2

        run(scenario())

    def test_answers_have_a_largest_size(self):
        async def scenario():
            async with scripted(page(b"x" * 101, 101), retry=NO_RETRY, answer_bytes_max=100) as (
                _,
                client,
            ):
                with pytest.raises(OutboundError, match="exceeds 100 bytes"):
                    await text_stream(client).read().read_bytes()

        run(scenario())


class TestHeadersAndParameters:
    def test_are_on_every_request_and_evaluated_each_time(self):
        async def scenario():
            count = 0

            def numbered():
                nonlocal count
                count += 1
                return f"h{count}"

            async def tenant():
                await asyncio.sleep(0)
                return f"t{count}"

            async with scripted(
                answer(503),
                STORED,
                answer(200, content_type="text/plain"),
                page(b"", 0, up_to_date=True),
                events(b'event: control\ndata:{"streamNextOffset":"5","streamClosed":true}\n\n'),
                STORED,
                headers={"X-Number": numbered, "X-Fixed": "yes"},
                params={"tenant": tenant, "a": "b c"},
                clock=HurriedClock(),
            ) as (server, client):
                stream = text_stream(client)
                await stream.append("hello")
                await stream.head()
                assert [message async for message in stream.read(live="sse")] == []
                async with stream.producer("me") as producer:
                    await producer.append("x")
                assert server.sent("x-number") == [f"h{each}" for each in range(1, 7)]
                assert server.sent("x-fixed") == ["yes"] * 6
                assert server.asked("tenant") == [f"t{each}" for each in range(6)]
                assert server.asked("a") == ["b c"] * 6

        run(scenario())

    @pytest.mark.spec("base 8.1-8")
    def test_parameters_are_sorted(self):
        async def scenario():
            async with scripted(
                page(b"x", 1, cursor="9", up_to_date=True),
                page(b"", 1, status=204, closed=True),
                params={"zone": "z", "aim": "a"},
            ) as (server, client):
                stream = client.stream("b/s")
                async for _ in stream.read(live="long-poll", max_bytes=5).batches():
                    pass
                targets = [request.target for request in server.requests]
                path = "/v1/stream/b/s"
                assert targets == [
                    f"{path}?aim=a&max_bytes=5&offset=-1&zone=z",
                    f"{path}?aim=a&cursor=9&live=long-poll&max_bytes=5&offset={at(1)}&zone=z",
                ]

        run(scenario())

    def test_of_the_request_itself_win(self):
        async def scenario():
            async with scripted(
                page(b"", 0, up_to_date=True), params={"offset": "7"}, headers={"X-A": "1"}
            ) as (server, client):
                await client.stream("b/s").read().read_bytes()
                assert server.asked("offset") == ["-1"]
                assert server.sent("accept-encoding") == ["identity"]

        run(scenario())

    def test_odd_names_arrive_as_they_are(self):
        async def scenario():
            async with scripted(answer(200), answer(200)) as (server, client):
                await client.stream("b/ä 50%?#").head()
                await client.stream(f"{server.url}/any/where?key=1").head()
                assert server.requests[0].target == "/v1/stream/b/%C3%A4%2050%25%3F%23"
                assert server.requests[1].target == "/any/where?key=1"

        run(scenario())


class TestErrors:
    def test_are_those_that_the_server_names(self):
        async def scenario():
            async with scripted(error_answer(404, "stream_not_found")) as (_, client):
                with pytest.raises(StreamNotFoundError, match="So it is"):
                    await client.stream("b/s").read().read_bytes()

        run(scenario())

    def test_that_break_off_are_still_errors_of_their_status(self):
        async def scenario():
            live = (page(b"", 0, up_to_date=True), answer(410, b"Go", length=500))
            async with scripted(*live) as (_, client):
                with pytest.raises(HoldfastError) as caught:
                    async for _ in client.stream("b/s").read(live=True):
                        pass
                assert caught.value.status == 410

        run(scenario())
