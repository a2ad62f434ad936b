"""Bodies that are not complete with their head: who may send them, how many, and how fast."""

import asyncio
import gc

import pytest

from holdfast.http.asgi import handle_http
from holdfast.http.bodies import BodyBudget, BodyPace, BodyStream, BodyTurns
from holdfast.settings import HttpSettings
from holdfast.testing import FakeClock
from tests.unit.engine.driver import Driver
from tests.unit.http.access.gates import entry
from tests.unit.http.apps import Served
from tests.unit.http.wires import Client

TOKEN = "holdfast_1234567890-writer"
BEARER = f"Authorization: Bearer {TOKEN}"
TEXT = "Content-Type: text/plain"
STREAM = "/v1/stream/demo/s"
BUDGET_BYTES = 1_000_000
EXPECT = "Expect: 100-continue"


@pytest.fixture
def serve(tmp_path):
    """Make applications with settings of their own, and a stream to append to."""

    def make(**flags):
        engine = Driver(clock=FakeClock())
        engine.committed(engine.create("demo/s", body=b"abc"))
        limits = {"body_bytes_max": BUDGET_BYTES, "bodies_held_bytes_max": BUDGET_BYTES}
        return Served(engine, **(limits | flags))

    return make


@pytest.fixture
def guarded(serve, tmp_path):
    """An application that asks for a token."""
    file = tmp_path / "tokens.toml"
    file.write_text(entry("writer", TOKEN, "write:demo"))
    return serve(access_tokens_file=str(file))


def begin(client, *lines, body=b"", length=900_000, method="POST", target=STREAM):
    """Send a request whose body goes on."""
    head = [f"{method} {target} HTTP/1.1", "Host: h", TEXT, *lines, f"Content-Length: {length}"]
    client.send("\r\n".join([*head, "", ""]).encode() + body)
    # Its next turn to read has come.
    client.served.clock.run()


def send(client, size):
    client.send(bytes(size))
    client.served.clock.run()


def check_refused(client, status):
    """The response is there, nothing is held, and what follows on the connection means nothing."""
    assert client.statuses == [status]
    assert b"Connection: close" in client.wire.written
    assert client.served.app.bodies.held_bytes == 0
    client.connection.data_received(bytes(100_000))
    assert client.statuses == [status]
    assert client.served.app.bodies.held_bytes == 0


class TestAdmission:
    @pytest.mark.parametrize("lines", [(), (EXPECT,)])
    @pytest.mark.parametrize("body", [b"", b"x" * 1000])
    def test_without_a_token_the_head_is_enough_for_401(self, guarded, lines, body):
        client = Client(guarded)
        begin(client, *lines, body=body)
        check_refused(client, 401)

    def test_without_the_scope_it_is_403(self, guarded):
        client = Client(guarded)
        begin(client, BEARER, target="/v1/stream/other/s")
        check_refused(client, 403)

    def test_without_a_route_it_is_404_or_405(self, serve):
        client = Client(serve())
        begin(client, target="/v1/nothing/at/all")
        check_refused(client, 404)
        client = Client(serve())
        begin(client, target="/metrics")
        check_refused(client, 405)

    def test_streamed_body_is_refused_by_its_head(self, guarded):
        client = Client(guarded)
        begin(client, EXPECT, method="PUT", target=f"/demo/s/snapshot/{3:020d}")
        check_refused(client, 401)

    def test_with_a_token_the_body_is_taken(self, guarded):
        client = Client(guarded)
        begin(client, BEARER, EXPECT, length=6)
        assert client.wire.written == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(b"def")
        client.send(b"ghi")
        guarded.engine.clock.run()
        guarded.engine.commit()
        assert client.statuses == [100, 204]
        assert guarded.engine.read("demo/s") == b"abcdefghi"

    def test_each_request_counts_once_against_the_rate(self, serve):
        served = serve(client_rate=1, client_burst=2)
        client = Client(served)
        for _ in range(2):
            begin(client, length=2)
            client.send(b"x")
            client.send(b"y")
        served.engine.clock.run()
        served.engine.commit()
        assert client.statuses == [204, 204]
        begin(client, length=2)
        assert client.statuses == [204, 204, 429]

    def test_refusal_comes_in_its_turn(self, guarded):
        client = Client(guarded)
        client.request("GET", f"{STREAM}?offset=now&live=long-poll", b"", BEARER)
        begin(client)
        assert client.statuses == []
        guarded.engine.clock.advance(20)
        assert client.statuses == [204, 401]

    def test_body_behind_a_waiting_request_is_kept_only_of_those_who_may(self, guarded):
        client = Client(guarded)
        client.request("GET", f"{STREAM}?offset=now&live=long-poll", b"", BEARER)
        client.request("POST", STREAM, b"x" * 500, TEXT, BEARER)
        client.request("POST", STREAM, b"y" * 700, TEXT)
        assert guarded.app.bodies.held_bytes == 500
        guarded.engine.clock.advance(20)
        assert guarded.app.bodies.held_bytes == 0
        guarded.engine.commit()
        assert client.statuses == [204, 204, 401]


class TestBudget:
    def test_body_in_one_read_is_not_counted(self, serve):
        served = serve(body_bytes_max=1, bodies_held_bytes_max=1)
        client = Client(served)
        client.request("POST", STREAM, b"x", TEXT)
        served.engine.clock.run()
        served.engine.commit()
        assert client.statuses == [204]
        assert not served.app.bodies.should_trim()
        assert served.app.bodies._earlier_bytes == 0

    def test_what_has_arrived_counts_until_the_body_is_complete(self, serve):
        client = Client(serve())
        bodies = client.served.app.bodies
        begin(client, body=b"x" * 1000)
        assert bodies.held_bytes == 1000
        send(client, 600_000)
        assert bodies.held_bytes == 601_000
        send(client, 299_000)
        assert bodies.held_bytes == 0
        client.served.engine.clock.run()
        client.served.engine.commit()
        assert client.statuses == [204]

    def test_what_does_not_fit_is_503_on_any_connection(self, serve):
        served = serve()
        first, second = Client(served), Client(served)
        begin(first, body=b"x" * 700_000)
        begin(second, body=b"x" * 200_000)
        assert served.app.bodies.held_bytes == 900_000
        send(second, 200_000)
        assert second.statuses == [503]
        assert b"Retry-After: 1\r\n" in second.wire.written
        assert b"Connection: close" in second.wire.written
        assert served.app.bodies.held_bytes == 700_000
        assert served.app.bodies.refusals == 1
        send(first, 200_000)
        served.engine.clock.run()
        served.engine.commit()
        assert first.statuses == [204]

    @pytest.mark.parametrize("leave", ["connection_lost", "expire"])
    def test_whoever_leaves_or_is_late_gives_it_back(self, serve, leave):
        client = Client(serve())
        client.request("GET", f"{STREAM}?offset=now&live=long-poll")
        client.request("POST", STREAM, b"x" * 500, TEXT)
        begin(client, body=b"x" * 1000)
        bodies = client.served.app.bodies
        assert bodies.held_bytes == 1500
        if leave == "expire":
            client.connection.expire()
            assert bodies.held_bytes == 500
        client.connection.connection_lost(None)
        assert bodies.held_bytes == 0

    def test_bodies_that_wait_for_their_turn_have_to_fit(self, serve):
        served = serve()
        client = Client(served)
        client.request("GET", f"{STREAM}?offset=now&live=long-poll")
        client.request("POST", STREAM, b"x" * 600_000, TEXT)
        client.request("POST", STREAM, b"y" * 600_000, TEXT)
        assert served.app.bodies.held_bytes == 600_000
        served.engine.clock.advance(20)
        served.engine.commit()
        assert client.statuses == [204, 204, 503]
        assert served.app.bodies.held_bytes == 0

    def test_strangers_cannot_use_up_what_clients_need(self, guarded):
        """Some routes need no token, and read bodies all the same."""
        stranger = Client(guarded)
        begin(stranger, target="/healthz", method="GET", body=b"x" * 200_000)
        send(stranger, 100_000)
        assert stranger.statuses == [503]
        client = Client(guarded)
        begin(client, BEARER, body=b"x" * 800_000)
        assert client.statuses == []

    def test_pieces_that_nobody_took_are_given_back(self):
        budget = BodyBudget(HttpSettings())
        stream = BodyStream(1000, budget, lambda: None)
        stream.feed(b"x" * 600)
        stream.finish()
        assert budget.held_bytes == 600
        del stream
        gc.collect()
        assert budget.held_bytes == 0

    def test_fall_is_noticed_once_and_not_within_a_steady_load(self):
        budget, size = BodyBudget(HttpSettings()), 40_000_000
        for _ in range(3):
            budget.take(size)
            budget.give(size)
            assert not budget.should_trim()
        assert budget.should_trim()
        assert not budget.should_trim()


class TestTurns:
    """A connection with a large body is not read for as long as its client sends."""

    def test_a_few_connections_read_in_each_round(self):
        rounds, read = [], []
        turns = BodyTurns(rounds.append)
        for number in range(40):
            turns.wait(lambda number=number: read.append(number))
        counts = []
        while rounds:
            rounds.pop()()
            counts.append(len(read))
        assert counts == [16, 32, 40]
        assert read == list(range(40))

    def test_connection_waits_for_its_turn_after_a_large_read(self, serve):
        client = Client(serve())
        begin(client, body=b"x" * 100_000, length=200_001)
        client.send(b"x" * 100_000)
        assert not client.wire.reading
        client.served.clock.run()
        assert client.wire.reading
        client.send(b"x")
        client.served.engine.commit()
        assert client.statuses == [204]

    def test_so_does_one_whose_request_is_refused(self, guarded):
        client = Client(guarded)
        client.request("GET", f"{STREAM}?offset=now&live=long-poll", b"", BEARER)
        begin(client)
        client.send(bytes(100_000))
        assert not client.wire.reading
        client.served.clock.run()
        assert client.wire.reading


class TestPace:
    def test_slow_bytes_do_not_live_on_fast_ones(self):
        pace = BodyPace(30, 1000)
        deadline = pace.deadline(30, 0, 8_000_000)
        assert deadline == 30
        for now in range(5, 30, 5):
            deadline = pace.deadline(deadline, now, 100)
        assert deadline == pytest.approx(30.5)

    def test_at_the_smallest_rate_a_body_may_take_for_ever(self):
        pace, deadline = BodyPace(30, 1000), 30.0
        for now in range(1, 10_000):
            assert deadline > now
            deadline = pace.deadline(deadline, now, 1000)

    def test_one_byte_now_and_then_is_408(self, serve):
        client = Client(serve(body_timeout=5, body_rate_min=100))
        listener = client.connection._listener
        begin(client, body=b"x" * 100_000)
        for _ in range(20):
            listener._count()
            if client.statuses:
                break
            client.send(b"x")
        check_refused(client, 408)
        assert 5 <= listener.tick <= 8


class Host:
    """An ASGI host that passes on a body in parts, and then waits."""

    def __init__(self, *parts, then_ends=True):
        self.parts = list(parts)
        self.taken = 0
        self.told = []
        self._then_ends = then_ends

    async def receive(self):
        if not self.parts:
            await asyncio.Event().wait()
        part = self.parts.pop(0)
        self.taken += 1
        more = bool(self.parts) or not self._then_ends
        return {"type": "http.request", "body": part, "more_body": more}

    async def send(self, message):
        self.told.append(message)

    def call(self, app, **headers):
        """The status that the host gets, and the bytes that are still held then."""
        fields = {"content-type": "text/plain"} | headers
        scope = {
            "type": "http",
            "method": "POST",
            "path": STREAM,
            "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
        }
        asyncio.run(handle_http(app, scope, self.receive, self.send))
        return self.told[0]["status"], app.bodies.held_bytes


class TestAsgi:
    def test_body_of_a_stranger_is_not_kept(self, guarded, monkeypatch):
        host = Host(*[b"x" * 100_000] * 5)
        monkeypatch.setattr(guarded.app.bodies, "_bytes_max", 0)
        assert host.call(guarded.app) == (401, 0)
        assert guarded.app.bodies.refusals == 0

    def test_body_over_the_budget_is_503(self, serve):
        served = serve()
        served.app.bodies.take(900_000)
        host = Host(*[b"x" * 60_000] * 5)
        assert host.call(served.app) == (503, 900_000)
        assert (b"retry-after", b"1") in host.told[0]["headers"]

    def test_body_that_stops_is_408(self, serve):
        host = Host(b"x", b"y", then_ends=False)
        served = serve(body_timeout=0.05, body_rate_min=100)
        assert host.call(served.app) == (408, 0)
