"""Live reads end when their token is revoked, whichever way that happens."""

import asyncio
import gc

import pytest

from holdfast.http.asgi import handle_http
from holdfast.node.proxy import open_proxy
from holdfast.testing import FakeClock
from tests.unit.engine.driver import Driver
from tests.unit.http.access.gates import entry
from tests.unit.http.access.signing import NOW_S, ed25519_key, jwk, jwks, signed
from tests.unit.http.apps import Served
from tests.unit.http.wires import Client

TOKEN, OTHER = "holdfast_reader-1234567890", "holdfast_writer-1234567890"
STREAM_ID = "3f2b8f3e-1111-4222-8333-444455556666"
READS = {
    "SSE": "/v1/stream/demo/s?offset=now&live=sse",
    "long-poll": "/v1/stream/demo/s?offset=now&live=long-poll",
    "bucketed SSE": "/demo/s?offset=now&live=sse",
    "changes by SSE": "/demo/streams/changes?after=now&live=sse",
    "changes by long-poll": "/demo/streams/changes?after=now&live=long-poll&prefix=s",
    "proxy SSE": f"/v1/proxy/{STREAM_ID}?offset=now&live=sse",
    "proxy long-poll": f"/v1/stream/_proxy/{STREAM_ID}?offset=now&live=long-poll",
}
SCOPES = ("write:demo", "write:_proxy")
every_read = pytest.mark.parametrize("target", READS.values(), ids=READS.keys())


class Guarded:
    """A server with tokens from a file, which is read again on demand."""

    def __init__(self, path, **settings):
        engine = Driver(clock=FakeClock(start_ms=NOW_S * 1000))
        self.tokens = path / "tokens.toml"
        self.write(entry("reader", TOKEN, *SCOPES), entry("other", OTHER, *SCOPES))
        self.served = Served(
            engine,
            open_mount=open_proxy,
            access_tokens_file=str(self.tokens),
            proxy_secret=["0123456789abcdef" * 4],
            **settings,
        )
        self.clock, self.app = engine.clock, self.served.app
        for name in ("demo/s", f"_proxy/{STREAM_ID}"):
            engine.committed(engine.create(name, body=b"abc"))
        self.engine = engine

    def write(self, *entries):
        self.tokens.write_text("".join(entries))

    def reread(self):
        """The files have changed, and are looked at."""
        sources = self.app.gate._sources
        tokens, keys = sources.poll()
        assert tokens or keys
        sources.take_changes(tokens=tokens, keys=keys)
        self.clock.run()

    def follow(self, target, token):
        client = Client(self.served)
        client.request("GET", target, b"", f"Authorization: Bearer {token}")
        assert client.statuses in ([], [200]), client.wire.written
        return client

    @property
    def readers(self):
        return len(self.served.shard.live) + len(self.app.feed)


@pytest.fixture
def guarded(tmp_path):
    return Guarded(tmp_path)


def check_ended(client, target, status):
    """An open response ends, a request that waits is told."""
    if "live=sse" in target:
        assert client.statuses == [200]
        assert client.wire.written.endswith(b"\r\n0\r\n\r\n")
    else:
        assert client.statuses == [status]
    client.request("GET", target, b"", f"Authorization: Bearer {TOKEN}")
    assert client.statuses[-1] == status


@every_read
def test_token_that_is_removed_ends_its_reads_and_no_others(guarded, target):
    reader, other = guarded.follow(target, TOKEN), guarded.follow(target, OTHER)
    guarded.write(entry("other", OTHER, *SCOPES))
    guarded.reread()
    check_ended(reader, target, 401)
    assert guarded.readers == 1
    assert guarded.follow(target, OTHER)
    assert other.statuses == ([200] if "live=sse" in target else [])
    assert not other.wire.written.endswith(b"\r\n0\r\n\r\n")


@every_read
def test_scope_that_is_removed_ends_the_read(guarded, target):
    reader = guarded.follow(target, TOKEN)
    guarded.write(entry("reader", TOKEN, "read:elsewhere"), entry("other", OTHER, *SCOPES))
    guarded.reread()
    check_ended(reader, target, 403)
    assert guarded.readers == 0


def test_more_scopes_end_nothing(guarded):
    reader = guarded.follow(READS["long-poll"], TOKEN)
    guarded.write(entry("reader", TOKEN, "read:demo/s", "read:more"))
    guarded.reread()
    assert reader.statuses == []
    assert guarded.readers == 1


@every_read
def test_read_ends_at_an_expiry_that_was_added(guarded, target):
    reader = guarded.follow(target, TOKEN)
    guarded.write(entry("reader", TOKEN, *SCOPES, more="expires_at = 2027-01-15T08:00:05Z"))
    guarded.reread()
    guarded.clock.advance(4)
    assert guarded.readers == 1
    guarded.clock.advance(1)
    check_ended(reader, target, 401)


def test_so_does_one_whose_clock_was_set_back(guarded):
    reader = guarded.follow(READS["long-poll"], TOKEN)
    guarded.write(entry("reader", TOKEN, *SCOPES, more="expires_at = 2027-01-15T08:00:05Z"))
    guarded.reread()
    guarded.clock._start_ms -= 3000
    guarded.clock.advance(6)
    assert guarded.readers == 1
    guarded.clock.advance(2)
    check_ended(reader, READS["long-poll"], 401)


def test_key_that_is_withdrawn_ends_the_reads_of_its_tokens(tmp_path):
    file, keys = tmp_path / "keys.json", [ed25519_key(number) for number in range(2)]
    public = [jwk(key, kid=str(number)) for number, key in enumerate(keys)]
    file.write_bytes(jwks(*public))
    guarded = Guarded(tmp_path, access_jwks_file=str(file))
    readers = [
        guarded.follow(READS["SSE"], signed(key, "EdDSA", {"kid": str(number)}).decode())
        for number, key in enumerate(keys)
    ]
    file.write_bytes(jwks(public[1]))
    guarded.reread()
    assert guarded.readers == 1
    assert readers[0].wire.written.endswith(b"\r\n0\r\n\r\n")
    assert not readers[1].wire.written.endswith(b"\r\n0\r\n\r\n")


def test_many_reads_are_checked_in_rounds(guarded):
    readers = [guarded.follow(READS["SSE"], TOKEN) for _ in range(250)]
    guarded.write(entry("other", OTHER, *SCOPES))
    guarded.reread()
    assert guarded.readers == 0
    assert all(reader.wire.written.endswith(b"\r\n0\r\n\r\n") for reader in readers)


@every_read
def test_reads_that_have_ended_are_forgotten(guarded, target):
    clients = [guarded.follow(target, TOKEN) for _ in range(3)]
    assert len(guarded.app.live_reads) == 3
    clients[0].connection.connection_lost(None)
    guarded.clock.advance(600)
    assert guarded.readers == 0
    # Timers of the fake clock keep what they called.
    gc.collect()
    assert len(guarded.app.live_reads) == 0


@pytest.mark.parametrize(("live", "status"), [("sse", 200), ("long-poll", 401)])
def test_reads_through_an_asgi_host_end_as_well(guarded, live, status):
    told, parts = [], [{"type": "http.request"}]

    async def follow():
        async def receive():
            if not parts:
                await asyncio.Event().wait()
            return parts.pop()

        async def send(message):
            told.append(message)

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/stream/demo/s",
            "query_string": f"offset=now&live={live}".encode(),
            "headers": [(b"authorization", f"Bearer {TOKEN}".encode())],
        }
        call = asyncio.create_task(handle_http(guarded.app, scope, receive, send))
        while not guarded.readers:
            await asyncio.sleep(0)
        guarded.write(entry("other", OTHER, *SCOPES))
        guarded.reread()
        await call

    asyncio.run(asyncio.wait_for(follow(), 10))
    assert told[0]["status"] == status
    assert told[-1]["more_body"] is False
