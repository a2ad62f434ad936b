"""Who the client is: tokens, passwords, certificates."""

import asyncio
import hashlib
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
import trustme

from holdfast.cli.main import main
from holdfast.client import Basic, Bearer, Client, Digest, Retry
from holdfast.errors import ForbiddenError, OutboundError, UnauthorizedError
from tests.client.collecting import tailing
from tests.client.conftest import OpenClient
from tests.client.targets import TEXT, Target, new_name
from tests.http.loopback import Loopback, answer, serving
from tests.server_process import ServerProcess

pytestmark = pytest.mark.anyio
Allows = Callable[[bytes], str]


@pytest.fixture
def make_token(tmp_path: Path, capsys) -> Callable[[str, str], str]:
    def make(name: str, scope: str) -> str:
        file = str(tmp_path / "tokens.toml")
        assert main(["token", "create", "--name", name, "--scope", scope, "--file", file]) == 0
        return capsys.readouterr().out.strip()

    return make


async def test_tokens(tmp_path: Path, make_token, open_client: OpenClient) -> None:
    writer, reader = make_token("writer", "write:demo"), make_token("reader", "read:demo")
    with ServerProcess(tmp_path / "data", access_tokens_file=tmp_path / "tokens.toml") as server:
        stream = open_client(server.url, auth=Bearer(writer)).stream("demo/a")
        await stream.create(TEXT, messages=["x"])
        seen = open_client(server.url, auth=Bearer(reader)).stream("demo/a")
        assert await seen.read().read_text() == "x"
        with pytest.raises(ForbiddenError, match="write:demo"):
            await seen.append("y")
        for auth in (None, Bearer("wrong"), Basic("me", "secret")):
            unknown = open_client(server.url, auth=auth).stream("demo/a")
            with pytest.raises(UnauthorizedError):
                await unknown.read().read_text()
            with pytest.raises(UnauthorizedError):
                async with unknown.bootstrap():
                    pytest.fail("not for everybody")


async def test_a_token_is_renewed_when_it_is_refused(
    tmp_path: Path, make_token, open_client: OpenClient
) -> None:
    good = make_token("writer", "write:demo")
    reading = make_token("reader", "read:demo")
    tokens = ["expired", good]

    async def fetch() -> str:
        await asyncio.sleep(0)
        return tokens.pop(0)

    with ServerProcess(tmp_path / "data", access_tokens_file=tmp_path / "tokens.toml") as server:
        stream = open_client(server.url, auth=Bearer(fetch)).stream("demo/a", content_type=TEXT)
        await stream.create()
        # What is answered in pieces is asked for again as well.
        readers = ["expired", reading]
        seen = open_client(server.url, auth=Bearer(lambda: readers.pop(0))).stream("demo/a")
        async with seen.bootstrap() as bootstrap:
            assert not (await bootstrap.snapshot()).exists
        assert tokens == readers == []


async def test_a_token_that_is_revoked_in_the_middle_of_a_tail(
    tmp_path: Path, make_token, open_client: OpenClient
) -> None:
    file = tmp_path / "tokens.toml"
    writer = make_token("writer", "write:demo")
    second = make_token("second", "read:demo")
    only_these = file.read_bytes()
    tokens = [make_token("first", "read:demo"), second]
    with ServerProcess(tmp_path / "data", access_tokens_file=file, sse_lifetime=0.2) as server:
        stream = open_client(server.url, auth=Bearer(writer)).stream("demo/a")
        await stream.create(TEXT)
        client = open_client(server.url, auth=Bearer(lambda: tokens.pop(0)))
        async with tailing(client.stream("demo/a")) as tail:
            await stream.append("before")
            await tail.until(1)
            file.write_bytes(only_these)
            while tokens:  # the file is looked at once a second
                await asyncio.sleep(0.02)
            await stream.append("after", close=True)
            assert await tail.end() == [b"before", b"after"]


@asynccontextmanager
async def front(server: ServerProcess, allows: Allows) -> AsyncIterator[Loopback]:
    """A server in front of ours that asks for a password; `allows` says with what challenge."""

    async def relay(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        challenge = allows(head)
        if challenge:
            writer.write(answer("401 Unauthorized", b"who?", f"WWW-Authenticate: {challenge}"))
            return
        reader, upwards = await asyncio.open_connection("127.0.0.1", server.port)
        # Also where the client has gone.
        with closing(writer), closing(upwards):
            upwards.write(head[:-2] + b"Connection: close\r\n\r\n" + body)
            while piece := await reader.read(65_536):
                writer.write(piece)
                await writer.drain()

    async with serving(relay) as loopback:
        yield loopback


def authorization(head: bytes) -> str:
    found = re.search(rb"\r\nauthorization: ([^\r]+)", head, re.IGNORECASE)
    return found[1].decode() if found else ""


async def use(client: Client) -> None:
    stream = client.stream(new_name())
    await stream.create(TEXT)
    async with tailing(stream) as tail:
        await stream.append("one")
        await tail.until(1)
        await stream.append("two", close=True)
        assert await tail.end() == [b"one", b"two"]


async def test_a_password(server: ServerProcess, open_client: OpenClient) -> None:
    def allows(head: bytes) -> str:
        return "" if authorization(head) == "Basic bWU6w7xiZXI6" else 'Basic realm="x"'

    async with front(server, allows) as loopback:
        place = f"127.0.0.1:{loopback.port}"
        await use(open_client(f"http://{place}", auth=Basic("me", "über:")))
        await use(open_client(f"http://me:%C3%BCber%3A@{place}"))
        with pytest.raises(UnauthorizedError):
            await use(open_client(f"http://{place}", auth=Basic("me", "wrong")))


class DigestCheck:
    """Asks for a digest, with a new nonce for every few requests."""

    def __init__(self, requests_per_nonce: int) -> None:
        self._requests_per_nonce = requests_per_nonce
        self._left: dict[str, int] = {}

    def __call__(self, head: bytes) -> str:
        said = dict(re.findall(r'(\w+)="?([^",]*)"?', authorization(head)))
        nonce = said.get("nonce", "")
        if self._left.get(nonce, 0) and self._is_right(head, said):
            self._left[nonce] -= 1
            return ""
        nonce = f"n{len(self._left)}"
        self._left[nonce] = self._requests_per_nonce
        return f'Digest realm="here", qop="auth", algorithm=SHA-256, nonce="{nonce}"'

    def _is_right(self, head: bytes, said: dict[str, str]) -> bool:
        method, target, _ = head.decode().split(" ", 2)
        secret, request = _sha("me:here:secret"), _sha(f"{method}:{target}")
        middle = f"{said['nonce']}:{said['nc']}:{said['cnonce']}:{said['qop']}"
        return said["response"] == _sha(f"{secret}:{middle}:{request}")


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("requests_per_nonce", [1, 1000])
async def test_a_password_that_is_not_sent(
    server: ServerProcess, open_client: OpenClient, requests_per_nonce: int
) -> None:
    async with front(server, DigestCheck(requests_per_nonce)) as loopback:
        url = f"http://127.0.0.1:{loopback.port}"
        await use(open_client(url, auth=Digest("me", "secret")))
        with pytest.raises(UnauthorizedError):
            await use(open_client(url, auth=Digest("me", "wrong")))


async def test_certificates(tmp_path: Path, open_client: OpenClient) -> None:
    ours, other = trustme.CA(), trustme.CA()
    issued = ours.issue_cert("127.0.0.1")
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    (tmp_path / "cert.pem").write_bytes(chain)
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    trusting, doubting = ssl.create_default_context(), ssl.create_default_context()
    ours.configure_trust(trusting)
    other.configure_trust(doubting)
    with ServerProcess(tmp_path / "data", **files) as server:
        assert server.scheme == "https"
        client = open_client(server.url, tls=trusting)
        await use(client)
        # A server that stops waits for the goodbyes of clients, and this one is about to block.
        await client.aclose()
        for options in ({"tls": doubting}, {}):
            client = open_client(server.url, retry=Retry(2, first_s=0.01), **options)
            with pytest.raises(OutboundError) as raised:
                await client.stream("demo/a").head()
            said = str(raised.value)
            assert said.startswith(f"{server.url} has a certificate that is not accepted: ")
            assert said.count(".") == 4  # those of the address, and the end of one sentence
            assert "\n" not in said
        plain = open_client(server.url.replace("https", "http"), retry=Retry(2, first_s=0.01))
        with pytest.raises(OutboundError):
            await plain.stream("demo/a").head()


async def test_headers_and_parameters_go_with_every_request(
    ours: Target, open_client: OpenClient
) -> None:
    heads: list[bytes] = []

    async def see(head: bytes, _body: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        writer.write(answer("200 OK", b"", "Content-Type: text/plain", "Stream-Next-Offset: 0"))

    count = iter(range(100))
    async with serving(see) as loopback:
        client = open_client(
            f"http://127.0.0.1:{loopback.port}/below",
            headers={"X-Fixed": "a", "X-Changing": lambda: str(next(count))},
            params={"tenant": "t 1"},
        )
        await client.stream("demo/a").create(TEXT)
        await client.stream("demo/a").read().read_bytes()
    assert heads[0].startswith(b"PUT /below/v1/stream/demo/a?tenant=t%201 HTTP/1.1")
    assert heads[1].startswith(b"GET /below/v1/stream/demo/a?offset=-1&tenant=t%201 HTTP/1.1")
    for number, head in enumerate(heads):
        assert b"\r\nx-fixed: a\r\n" in head.lower()
        assert b"\r\nx-changing: %d\r\n" % number in head.lower()
