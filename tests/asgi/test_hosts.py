"""Holdfast in other people's applications, under real ASGI servers, HTTP/2 included."""

import json
import re
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import trustme

from tests.asgi.host_process import HostProcess
from tests.asgi.hosts import PREFIX
from tests.http.streams import JSON, TEXT, Stream, check_error, data_of, producer
from tests.thorough import some_of

DEADLINE_S = 15.0
KINDS = some_of(["uvicorn-fastapi", "hypercorn-root", "uvicorn-root", "hypercorn-starlette"], 1)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module", params=KINDS)
def host(request, tmp_path_factory, authority) -> Iterator[HostProcess]:
    """Plain HTTP/1.1 under uvicorn, HTTP/2 over TLS under hypercorn."""
    directory = tmp_path_factory.mktemp("host")
    server, app = request.param.split("-")
    options: dict[str, object] = {}
    if server == "hypercorn":
        issued = authority.issue_cert("127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(directory / "cert.pem")
        issued.private_key_pem.write_to_path(directory / "key.pem")
        options = {"certfile": str(directory / "cert.pem"), "keyfile": str(directory / "key.pem")}
    with HostProcess(
        directory / "data",
        server=server,
        app=app,
        options=options,
        body_bytes_max=100_000,
        read_bytes_max=50_000,
    ) as process:
        yield process


@pytest.fixture(scope="module")
def connect_to(authority: trustme.CA) -> Callable[[HostProcess], httpx.Client]:
    """Make clients that speak HTTP/2 to hosts that do."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return lambda host: httpx.Client(
        base_url=host.streams_root, http2=True, verify=context, timeout=DEADLINE_S
    )


@pytest.fixture(scope="module")
def client(host: HostProcess, connect_to) -> Iterator[httpx.Client]:
    with connect_to(host) as client:
        yield client


@pytest.fixture
def stream(request, client: httpx.Client) -> Stream:
    """A stream with a name of its own, not created yet."""
    return Stream(client, f"asgi/{re.sub('[^a-z]+', '-', request.node.name)}")


def version(host: HostProcess) -> str:
    return "HTTP/2" if host.scheme == "https" else "HTTP/1.1"


def until(reached: Callable[[], object]) -> None:
    ends_s = time.monotonic() + DEADLINE_S
    while not reached():
        assert time.monotonic() < ends_s, "it never came about"
        time.sleep(0.02)


def live_readers(client: httpx.Client) -> float:
    page = client.get("/metrics").text
    found = re.search(r"^holdfast_live_readers (\S+)$", page, re.MULTILINE)
    assert found
    return float(found[1])


def test_life_of_a_stream(host, stream) -> None:
    created = stream.create(b"first,")
    assert created.status_code == 201
    assert created.http_version == version(host)
    assert created.headers["Location"] == f"{host.streams_root}{stream.url}"
    assert stream.create().status_code == 200
    assert stream.append(b"second,", **producer(0)).status_code == 200
    assert stream.append(b"second,", **producer(0)).status_code == 204
    head = stream.head()
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["Stream-Next-Offset"] == "13".zfill(20)
    assert stream.read().content == b"first,second,"
    assert stream.append(b"third", stream_closed="true").status_code == 204
    check_error(stream.append(b"more"), 409, "stream_closed")
    assert stream.delete().status_code == 204
    check_error(stream.read(), 404, "stream_not_found")


def test_location_leads_to_the_stream(stream) -> None:
    location = stream.create(b"here").headers["Location"]
    assert stream.client.get(location).content == b"here"


def test_names_with_odd_characters(client) -> None:
    stream = Stream(client, "odd/ä ß%2F%/~+&?#")
    created = stream.create(b"found")
    assert created.status_code == 201
    assert client.get(created.headers["Location"]).content == b"found"


def test_host_has_its_own_routes(host, client) -> None:
    if host.streams_root == host.url:
        check_error(client.get(f"{host.url}/hello"), 404, "bucket_not_found")
        return
    assert "hello" in client.get(f"{host.url}/hello").text
    assert client.get(f"{host.url}/v1/stream/a").status_code == 404
    check_error(client.get("/nothing"), 404, "bucket_not_found")


def test_health_and_metrics_are_below_the_prefix(client) -> None:
    for path in ("/healthz", "/readyz/local", "/readyz/cluster", "/cluster/status"):
        assert client.get(path).status_code == 200
    assert "holdfast_http_requests_total" in client.get("/metrics").text


def test_chunked_bodies_are_put_together(stream) -> None:
    stream.create()
    assert stream.append(iter([b"one,", b"two,", b"three"])).status_code == 204
    assert stream.read().content == b"one,two,three"


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
def test_body_beyond_the_limit_is_413(host, stream, connect_to, chunked) -> None:
    stream.create()
    pieces = [b"x" * 1000] * 101
    body = iter(pieces) if chunked else b"".join(pieces)
    # A connection of its own: hypercorn may break it off, since not all of the body was received.
    with connect_to(host) as another:
        refused = Stream(another, stream.path).append(body)
        check_error(refused, 413, "payload_too_large")
    assert stream.append(b"y" * 100_000).status_code == 204


def test_errors_and_refusals(client, stream) -> None:
    stream.create()
    check_error(stream.append(b""), 400, "invalid_request")
    check_error(stream.read("nonsense"), 400, "invalid_offset")
    refused = client.patch(stream.url, content=b"x")
    check_error(refused, 405, "method_not_allowed")
    assert "POST" in refused.headers["Allow"]
    check_error(stream.append(b"x", **producer(5)), 409, "producer_sequence_gap")
    preflight = client.options(stream.url, headers={"Origin": "https://a.example"})
    assert preflight.headers["Access-Control-Allow-Origin"] == "*"


def test_request_refused_for_its_head_does_not_end_the_connection(client, stream) -> None:
    """It carries the other streams of HTTP/2 as well."""
    stream.create()
    twice = [("Stream-Seq", "1"), ("Stream-Seq", "2"), ("Content-Type", TEXT)]
    check_error(client.post(stream.url, content=b"x", headers=twice), 400, "invalid_request")
    assert stream.read().content == b""


def test_long_poll_waits_and_is_answered(client, stream) -> None:
    stream.create(b"x")
    assert stream.long_poll("now").status_code == 204
    assert stream.long_poll("-1").content == b"x"


def test_large_reads_come_in_pages(stream) -> None:
    stream.create()
    for _ in range(3):
        stream.append(b"x" * 40_000)
    pages, offset = [], "-1"
    while len(b"".join(pages)) < 120_000:
        page = stream.read(offset)
        pages.append(page.content)
        offset = page.headers["Stream-Next-Offset"]
    assert len(pages) == 3


def test_events_arrive_as_they_happen(client, stream) -> None:
    stream.create(b"old")
    with stream.sse() as events:
        assert data_of(events.until_up_to_date()) == ["old"]
        assert live_readers(client) == 1
        for text in ("one", "two", "three"):
            stream.append(text.encode())
            assert data_of(events.until_up_to_date()) == [text]
        stream.append(b"end", stream_closed="true")
        rest = list(events)
        assert data_of(rest) == ["end"]
        assert rest[-1].json["streamClosed"] is True
    until(lambda: live_readers(client) == 0)


def test_reader_that_hangs_up_is_forgotten(host, client, stream, connect_to) -> None:
    """With its connection, since httpx does not end a single stream of HTTP/2 early."""
    stream.create(b"x")
    assert live_readers(client) == 0
    for _ in range(3):
        with connect_to(host) as another:
            with Stream(another, stream.path).sse() as events:
                events.until_up_to_date()
                assert live_readers(client) == 1
        until(lambda: live_readers(client) == 0)


def test_json_over_asgi(client, request) -> None:
    stream = Stream(client, f"asgi/json/{re.sub('[^a-z]+', '-', request.node.name)}", JSON)
    stream.create()
    stream.append(json.dumps([{"n": 1}, {"n": 2}]).encode())
    assert stream.read().json() == [{"n": 1}, {"n": 2}]
    check_error(stream.append(b"{"), 400, "invalid_json")


def test_app_that_nobody_opened_explains_itself(tmp_path: Path) -> None:
    with HostProcess(tmp_path / "data", app="unopened") as host:
        with httpx.Client(base_url=host.streams_root, timeout=DEADLINE_S) as client:
            refused = client.put("/v1/stream/a")
            check_error(refused, 503, "unavailable", "context manager")
            assert refused.headers["Retry-After"]
            head = client.head("/v1/stream/a")
            assert head.status_code == 503
            assert head.content == b""
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("app", ["root", "fastapi"])
def test_data_survives_the_host(tmp_path: Path, app: str) -> None:
    with HostProcess(tmp_path / "data", app=app) as host:
        client = httpx.Client(base_url=host.streams_root, timeout=DEADLINE_S)
        stream = Stream(client, "kept")
        stream.create(b"kept")
        client.close()
        host.stop()
    with HostProcess(tmp_path / "data", app="starlette") as host:
        with httpx.Client(base_url=host.streams_root, timeout=DEADLINE_S) as client:
            assert Stream(client, "kept").read().content == b"kept"


@pytest.mark.parametrize("server", some_of(["uvicorn", "hypercorn"], 1))
def test_host_does_not_start_on_data_in_use(tmp_path: Path, server: str) -> None:
    with HostProcess(tmp_path / "data"):
        second = HostProcess(tmp_path / "data", server=server)
        finished = subprocess.run(
            second._arguments, capture_output=True, text=True, timeout=30, check=False
        )
        second._stderr.close()
    assert finished.returncode != 0
    assert "is in use by another server" in finished.stderr


@pytest.mark.parametrize("server", some_of(["uvicorn", "hypercorn"], 1))
def test_host_stops_while_readers_are_open(tmp_path: Path, server: str) -> None:
    """The host waits for its requests before it ends the lifespan, so readers must not last."""
    options = {"timeout_graceful_shutdown": 1} if server == "uvicorn" else {"graceful_timeout": 1}
    with HostProcess(tmp_path / "data", server=server, app="fastapi", options=options) as host:
        with httpx.Client(base_url=host.streams_root, timeout=DEADLINE_S) as client:
            stream = Stream(client, "open")
            stream.create(b"x")
            with stream.sse() as events:
                events.until_up_to_date()
                host.signal(signal.SIGTERM)
                host.wait()
                assert PREFIX in host.streams_root
    with HostProcess(tmp_path / "data"):
        pass
