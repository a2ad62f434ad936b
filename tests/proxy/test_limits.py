"""What is bounded: the memory that responses take up, and how many there are at one time."""

import hashlib
import os
import signal
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.crash.storage_kills import child_of
from tests.proxy.proxying import (
    ALLOWLIST,
    DEADLINE_S,
    SECRET,
    Proxy,
    body_of,
    check_error,
    ended,
    kinds_of,
)
from tests.server_process import ServerProcess
from tests.storage_stats import metrics, until
from tests.upstreams import pattern
from tests.upstreams.fixtures import secure_upstream
from tests.upstreams.replies import generated

__all__ = ["secure_upstream"]

MEBIBYTE = 1 << 20
HUGE = 64 * MEBIBYTE
# Room for a part of a huge response only.
SMALL = {"hot_bytes_soft": 2 * MEBIBYTE, "hot_bytes_hard": 6 * MEBIBYTE}


def peak_bytes(pid: int) -> int:
    """The most memory that a process has ever taken up."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def digest_of(pieces: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def data_of(proxy: Proxy, location: str) -> Iterator[bytes]:
    """What the Data frames of a stream's only response hold, page by page, up to its end."""
    data, offset = b"", "-1"
    while True:
        answer = proxy.client.get(f"{proxy.at(location)}&offset={offset}&live=long-poll")
        assert answer.status_code in {200, 204}, answer.text
        offset = answer.headers["stream-next-offset"]
        data += answer.content
        while len(data) >= 9:
            kind, _, length = struct.unpack_from(">cII", data)
            if len(data) < 9 + length:
                break
            if kind == b"D":
                yield data[9 : 9 + length]
            elif kind != b"S":
                assert kind == b"C", data
                return
            data = data[9 + length :]


def test_a_huge_response_takes_little_memory(start_server, client_of, upstream) -> None:
    server = start_server(**SMALL)
    proxy = Proxy(client_of(server))
    # Whatever is loaded on first use is no part of it.
    assert body_of(proxy.recorded(upstream.url("/bytes", count=MEBIBYTE))) == pattern(MEBIBYTE)
    before = peak_bytes(server.pid)
    location = proxy.created(upstream.url("/bytes", count=HUGE))
    assert digest_of(data_of(proxy, location)) == digest_of(generated(HUGE))
    assert peak_bytes(server.pid) - before < HUGE // 2


def test_huge_responses_that_share_a_connection(
    start_server, client_of, secure_upstream, tmp_path, monkeypatch
) -> None:
    """Over HTTP/2 the proxy itself says how much may come."""
    monkeypatch.setenv("SSL_CERT_FILE", str(secure_upstream.write_authority(tmp_path)))
    server = start_server(**SMALL, proxy_allowlist="https://127.0.0.1:*")
    proxy = Proxy(client_of(server))
    size = HUGE // 4
    locations = [proxy.created(secure_upstream.url("/bytes", count=size)) for _ in range(2)]
    wanted = digest_of(generated(size))
    assert [digest_of(data_of(proxy, each)) for each in locations] == [wanted, wanted]
    assert secure_upstream.connections == 1


@pytest.mark.slow
def test_upstreams_wait_while_nothing_can_be_stored(start_server, client_of, upstream) -> None:
    server = start_server(**SMALL)
    proxy = Proxy(client_of(server))
    child = until(lambda: child_of(server))
    before = peak_bytes(server.pid)
    os.kill(child, signal.SIGSTOP)
    try:
        location = proxy.created(upstream.url("/bytes", count=HUGE, piece=65_536))
        request = upstream.next()
        # It is told again and again that there is no room.
        until(lambda: metrics(proxy.client)["holdfast_write_backpressure_refusals_total"] >= 3)
        sent = request.sent
        assert sent * 65_536 < HUGE // 2
        until(lambda: metrics(proxy.client)["holdfast_write_backpressure_refusals_total"] >= 5)
        # Nothing has moved, and everybody is still there.
        assert request.sent == sent
        assert not request.disconnected
        # Others are refused at once, and take no id.
        check_error(proxy.append(location, upstream.url()), 502, "STORAGE_ERROR")
        assert peak_bytes(server.pid) - before < HUGE // 2
    finally:
        os.kill(child, signal.SIGCONT)
    assert digest_of(data_of(proxy, location)) == digest_of(generated(HUGE))
    assert proxy.appended(location, upstream.url()) == 2


def test_a_full_bucket_ends_responses(start_proxy, upstream) -> None:
    """They are told of it, although there is no room."""
    proxy = start_proxy(bucket_bytes_max=100_000)
    location = proxy.created(upstream.url("/bytes", count=1 << 30, piece=8000, delay_ms=1))
    request = upstream.next()
    request.wait_for_disconnect()
    *_, error = frames = proxy.frames(location)
    assert kinds_of(frames) == "SDE"
    assert error.json["code"] == "STORAGE_ERROR"
    body = body_of(frames)
    assert body == pattern(len(body))
    # The frame that crosses the limit is stored whole, as are those that wait for the disk.
    assert 80_000 < len(body) < 100_000 + 4 * 65_536


@pytest.fixture(scope="module")
def narrow(tmp_path_factory) -> Iterator[Proxy]:
    """The proxy of a server that calls two upstreams at a time."""
    settings = {
        "proxy_secret": SECRET,
        "proxy_allowlist": ALLOWLIST,
        "proxy_upstreams_max": 2,
        "proxy_header_timeout": 1,
    }
    with ServerProcess(tmp_path_factory.mktemp("narrow") / "data", **settings) as process:
        with httpx.Client(base_url=process.url, timeout=DEADLINE_S) as client:
            yield Proxy(client)


def is_full(proxy: Proxy, url: str) -> bool:
    """Whether there is no room for another upstream."""
    answer = proxy.create(url)
    if answer.status_code == 201:
        proxy.frames(answer.headers["location"])
        return False
    assert answer.status_code == 503, answer.text
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["code"] == "overloaded"
    return True


ENDS = ("complete", "broken", "aborted", "closed", "deleted")


@pytest.mark.parametrize("end", ENDS)
def test_there_is_room_again_once_a_response_has_ended(narrow, upstream, end) -> None:
    query = {"end": "cut"} if end == "broken" else {}
    url = upstream.url("/bytes", count=20, piece=10, gate=1, **query)
    locations = [narrow.created(url) for _ in range(2)]
    requests = [upstream.next() for _ in locations]
    refusals = metrics(narrow.client)["holdfast_proxy_refusals_total"]
    assert metrics(narrow.client)["holdfast_proxy_upstreams"] == 2
    assert is_full(narrow, upstream.url())
    assert metrics(narrow.client)["holdfast_proxy_refusals_total"] == refusals + 1
    for location, request in zip(locations, requests, strict=True):
        if end == "aborted":
            narrow.abort(location)
        elif end == "closed":
            narrow.close(location)
        elif end == "deleted":
            narrow.client.delete(narrow.base_path(location), headers=narrow.service)
        else:
            request.release_all()
        until(lambda: not is_full(narrow, upstream.url()))
    until(lambda: metrics(narrow.client)["holdfast_proxy_upstreams"] == 0)


@pytest.mark.spec("proxy 5.3-3")
def test_there_is_room_again_once_a_call_has_failed(narrow, upstream) -> None:
    """As often as there could be room missing afterwards."""
    with ThreadPoolExecutor(2) as pool:
        late = [pool.submit(narrow.create, upstream.url("/never")) for _ in range(2)]
        for _ in late:
            upstream.next()
        assert is_full(narrow, upstream.url())
        for each in late:
            check_error(each.result(), 504, "UPSTREAM_TIMEOUT")
    for url in (
        upstream.url("/error", status=500),
        upstream.url("/redirect"),
        upstream.url("/raw", body="no HTTP"),
    ):
        for _ in range(3):
            assert narrow.create(url).status_code in {400, 502}
    location = narrow.connected()
    for number in (1, 2):
        assert narrow.appended(location, upstream.url("/fixed", body="x")) == number
        narrow.frames(location, ended(number))
