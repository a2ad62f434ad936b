"""TLS on the listener."""

import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path

import httpx
import pytest
import trustme

from holdfast.settings import Settings
from tests.http.streams import TEXT, Stream
from tests.server_process import ServerProcess


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> dict[str, str]:
    """Certificate and key files, as settings."""
    issued = authority.issue_cert("127.0.0.1", "localhost")
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    (tmp_path / "cert.pem").write_bytes(chain)
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    return {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}


@pytest.fixture
def context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.fixture
def server(start_server, files) -> ServerProcess:
    return start_server(**files, header_timeout=0.5)


@pytest.fixture
def stream(server, context):
    with httpx.Client(base_url=server.url, verify=context, timeout=10) as client:
        yield Stream(client, "secure/one", TEXT)


def test_streams_over_tls(server, stream) -> None:
    assert server.scheme == "https"
    created = stream.create(b"first,")
    assert created.headers["Location"] == f"{server.url}{stream.url}"
    assert stream.append(b"x" * 1_000_000).status_code == 204
    assert stream.read().content == b"first," + b"x" * 1_000_000
    stream.append(b",last", stream_closed="true")
    with stream.sse() as events:
        received = "".join(event.data for event in events if event.type == "data")
    assert received == "first," + "x" * 1_000_000 + ",last"


def test_shutdown_ends_readers_cleanly(server, stream) -> None:
    stream.create(b"x")
    with stream.sse() as events:
        events.until_up_to_date()
        server.signal(signal.SIGTERM)
        asked_s = time.monotonic()
        assert [event.type for event in events] == ["control"]
    assert server.wait() == 0
    # It does not wait for a client that keeps its connection and never says goodbye.
    assert time.monotonic() - asked_s < Settings().server.shutdown_timeout_s


def test_plain_http_is_not_answered(server, stream) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP/")
    assert stream.create().status_code == 201
    assert "Traceback" not in server.stderr()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_protocol_versions_are_refused(server, stream) -> None:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain:
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            context.wrap_socket(plain, server_hostname="127.0.0.1")
    assert stream.create().status_code == 201


def test_http_1_1_is_negotiated(server, context) -> None:
    context.set_alpn_protocols(["h2", "http/1.1"])
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain:
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            assert secure.selected_alpn_protocol() == "http/1.1"


def run_with(tmp_path: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    server = ServerProcess(tmp_path / "data", **settings)
    finished = subprocess.run(
        server._arguments, capture_output=True, text=True, timeout=30, check=False
    )
    server._stderr.close()
    return finished


@pytest.mark.parametrize(
    "wrong",
    ["another key", "no key", "certificate as key", "missing file", "directory", "only one"],
)
def test_unusable_files_are_one_clear_line(tmp_path: Path, files, authority, wrong) -> None:
    key = Path(files["tls_key"])
    match wrong:
        case "another key":
            key.write_bytes(authority.issue_cert("other").private_key_pem.bytes())
        case "no key":
            key.write_bytes(b"")
        case "certificate as key":
            key.write_bytes(Path(files["tls_cert"]).read_bytes())
        case "missing file":
            key.unlink()
        case "directory":
            files["tls_key"] = str(tmp_path)
        case "only one":
            del files["tls_key"]
    finished = run_with(tmp_path, **files)
    assert finished.returncode != 0
    assert finished.stdout == ""
    lines = finished.stderr.splitlines()
    assert len(lines) == 1, finished.stderr
    assert lines[0].startswith("holdfast: ")
    assert "key" in lines[0]
    # Nothing keeps the directory: the next server starts.
    with ServerProcess(tmp_path / "data"):
        pass
