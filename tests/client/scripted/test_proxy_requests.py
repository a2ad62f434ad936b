"""What is sent to a proxy, how often, and what is made of its answers."""

import asyncio

import pytest

from holdfast.client import Bearer, Client, Timeouts
from holdfast.client.proxy import stream_id_of
from holdfast.errors import (
    BadAnswerError,
    ConnectRejectedError,
    HoldfastError,
    InvalidJsonError,
    InvalidRequestError,
    OutboundError,
    OverloadedError,
    ProxyNotFoundError,
    UpstreamError,
)
from holdfast.testing import HurriedClock
from tests.client.scripted.proxying import PATH, STREAM_ID, refusal
from tests.client.scripted.server import answer, broken, run, scripted

UPSTREAM = "https://api.example.com/v1/chat"
SIGNED = f"{PATH}?expires=9&signature=s3cr3t"
CREATED = answer(
    201, location=SIGNED, upstream_content_type="text/event-stream", stream_response_id="1"
)
APPENDED = answer(200, location=SIGNED, stream_response_id="7")
CONNECTED = answer(201, location=SIGNED)


class TestCreate:
    @pytest.mark.spec("proxy 4.1-3", "proxy 4.2-4", "proxy 8.4-3")
    def test_says_everything_in_headers(self):
        async def scenario():
            async with scripted(CREATED, auth=Bearer("proxy-secret")) as (server, client):
                response = await client.proxy.create(
                    UPSTREAM,
                    method="put",
                    headers={"X-Own": "1", "Content-Type": "text/x"},
                    body="hällo",
                    upstream_authorization="Bearer sk-1",
                    url_ttl_s=60,
                )
                (request,) = server.requests
                assert (request.method, request.target) == ("POST", "/v1/proxy")
                assert request.body == "hällo".encode()
                sent = {
                    "authorization": "Bearer proxy-secret",
                    "upstream-url": UPSTREAM,
                    "upstream-method": "PUT",
                    "upstream-authorization": "Bearer sk-1",
                    "stream-signed-url-ttl": "60",
                    "content-type": "text/x",
                    "x-own": "1",
                }
                assert request.headers.items() >= sent.items()
                assert not request.headers.keys() & {"use-stream-url", "session-id"}
                assert response.url == server.url + SIGNED
                assert (response.stream_id, response.response_id) == (STREAM_ID, 1)
                assert response.content_type == "text/event-stream"

        run(scenario())

    @pytest.mark.parametrize(
        ("body", "sent", "content_type"),
        [
            (b"\0\xff", b"\0\xff", None),
            (bytearray(b"x"), b"x", None),
            ("text", b"text", None),
            ({"a": [1]}, b'{"a":[1]}', "application/json"),
            ([], b"[]", "application/json"),
            (None, b"null", "application/json"),
            (b"", b"", None),
        ],
    )
    def test_body_is_bytes_text_or_json(self, body, sent, content_type):
        async def scenario():
            async with scripted(CREATED) as (server, client):
                await client.proxy.create(UPSTREAM, body=body)
                assert server.requests[0].body == sent
                assert server.sent("content-type") == [content_type]
                assert server.sent("upstream-authorization") == [None]
                assert server.sent("stream-signed-url-ttl") == [None]

        run(scenario())

    def test_content_type_of_json_may_be_another(self):
        async def scenario():
            async with scripted(CREATED) as (server, client):
                headers = {"content-type": "application/x+json"}
                await client.proxy.create(UPSTREAM, body={}, headers=headers)
                assert server.sent("content-type") == ["application/x+json"]

        run(scenario())

    def test_credentials_may_come_from_a_function(self):
        async def scenario():
            async def fetch():
                return "Bearer fetched"

            async with scripted(CREATED, CREATED) as (server, client):
                for value in (fetch, lambda: "Bearer made"):
                    await client.proxy.create(UPSTREAM, upstream_authorization=value)
                assert server.sent("upstream-authorization") == ["Bearer fetched", "Bearer made"]

        run(scenario())

    @pytest.mark.parametrize(
        ("url", "options", "error", "words"),
        [
            ("api.example.com", {}, InvalidRequestError, "not an upstream URL"),
            ("https://exämple.com", {}, InvalidRequestError, "not an upstream URL"),
            ("https://h/a b", {}, InvalidRequestError, "not an upstream URL"),
            ("https://h/\r\nX: y", {}, InvalidRequestError, "not an upstream URL"),
            (UPSTREAM, {"method": "HEAD"}, InvalidRequestError, "use GET, POST, PUT, PATCH"),
            (
                UPSTREAM,
                {"headers": {"authorization": "x"}},
                InvalidRequestError,
                "as upstream_authorization",
            ),
            (UPSTREAM, {"headers": {"Session-Id": "x"}}, InvalidRequestError, "Session-Id is set"),
            (UPSTREAM, {"headers": {"host": "x"}}, InvalidRequestError, "host is set"),
            (
                UPSTREAM,
                {"upstream_authorization": "Bearer ü"},
                InvalidRequestError,
                r"printable ASCII characters\.$",
            ),
            (UPSTREAM, {"url_ttl_s": -1}, InvalidRequestError, "0 or more"),
            (UPSTREAM, {"body": object()}, InvalidJsonError, "as JSON"),
            (UPSTREAM, {"headers": {"X": "a\nb"}}, OutboundError, "cannot be sent"),
        ],
    )
    def test_what_is_wrong_is_said_before_anything_is_sent(self, url, options, error, words):
        async def scenario():
            async with scripted() as (server, client):
                with pytest.raises(error, match=words):
                    await client.proxy.create(url, **options)
                assert server.requests == []

        run(scenario())

    def test_another_make_may_have_it_elsewhere(self):
        async def scenario():
            async with scripted(CREATED, proxy_path="/p/") as (server, client):
                await client.proxy.create(UPSTREAM)
                assert server.requests[0].target == "/p"

        run(scenario())


class TestAnswers:
    @pytest.mark.parametrize(
        ("prepared", "words"),
        [
            (answer(201, stream_response_id="1"), "no Location"),
            (answer(201, location="http://[", stream_response_id="1"), "not a URL"),
            (answer(201, location=SIGNED, stream_response_id="x"), "Stream-Response-Id"),
            (answer(201, location=SIGNED, stream_response_id="0"), "Stream-Response-Id"),
            (answer(201, location=SIGNED, stream_response_id="9" * 40), "Stream-Response-Id"),
        ],
    )
    def test_that_lack_something_are_bad(self, prepared, words):
        async def scenario():
            async with scripted(prepared) as (_, client):
                with pytest.raises(BadAnswerError, match=words):
                    await client.proxy.create(UPSTREAM)

        run(scenario())

    def test_first_response_of_a_new_stream_needs_no_number(self):
        async def scenario():
            async with scripted(answer(201, location="https://other/p/id?signature=s")) as (
                _,
                client,
            ):
                response = await client.proxy.create(UPSTREAM)
                assert response.url == "https://other/p/id?signature=s"
                assert (response.stream_id, response.response_id) == ("id", 1)

        run(scenario())

    def test_that_are_off_say_so(self):
        async def scenario():
            async with scripted(refusal(404, "NOT_FOUND")) as (_, client):
                with pytest.raises(ProxyNotFoundError):
                    await client.proxy.create(UPSTREAM)

        run(scenario())

    def test_signed_urls_are_not_shown(self):
        async def scenario():
            async with scripted(CREATED, CONNECTED, refusal(500, "x", u=SIGNED)) as (_, client):
                response = await client.proxy.create(UPSTREAM)
                session = await client.proxy.connect("chat")
                with pytest.raises(HoldfastError, match="This is x") as caught:
                    await client.proxy.create(UPSTREAM)
                shown = [response, session, client.proxy, response.follow(), session.frames()]
                shown += [caught.value, client.stream(response.url)]
                for each in shown:
                    assert "s3cr3t" not in f"{each!r} {each!s}"
                    assert "signature=s" not in repr(each)

        run(scenario())


class TestRepetition:
    """A request to an upstream may cost money."""

    @pytest.mark.parametrize(
        "failure",
        [
            broken(),
            answer(500),
            answer(502),
            answer(503, retry_after="0"),
            answer(504),
            answer(408),
            answer(425),
            refusal(502, "STORAGE_ERROR"),
            refusal(504, "UPSTREAM_TIMEOUT"),
            refusal(503, "commit_unknown"),
            refusal(503, "unavailable"),
            answer(502, upstream_status="503"),
        ],
        ids=range(12),
    )
    def test_none_if_the_upstream_may_have_been_called(self, failure):
        async def scenario():
            for append in (False, True):
                async with scripted(failure, clock=HurriedClock()) as (server, client):
                    proxy = client.proxy
                    asked = proxy.append(SIGNED, UPSTREAM) if append else proxy.create(UPSTREAM)
                    with pytest.raises(HoldfastError):
                        await asked
                    assert len(server.requests) == 1

        run(scenario())

    def test_of_what_was_refused_before(self):
        async def scenario():
            clock = HurriedClock()
            refused = [refusal(503, "overloaded"), answer(429, retry_after="7")]
            async with scripted(*refused, CREATED, clock=clock) as (server, client):
                await client.proxy.create(UPSTREAM, body="once")
                assert [request.body for request in server.requests] == [b"once"] * 3
                assert clock.delays_s[1] == 7.0

        run(scenario())

    def test_of_what_was_refused_ends_with_the_attempts(self):
        async def scenario():
            refused = [refusal(503, "overloaded")] * 4
            async with scripted(*refused, clock=HurriedClock()) as (server, client):
                with pytest.raises(OverloadedError):
                    await client.proxy.create(UPSTREAM)
                assert len(server.requests) == 4

        run(scenario())

    def test_where_no_connection_came_about(self):
        async def scenario():
            told = []
            async with Client(
                "http://127.0.0.1:1",
                clock=HurriedClock(),
                on_retry=lambda error, _: told.append(error),
            ) as client:
                with pytest.raises(OutboundError):
                    await client.proxy.create(UPSTREAM)
            assert len(told) == 9

        run(scenario())

    def test_of_connects_after_anything_that_may_pass(self):
        async def scenario():
            failures = [broken(), refusal(502, "STORAGE_ERROR"), answer(503)]
            async with scripted(*failures, CONNECTED, clock=HurriedClock()) as (server, client):
                assert (await client.proxy.connect("chat")).created
                assert server.sent("session-id") == ["chat"] * 4

        run(scenario())

    def test_time_for_the_upstream_is_more_than_that_of_other_requests(self):
        async def scenario():
            async def slow(_request):
                await asyncio.sleep(0.2)
                return CREATED

            limits = Timeouts(request_s=0.1)
            async with scripted(slow, slow, timeouts=limits) as (server, client):
                await client.proxy.create(UPSTREAM)
                with pytest.raises(OutboundError, match=r"within 0\.05 s"):
                    await client.proxy.create(UPSTREAM, timeout_s=0.05)
                assert len(server.requests) == 2

        run(scenario())


class TestOthers:
    @pytest.mark.spec("proxy 4.1-1")
    def test_append_names_the_stream(self):
        async def scenario():
            async with scripted(APPENDED) as (server, client):
                response = await client.proxy.append(SIGNED, UPSTREAM, method="GET")
                assert server.sent("use-stream-url") == [SIGNED]
                assert server.sent("upstream-method") == ["GET"]
                assert response.response_id == 7

        run(scenario())

    def test_append_needs_a_number(self):
        async def scenario():
            async with scripted(CONNECTED) as (_, client):
                with pytest.raises(BadAnswerError, match="Stream-Response-Id"):
                    await client.proxy.append(SIGNED, UPSTREAM)

        run(scenario())

    @pytest.mark.spec("proxy 4.1-2", "proxy 4.4-5")
    def test_connect_names_the_session_and_who_decides(self):
        async def scenario():
            async with scripted(CONNECTED, answer(200, location=SIGNED)) as (server, client):
                session = await client.proxy.connect("chat 1")
                assert (session.session_id, session.stream_id) == ("chat 1", STREAM_ID)
                assert session.created
                again = await client.proxy.connect(
                    "chat 1",
                    auth_url="https://auth.example.com/may",
                    upstream_authorization="Bearer me",
                    body={"room": 5},
                    headers={"X-Own": "1"},
                    url_ttl_s=5,
                )
                assert not again.created
                first, second = server.requests
                assert not first.headers.keys() & {"upstream-url", "upstream-method"}
                assert second.headers["upstream-url"] == "https://auth.example.com/may"
                assert "upstream-method" not in second.headers
                assert second.headers["upstream-authorization"] == "Bearer me"
                assert second.headers["stream-signed-url-ttl"] == "5"
                assert (second.headers["x-own"], second.body) == ("1", b'{"room":5}')

        run(scenario())

    @pytest.mark.parametrize("session_id", ["", " x", "x ", "für", "a\nb"])
    def test_session_that_no_header_can_name_is_refused(self, session_id):
        async def scenario():
            async with scripted() as (_, client):
                with pytest.raises(InvalidRequestError, match="session"):
                    await client.proxy.connect(session_id)

        run(scenario())

    def test_connect_that_is_rejected_is_not_repeated(self):
        async def scenario():
            async with scripted(refusal(401, "CONNECT_REJECTED")) as (_, client):
                with pytest.raises(ConnectRejectedError):
                    await client.proxy.connect("chat")

        run(scenario())

    @pytest.mark.spec("proxy 4.6-5")
    def test_abort_is_repeated_until_it_is_answered(self):
        async def scenario():
            script = (broken(), answer(204), answer(204))
            async with scripted(*script, clock=HurriedClock()) as (server, client):
                await client.proxy.abort(server.url + SIGNED)
                await client.proxy.abort(server.url + SIGNED, 3)
                assert {request.method for request in server.requests} == {"PATCH"}
                assert server.asked("action") == ["abort"] * 3
                assert server.asked("signature") == ["s3cr3t"] * 3
                assert server.asked("response") == [None, None, "3"]
                with pytest.raises(InvalidRequestError, match="count from 1"):
                    await client.proxy.abort(SIGNED, 0)

        run(scenario())

    @pytest.mark.spec("proxy 4.7-2", "proxy 4.8-3")
    def test_head_and_delete_name_the_stream_by_its_id(self):
        async def scenario():
            head = answer(200, content_type="application/octet-stream", stream_next_offset="5")
            script = (head, answer(204))
            async with scripted(*script, auth=Bearer("proxy-secret")) as (server, client):
                assert (await client.proxy.head(STREAM_ID)).next_offset == "5"
                await client.proxy.delete(STREAM_ID)
                assert [request.method for request in server.requests] == ["HEAD", "DELETE"]
                assert [request.target for request in server.requests] == [PATH] * 2
                assert server.sent("authorization") == ["Bearer proxy-secret"] * 2

        run(scenario())

    def test_upstream_that_refuses_is_told(self):
        async def scenario():
            refused = answer(
                502, b'{"error": {"message": "No."}}', upstream_status="401", content_type="text/x"
            )
            async with scripted(refused) as (_, client):
                with pytest.raises(UpstreamError, match="The upstream answered 401: No") as caught:
                    await client.proxy.create(UPSTREAM)
                assert caught.value.upstream_status == 401
                assert caught.value.content_type == "text/x"
                assert caught.value.body == b'{"error": {"message": "No."}}'

        run(scenario())


def test_id_of_a_stream_is_the_last_part_of_its_path():
    assert stream_id_of(f"https://h/x/{STREAM_ID}?expires=1&signature=a/b") == STREAM_ID
