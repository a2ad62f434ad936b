"""Headers that protect browsers, on every kind of answer, and TLS."""

import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import trustme

ANSWERS = {
    "create": (201, lambda new, absent: absent().create()),
    "create again": (200, lambda new, absent: new().create()),
    "append": (204, lambda new, absent: new().append(b"x")),
    "close": (204, lambda new, absent: new().close()),
    "read": (200, lambda new, absent: new(body=b"x").read()),
    "read at the tail": (200, lambda new, absent: new().read()),
    "read at now": (200, lambda new, absent: new().read("now")),
    "not modified": (304, lambda new, absent: new().get({}, if_none_match="*")),
    "long-poll": (200, lambda new, absent: new(body=b"x").long_poll("-1")),
    "long-poll without data": (204, lambda new, absent: new().long_poll("-1")),
    "head": (200, lambda new, absent: new().head()),
    "delete": (204, lambda new, absent: new().delete()),
    "preflight": (204, lambda new, absent: new().client.options(new().url)),
    "bad request": (400, lambda new, absent: new().read("nonsense")),
    "not found": (404, lambda new, absent: absent().read()),
    "head not found": (404, lambda new, absent: absent().head()),
    "no route": (404, lambda new, absent: new().client.get("/nowhere")),
    "method not allowed": (405, lambda new, absent: new().client.patch(new().url)),
    "conflict": (409, lambda new, absent: new(stream_closed="true").append(b"x")),
}


def check_security_headers(headers: httpx.Headers) -> None:
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "cross-origin"


@pytest.mark.spec("base 10.7-1", "base 10.7-2", "base 10.7-3")
@pytest.mark.parametrize("answer", ANSWERS)
def test_every_answer_has_the_security_headers(new_stream, absent, answer) -> None:
    status, ask = ANSWERS[answer]
    response = ask(new_stream, absent)
    assert response.status_code == status
    check_security_headers(response.headers)


@pytest.mark.spec("base 10.7-2", "base 10.7-3")
def test_sse_has_the_security_headers(new_stream) -> None:
    with new_stream(body=b"x").sse() as events:
        check_security_headers(events.response.headers)


@pytest.mark.spec("base 10.7-2", "base 10.7-3")
@pytest.mark.parametrize(
    "request_bytes",
    [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nx: " + b"y" * 100_000 + b"\r\n\r\n"],
    ids=["malformed", "too large"],
)
def test_refusals_of_the_parser_have_the_security_headers(connect, request_bytes) -> None:
    connection = connect()
    connection.send(request_bytes)
    check_security_headers(httpx.Headers(connection.response().headers))


def test_answers_do_not_say_which_software_made_them(new_stream) -> None:
    assert "/" not in new_stream().read().headers.get("Server", "")


@pytest.mark.spec("base 10.8-1")
def test_server_speaks_tls(start_server, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.cert_chain_pems[0].write_to_path(cert)
    certificate.private_key_pem.write_to_path(key)
    server = start_server(tls_cert=cert, tls_key=key)
    assert server.url.startswith("https://")
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    with httpx.Client(base_url=server.url, verify=trust, timeout=10) as client:
        created = client.put("/v1/stream/secret", content=b"hello")
        assert created.headers["Location"] == f"{server.url}/v1/stream/secret"
        assert client.get("/v1/stream/secret").content == b"hello"


@pytest.mark.spec("base 11.1-1")
def test_default_port_is_the_protocols(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("holdfast")
    shown = subprocess.run([command, "config"], cwd=tmp_path, capture_output=True, text=True,
                           check=True, timeout=30)  # fmt: skip
    assert "127.0.0.1:4437" in shown.stdout
