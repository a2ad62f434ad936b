"""TTL and expiry, in real seconds: few tests, each with several streams at once."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.http.streams import Stream, check_error, producer

DEADLINE_S = 10.0


def wait_until_gone(*streams: Stream) -> None:
    """Ask with HEAD, which renews nothing, until the streams are gone."""
    deadline = time.monotonic() + DEADLINE_S
    while [stream for stream in streams if stream.head().status_code != 404]:
        assert time.monotonic() < deadline, "the streams do not expire"
        time.sleep(0.05)


def in_one_second() -> str:
    return (datetime.now(UTC) + timedelta(seconds=1)).isoformat()


@pytest.mark.spec("base 4-6")
def test_stream_is_gone_after_its_ttl_or_expiry_time(new_stream) -> None:
    streams = [
        new_stream(body=b"x", stream_ttl="1"),
        new_stream(body=b"x", stream_ttl="1", stream_closed="true"),
        new_stream(body=b"x", stream_expires_at=in_one_second()),
    ]
    wait_until_gone(*streams)
    for stream in streams:
        for response in (
            stream.read(),
            stream.long_poll("-1"),
            stream.append(b"y"),
            stream.close(),
        ):
            check_error(response, 404, "stream_not_found")
        check_error(stream.delete(), 404, "stream_not_found")


@pytest.mark.spec("base 4-6")
def test_name_of_an_expired_stream_can_be_used_for_another(new_stream) -> None:
    stream = new_stream(body=b"first", stream_ttl="1")
    stream.append(b"!", **producer(0, epoch=7))
    etag = stream.read().headers["ETag"]
    wait_until_gone(stream)
    assert stream.create(b"second").status_code == 201
    again = stream.read()
    assert again.content == b"second"
    assert again.headers["ETag"] != etag
    assert stream.append(b"!", **producer(0)).status_code == 200


def test_ttl_of_zero_and_past_expiry_leave_no_stream(absent) -> None:
    for headers in ({"stream_ttl": "0"}, {"stream_expires_at": "2001-01-31T12:00:00Z"}):
        stream = absent()
        assert stream.create(b"x", **headers).status_code in {201, 400}
        wait_until_gone(stream)


@pytest.mark.spec("base 4-6")
def test_reads_and_writes_renew_the_ttl_and_nothing_else_does(new_stream) -> None:
    started = time.monotonic()
    renewals: dict[str, Callable[[Stream], object]] = {
        "read": lambda stream: stream.read(),
        "read at now": lambda stream: stream.read("now"),
        "append": lambda stream: stream.append(b"x"),
        "producer": lambda stream: stream.append(b"x", **producer(0, epoch=time.time_ns() // 1000)),
        "long-poll": lambda stream: stream.long_poll("-1"),
    }
    renewed = {name: new_stream(body=b"x", stream_ttl="2") for name in renewals}
    only_looked_at = new_stream(body=b"x", stream_ttl="2")
    not_sliding = new_stream(
        body=b"x", stream_expires_at=(datetime.now(UTC) + timedelta(seconds=2)).isoformat()
    )
    while time.monotonic() < started + 3:
        for name, renew in renewals.items():
            renew(renewed[name])
        only_looked_at.head()
        not_sliding.append(b"x")
        time.sleep(0.1)
    assert {name for name, stream in renewed.items() if stream.head().status_code != 200} == set()
    wait_until_gone(only_looked_at, not_sliding)


def test_fixed_ttl_counts_from_creation(start_server, stream_on) -> None:
    stream = stream_on(start_server(stream_ttl="fixed"), body=b"x", stream_ttl="2")
    deadline = time.monotonic() + DEADLINE_S
    remaining = []
    while (head := stream.head()).status_code == 200:
        assert time.monotonic() < deadline, "reads must not renew a fixed TTL"
        remaining.append(int(head.headers["Stream-TTL"]))
        stream.read()
        time.sleep(0.1)
    assert remaining == sorted(remaining, reverse=True)
    assert max(remaining) <= 2
    assert min(remaining) < 2


@pytest.mark.spec("base 4-6")
def test_expiry_ends_waiting_readers(new_patient_stream, start_long_poll) -> None:
    expires = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    stream = new_patient_stream(body=b"x", stream_expires_at=expires)
    waiting = start_long_poll(stream, "now")
    with stream.sse("now") as events:
        assert [event for event in events if event.type == "data"] == []
    assert waiting.response().status == 404


@pytest.mark.spec("base 4-2", "base 4-6")
def test_expiry_is_kept_across_a_restart(start_server, stream_on, client_of) -> None:
    first = start_server()
    lasting = stream_on(first, body=b"x", stream_ttl="3600")
    dated = stream_on(first, body=b"x", stream_expires_at="2099-01-31T12:00:00Z")
    brief = stream_on(first, body=b"x", stream_expires_at=in_one_second())
    first.kill()
    client = client_of(start_server())
    for stream in (lasting, dated, brief):
        stream.client = client
    assert lasting.head().headers["Stream-TTL"] == "3600"
    assert dated.head().headers["Stream-Expires-At"] == "2099-01-31T12:00:00Z"
    wait_until_gone(brief)
