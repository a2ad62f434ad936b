"""The proxy's streams over HTTP where the time and the log matter: late answers, and live reads."""

import pytest

from holdfast.errors import SettingsError
from holdfast.node.proxy import open_proxy
from holdfast.proxy.access import session_stream_id
from holdfast.storage.pending import Pending
from holdfast.testing import FakeClock
from tests.unit.engine.driver import COMMIT_TIMEOUT_S, FAILED, Driver
from tests.unit.engine.held_ends import HeldEnds
from tests.unit.engine.tiered import Tiered
from tests.unit.http.access.gates import entry
from tests.unit.http.access.signing import NOW_S, signed
from tests.unit.http.access.signing import SECRET as JWT_SECRET
from tests.unit.http.apps import Served

SECRET = "7d1c0b9f52e84a6c93f0e1b7a45d8c26"
TOKEN = "holdfast_9a8b7c6d5e4f-service"
STREAM_ID = session_stream_id("a session")
NAME = f"_proxy/{STREAM_ID}"
OWN = f"/v1/proxy/{STREAM_ID}"
SURFACES = (OWN, f"/_proxy/{STREAM_ID}", f"/v1/stream/_proxy/{STREAM_ID}")


def served_by(engine, **settings):
    """A server with a proxy stream that holds six bytes."""
    engine.create(NAME, "application/octet-stream", body=b"one")
    engine.append(b"two", NAME, "application/octet-stream")
    engine.commit()
    return Served(engine, open_mount=open_proxy, proxy_secret=SECRET, **settings)


def ask(served, method, path, query="", token=SECRET):
    return served.ask(method, f"{path}?{query}", authorization=f"Bearer {token}")


class TestDelete:
    @pytest.fixture
    def served(self):
        return served_by(Driver())

    def test_a_log_that_takes_nothing(self, served):
        served.engine.append(b"x", NAME, "application/octet-stream")
        served.clock.advance(COMMIT_TIMEOUT_S)
        assert served.shard.commits.stalled
        slot = ask(served, "DELETE", OWN)
        assert (slot.status, slot.code) == (502, "STORAGE_ERROR")
        assert served.engine.exists(NAME)

    def test_a_log_that_fails(self, served):
        slot = ask(served, "DELETE", OWN)
        assert not slot.done
        served.engine.answer(FAILED)
        assert (slot.status, slot.code) == (502, "STORAGE_ERROR")

    @pytest.mark.spec("proxy 4.8-4")
    def test_a_stream_that_is_not_there(self, served):
        for _ in range(2):
            slot = ask(served, "DELETE", OWN)
            served.engine.commit()
            assert slot.status == 204


class TestAnswers:
    """A call is answered once, with what its client can still use."""

    @pytest.mark.parametrize("how", ["abort", "close_stream", "delete_stream"])
    def test_a_response_that_ends_early_was_answered_already(self, proxy, how):
        call, again = proxy.begun(piece=b"some"), []
        call.slot.respond = lambda *answer: again.append(answer)
        getattr(proxy, how)(call.stream_id)
        proxy.commit()
        assert call.upstream.left
        assert again == []

    @pytest.mark.parametrize(
        ("how", "expected"),
        [
            ("abort", (502, "UPSTREAM_ERROR")),
            ("close_stream", (409, "STREAM_CLOSED")),
            ("delete_stream", (404, "STREAM_NOT_FOUND")),
        ],
    )
    def test_a_call_that_waits_is_told_why_it_ends(self, proxy, how, expected):
        session = proxy.session()
        call = proxy.post(session)
        getattr(proxy, how)(session)
        proxy.commit()
        assert (call.slot.status, call.slot.code) == expected
        assert call.upstream.left


class TestLiveReads:
    """They end with the token that opened them, wherever they are."""

    @pytest.fixture(params=["jwt", "token"])
    def token(self, request):
        return TOKEN if request.param == "token" else signed(scope="write:_proxy").decode()

    @pytest.fixture
    def served(self, tmp_path):
        tokens = tmp_path / "tokens.toml"
        more = "expires_at = 2027-01-15T08:10:00Z"
        tokens.write_text(entry("service", TOKEN, "write:_proxy", more=more))
        return served_by(
            Driver(clock=FakeClock(start_ms=NOW_S * 1000)),
            access_tokens_file=str(tokens),
            access_jwt_secret=JWT_SECRET,
            access_leeway="0",
            sse_lifetime="100000",
        )

    @pytest.mark.parametrize("path", SURFACES)
    def test_end_with_their_token(self, served, path, token):
        slot = ask(served, "GET", path, "offset=-1&live=sse", token)
        served.clock.advance(0)
        assert slot.status == 200
        lasts_s = served.app.gate._known[f"Bearer {token}".encode()].expires_at_s - NOW_S
        assert lasts_s >= 60
        served.clock.advance(lasts_s - 1)
        assert not slot.done
        served.clock.advance(1)
        assert slot.ended
        late = ask(served, "GET", path, "offset=-1&live=sse", token)
        assert (late.status, late.code) == (401, "INVALID_SECRET")

    @pytest.mark.parametrize("path", SURFACES)
    def test_go_on_with_the_secret(self, served, path):
        slot = ask(served, "GET", path, "offset=-1&live=sse")
        served.clock.advance(90_000)
        assert not slot.done
        served.clock.advance(10_000)
        assert slot.ended


class TestGone:
    """A stream that goes away while it is read has the proxy's own code."""

    @pytest.fixture
    def served(self, tmp_path):
        engine = Tiered(tmp_path, streams_cached_max=1)
        served = served_by(engine)
        engine.flush()
        yield served
        engine.close()

    def read(self, served, query):
        """A read that waits for packs."""
        slot = ask(served, "GET", OWN, query)
        assert not slot.done
        return slot

    def delete(self, served):
        served.engine.delete(NAME)
        served.engine.commit()

    @pytest.mark.parametrize("query", ["", "offset=-1&live=sse", "offset=-1&live=long-poll"])
    def test_while_packs_are_read(self, served, query):
        cold, released = served.engine.cold, Pending()
        read = cold.read

        async def held(request):
            await released
            return await read(request)

        cold.read = held
        slot = self.read(served, query)
        self.delete(served)
        released.set(None)
        served.clock.run()
        assert (slot.status, slot.code) == (404, "STREAM_NOT_FOUND")
        assert slot.json["error"]["message"].count(STREAM_ID) == 1

    @pytest.mark.parametrize("leaves_memory", [False, True])
    @pytest.mark.parametrize("query", ["last=1", "last=1&live=sse"])
    def test_while_messages_are_counted(self, served, query, leaves_memory):
        """There is another one by then, perhaps without the first one having heard of it."""
        engine, held = served.engine, HeldEnds(served.engine)
        slot = self.read(served, query)
        if leaves_memory:
            engine.state.evict(engine.shard.find(NAME))
        self.delete(served)
        engine.create(NAME, "application/octet-stream", body=b"other")
        engine.commit()
        held.release_all()
        assert (slot.status, slot.code) == (404, "STREAM_NOT_FOUND")

    @pytest.mark.parametrize("path", SURFACES)
    def test_before_it_is_read(self, served, path):
        self.delete(served)
        for query in ("", "offset=-1&live=sse", "offset=-1&live=long-poll", "last=1"):
            slot = ask(served, "GET", path, query)
            assert (slot.status, slot.code) == (404, "STREAM_NOT_FOUND")


def test_producers_are_remembered_for_longer_than_a_response_may_be_silent():
    settings = {"producer_idle": "600", "proxy_inactivity_timeout": "600"}
    with pytest.raises(SettingsError, match="producer_idle must be longer than proxy_inactivity"):
        served_by(Driver(), **settings)
    assert served_by(Driver(), **(settings | {"producer_idle": "601"}))
    assert served_by(Driver(), **(settings | {"producer_idle": "0"}))
