"""Long-polls and events of proxy streams."""

import json
import time
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.http.streams import EventStream
from tests.proxy.proxying import (
    DEADLINE_S,
    PATH,
    SECRET,
    body_of,
    check_error,
    frames_of,
    id_of,
    sign,
)
from tests.upstreams import pattern


@pytest.mark.spec("proxy 4.5-2", "proxy 4.5-7", "proxy 1.1-1")
def test_a_long_poll_gives_what_comes(proxy, upstream) -> None:
    location = proxy.created(upstream.url("/bytes", count=5, gate=1))
    request = upstream.next()
    tail = proxy.client.get(location).headers["stream-next-offset"]
    with ThreadPoolExecutor(1) as pool:
        polled = pool.submit(proxy.frames, location, lambda frames: body_of(frames) == pattern(5))
        request.release()
        polled.result()
    answer = proxy.client.get(f"{location}&offset={tail}&live=long-poll")
    assert answer.status_code == 200
    assert int(answer.headers["stream-cursor"]) > 0
    assert frames_of(answer.content)[0].payload == pattern(5)
    request.release()
    proxy.frames(location)


@pytest.mark.spec("proxy 4.5-7", "proxy 4.5-2")
def test_a_long_poll_that_finds_nothing(proxy) -> None:
    location = proxy.connected()
    answer = proxy.client.get(f"{location}&offset=-1&live=long-poll")
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["stream-up-to-date"] == "true"
    assert answer.headers["stream-next-offset"] == "0" * 20
    cursor = int(answer.headers["stream-cursor"])
    again = proxy.client.get(f"{location}&offset=-1&live=long-poll&cursor={cursor}")
    assert int(again.headers["stream-cursor"]) > cursor


@pytest.mark.spec("proxy 4.5-2")
def test_a_long_poll_needs_an_offset(proxy) -> None:
    assert proxy.client.get(f"{proxy.connected()}&live=long-poll").status_code == 400


@pytest.mark.spec("proxy 4.5-2", "proxy 1.1-2")
def test_events_hold_the_frames_in_base64(proxy, upstream) -> None:
    location = proxy.created(upstream.url("/bytes", count=30, piece=10, gate=1))
    request = upstream.next()
    url = f"{location}&offset=-1&live=sse"
    data = b""
    with proxy.client.stream("GET", url) as response:
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["stream-sse-data-encoding"] == "base64"
        for event in EventStream(response):
            if event.type == "data":
                data += b64decode(event.data)
                request.release()
            else:
                assert event.type == "control"
                assert int(event.json["streamNextOffset"]) == len(data)
                assert event.json["upToDate"] is True
            if data.endswith(b"C\x00\x00\x00\x01\x00\x00\x00\x00"):
                break
    assert body_of(frames_of(data)) == pattern(30)
    assert data == proxy.client.get(location).content


@pytest.mark.spec("proxy 4.5-2")
@pytest.mark.parametrize("how", ["signed", "secret", "bearer"])
def test_everybody_who_may_read_may_do_so_live(proxy, upstream, how) -> None:
    location = proxy.created(upstream.url("/fixed", body="x"))
    proxy.frames(location)
    path = f"{PATH}/{id_of(location)}"
    url = {"signed": location, "secret": f"{path}?secret={SECRET}", "bearer": f"{path}?a=b"}[how]
    headers = proxy.service if how == "bearer" else {}
    poll = proxy.client.get(f"{url}&offset=-1&live=long-poll", headers=headers)
    assert len(frames_of(poll.content)) == 3
    with proxy.client.stream("GET", f"{url}&offset=-1&live=sse", headers=headers) as response:
        event = EventStream(response).next()
    assert b64decode(event.data) == poll.content


@pytest.mark.spec("proxy 8.2-3", "proxy 8.5-2")
def test_a_live_read_lasts_no_longer_than_its_url(proxy) -> None:
    stream_id = id_of(proxy.connected())
    expires = int(time.time()) + 2
    url = f"{PATH}/{stream_id}?{sign(stream_id, expires)}&offset=-1&live=sse"
    with proxy.client.stream("GET", url) as response:
        for line in response.iter_lines():
            if line.startswith("data:"):
                assert "streamNextOffset" in json.loads(line[5:])
    assert time.time() >= expires - 1
    check_error(proxy.client.get(url), 401, "SIGNATURE_EXPIRED")


@pytest.mark.parametrize("how", ["close", "delete"])
def test_live_readers_hear_of_the_end_of_the_stream(proxy, how) -> None:
    location = proxy.connected()
    with httpx.Client(base_url=proxy.client.base_url, timeout=DEADLINE_S) as reader:
        with reader.stream("GET", f"{location}&offset=-1&live=sse") as response:
            events = EventStream(response)
            events.next()
            if how == "close":
                assert proxy.close(location).status_code == 204
                assert events.next().json["streamClosed"] is True
            else:
                proxy.client.delete(location, headers=proxy.service)
            assert not [event for event in events if event.type == "data"]


def test_a_long_poll_of_a_stream_that_is_deleted(proxy, connect) -> None:
    location = proxy.connected()
    polling = connect()
    polling.request("GET", f"{proxy.at(location)}&offset=-1&live=long-poll")
    # One loop serves both connections in the order of arrival: it waits once this is answered.
    proxy.client.head(location, headers=proxy.service)
    assert proxy.client.delete(location, headers=proxy.service).status_code == 204
    answer = polling.response()
    assert answer.status == 404
    assert json.loads(answer.body)["error"]["code"] == "STREAM_NOT_FOUND"
