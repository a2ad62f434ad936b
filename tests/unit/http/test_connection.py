"""Requests behind others on one connection: which wait, and how much is read of those that do."""

import asyncio
import json

import pytest

from holdfast.objects.store import MemoryObjects, PostedRanges
from holdfast.storage.snapshot_store import SnapshotStore
from holdfast.testing import FakeClock
from tests.unit.engine.driver import Driver
from tests.unit.http.apps import Served
from tests.unit.http.wires import Client

TEXT = "Content-Type: text/plain"
JSON = "Content-Type: application/json"
CONTROL = "/v1/stream/__ds/subscriptions"
STREAM = "/v1/stream/demo/s"
AT_END = f"/demo/s/snapshot/{3:020d}"
MEBIBYTE = 1 << 20


@pytest.fixture
def client():
    """A stream with three bytes in it."""
    engine = Driver(clock=FakeClock())
    store = MemoryObjects(engine.clock)
    ranges = PostedRanges(store, engine.clock.call_soon)
    client = Client(Served(engine, SnapshotStore(store, ranges, engine.clock, MEBIBYTE)))
    engine.committed(engine.create("demo/s", body=b"abc"))
    client.engine, client.store = engine, store
    return client


@pytest.fixture
def handled(client):
    """The targets of the requests that were handed on, in order."""
    targets, handle = [], client.connection._handle

    def noted(request, slot):
        targets.append(request.path.decode())
        handle(request, slot)

    client.connection._handle = noted
    return targets


class TestBehindAppends:
    """Only appends may follow appends that are not answered."""

    def test_another_append(self, client, handled):
        for number in range(3):
            client.request("POST", STREAM, b"%d" % number, TEXT)
        client.engine.clock.run()
        assert handled == [STREAM] * 3
        client.engine.commit()
        assert client.statuses == [204] * 3
        assert client.engine.read("demo/s") == b"abc012"

    def test_append_to_the_other_surface(self, client, handled):
        client.request("POST", STREAM, b"1", TEXT)
        client.request("POST", "/demo/s", b"2", TEXT)
        assert handled == [STREAM, "/demo/s"]

    @pytest.mark.parametrize(
        ("method", "target", "body", "status"),
        [
            ("POST", f"{CONTROL}/sub/claim", b'{"worker":"one"}', 404),
            ("POST", f"{CONTROL}/sub/ack", b"{}", 401),
            ("POST", f"{CONTROL}/sub/streams", b'{"streams":["demo/s"]}', 404),
            ("POST", f"http://h{CONTROL}/sub/claim", b'{"worker":"one"}', 404),
            ("POST", "/cluster/flush", b"", 404),
            ("GET", STREAM, b"", 200),
            ("HEAD", STREAM, b"", 200),
            ("PUT", STREAM, b"", 200),
            ("DELETE", STREAM, b"", 204),
        ],
    )
    def test_anything_else_waits(self, client, handled, method, target, body, status):
        client.request("POST", STREAM, b"1", TEXT)
        client.request(method, target, body, JSON if body else TEXT)
        # And whatever comes behind it, even if it could go ahead.
        client.request("POST", STREAM, b"2", TEXT)
        client.engine.clock.run()
        assert handled == [STREAM]
        assert client.statuses == []
        client.engine.commit()
        assert handled[:2] == [STREAM, target.removeprefix("http://h")]
        assert client.statuses[:2] == [204, status]

    def test_claim_finds_what_the_append_before_it_wrote(self, client):
        engine = client.engine
        for name in ("events/a", "wake/pool"):
            engine.committed(engine.create(name, "application/json"))
        body = {"type": "pull-wake", "pattern": "events/*", "wake_stream": "wake/pool"}
        client.request("PUT", f"{CONTROL}/sub", json.dumps(body).encode(), JSON)
        engine.commit()
        client.request("POST", "/v1/stream/events/a", b"1", JSON)
        client.request("POST", f"{CONTROL}/sub/claim", b'{"worker":"one"}', JSON)
        engine.commit()
        assert client.statuses == [201, 204, 200]


class TestBodiesThatWait:
    """A snapshot is sent behind a request that is not answered yet."""

    @pytest.fixture
    def waiting(self, client):
        """A long-poll, which nobody answers before there is something to read."""
        client.request("GET", f"{STREAM}?offset={3:020d}&live=long-poll")
        assert client.statuses == []
        return client

    def head(self, size):
        return f"PUT {AT_END} HTTP/1.1\r\nHost: h\r\nContent-Length: {size}\r\n\r\n".encode()

    @pytest.mark.parametrize("more", [b"", b"x", bytes(1000)])
    def test_nothing_more_is_read(self, waiting, more):
        waiting.send(self.head(100 * MEBIBYTE) + more)
        assert not waiting.wire.reading

    def test_neither_behind_a_complete_one(self, waiting):
        """However many are sent, one is taken."""
        waiting.send(self.head(1000) + bytes(1000))
        assert not waiting.wire.reading

    def test_other_requests_are_read_while_there_is_room(self, waiting):
        for _ in range(3):
            waiting.request("HEAD", STREAM)
        assert waiting.wire.reading

    def test_it_goes_on_in_its_turn(self, waiting):
        async def publish():
            waiting.send(self.head(10) + b"01234")
            waiting.engine.append(b"d", name="demo/s")
            waiting.engine.commit()
            assert waiting.statuses == [200]
            assert waiting.wire.reading
            waiting.send(b"56789")
            waiting.request("HEAD", STREAM)
            while len(waiting.statuses) < 3:
                waiting.engine.commit()
                await asyncio.sleep(0)

        asyncio.run(publish())
        assert waiting.statuses == [200, 204, 200]
        [(body, _)] = waiting.store.objects.values()
        assert body == b"0123456789"


def test_body_is_refused_when_its_handler_fails(client, monkeypatch):
    """Nobody would read it, and its client would wait for ever."""
    monkeypatch.setattr(client.served.shard.snapshots, "check", lambda *_: 1 // 0)
    head = f"PUT {AT_END} HTTP/1.1\r\nHost: h\r\nContent-Length: {100 * MEBIBYTE}\r\n\r\n"
    client.send(head.encode() + b"x")
    assert client.statuses == [500]
    assert client.wire.closed


class TestDeadlines:
    """Whoever waits for a response to an earlier request is not late with the next one."""

    @pytest.fixture
    def client(self, client):
        client.request("GET", f"{STREAM}?offset={3:020d}&live=long-poll")
        return client

    def wait(self, client):
        """Have longer pass than a client has for a head or a body."""
        for _ in range(60):
            client.connection._listener._count()
        client.engine.clock.run()
        assert not client.wire.closed
        client.engine.append(b"d", name="demo/s")
        client.engine.commit()

    def test_snapshot_that_is_not_read_yet(self, client):
        head = f"PUT {AT_END} HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n".encode()

        async def publish():
            client.send(head + b"01234")
            self.wait(client)
            client.send(b"56789")
            while len(client.statuses) < 2:
                client.engine.commit()
                await asyncio.sleep(0)

        asyncio.run(publish())
        assert client.statuses == [200, 204]

    def test_body_that_is_not_asked_for_yet(self, client):
        lines = ("Host: h", TEXT, "Content-Length: 3", "Expect: 100-continue", "", "")
        client.send("\r\n".join([f"POST {STREAM} HTTP/1.1", *lines]).encode())
        self.wait(client)
        assert client.statuses == [200, 100]
        client.send(b"xyz")
        client.engine.commit()
        assert client.statuses == [200, 100, 204]

    def test_request_behind_as_many_as_may_wait(self, client):
        one = f"HEAD {STREAM} HTTP/1.1\r\nHost: h\r\n\r\n".encode()
        client.send(one * 63 + one[:20])
        assert not client.wire.reading
        self.wait(client)
        client.send(one[20:])
        assert client.statuses == [200] * 65
        client.send(one[:20])
        for _ in range(60):
            client.connection._listener._count()
        assert client.statuses == [200] * 65 + [408]

    def test_refusal_comes_after_the_response_before_it(self, client):
        client.send(b"GET / HTTP/1.1\r\nnonsense\r\n\r\n")
        self.wait(client)
        assert client.statuses == [200, 400]

    def test_unfinished_request_before_the_end_of_the_input(self, client):
        client.send(f"POST {STREAM} HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nx".encode())
        assert client.connection.eof_received()
        self.wait(client)
        assert client.statuses == [200]


class TestAbsoluteTargets:
    """`PUT http://host/path` is the same as `PUT /path`, down to what becomes of the body."""

    def test_stream_whose_bucket_is_called_snapshot(self, client):
        client.request("PUT", "/snapshot")
        client.engine.commit()
        client.request("PUT", "http://h/snapshot/xyz", b"a body", TEXT)
        client.request("GET", "/snapshot/xyz")
        client.engine.commit()
        assert client.statuses == [201, 201, 200]
        assert client.wire.written.endswith(b"\r\n\r\na body")

    @pytest.mark.parametrize("scheme", ["http", "https", "HTTP"])
    def test_snapshot_is_taken_as_it_arrives(self, client, scheme):
        size = client.served.app.settings.http.body_bytes_max + MEBIBYTE

        async def publish():
            head = f"PUT {scheme}://h{AT_END} HTTP/1.1\r\nHost: h\r\nContent-Length: {size}\r\n\r\n"
            client.send(head.encode())
            left = size
            while left:
                if client.wire.reading:
                    client.send(bytes(min(left, 100_000)))
                    left -= min(left, 100_000)
                client.engine.clock.run()
                await asyncio.sleep(0)
            while not client.statuses:
                client.engine.commit()
                await asyncio.sleep(0)

        asyncio.run(publish())
        assert client.statuses == [204]
        [(body, _)] = client.store.objects.values()
        assert len(body) == size

    @pytest.mark.parametrize("target", ["xyz", "ftp://h/demo/s", "h:80", "*"])
    def test_other_forms_are_400(self, client, target):
        client.request("PUT", target, b"a body", TEXT)
        assert client.statuses == [400]
