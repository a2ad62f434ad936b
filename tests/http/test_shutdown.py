"""SIGTERM: live readers get a last word, requests in flight an answer, and the process ends."""

import resource
import signal
import time
from contextlib import ExitStack

import httpx
import pytest

from tests.http.raw import RawConnection

READERS = 1000
EXIT_DEADLINE_S = 10.0


@pytest.fixture
def many_files():
    """Allow this process, and the server it starts, enough open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * READERS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"the limit of open files is {hard}, below {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_live_readers_get_a_last_word(start_server, stream_on) -> None:
    server = start_server(long_poll_timeout=600)
    stream = stream_on(server, body=b"x")
    with stream.sse() as events, RawConnection(server.port) as waiting:
        events.until_up_to_date()
        waiting.request("GET", f"{stream.url}?offset=now&live=long-poll")
        stream.head()
        server.signal(signal.SIGTERM)
        last = list(events)[-1]
        assert last.type == "control"
        assert last.json["streamNextOffset"] == "1".zfill(20)
        assert "streamClosed" not in last.json
        assert waiting.response().status in {204, 503}
        assert waiting.ended()
    assert server.wait() == 0


def test_process_ends_in_time_with_many_live_readers(many_files, start_server, stream_on) -> None:
    server = start_server()
    stream = stream_on(server, body=b"x")
    with ExitStack() as stack:
        readers = [stack.enter_context(RawConnection(server.port)) for _ in range(READERS)]
        for reader in readers:
            reader.request("GET", f"{stream.url}?offset=-1&live=sse")
        for reader in readers:
            reader.read_until(b"upToDate")
        server.signal(signal.SIGTERM)
        asked = time.monotonic()
        assert server.wait() == 0
        assert time.monotonic() - asked < EXIT_DEADLINE_S
        assert all(b"event: control" in reader.rest() for reader in readers)


def test_idle_and_stuck_connections_do_not_hold_up_the_end(start_server, stream_on) -> None:
    server = start_server(shutdown_timeout=0.5)
    stream = stream_on(server, body=b"x")
    assert stream.read().content == b"x"  # httpx keeps its connection open
    with RawConnection(server.port) as stuck:
        stuck.send(b"GET /v1/stream/")
        assert server.stop() == 0


def test_stopped_server_takes_no_connections(start_server) -> None:
    server = start_server()
    server.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)


def test_sigint_ends_the_process_too(start_server) -> None:
    server = start_server()
    server.signal(signal.SIGINT)
    assert server.wait() == 0


def test_second_server_on_the_same_data_is_told_why_not(start_server, stream_on) -> None:
    server = start_server()
    stream = stream_on(server, body=b"x")
    with pytest.raises(AssertionError, match=r"(?i)another|lock"):
        start_server()
    assert stream.read().content == b"x"
