"""Subscriptions while the log takes nothing: 503, and everything is as it was."""

import json

import pytest

from holdfast.subscriptions import bodies
from tests.unit.engine.driver import COMMIT_TIMEOUT_S, COMMITTED, Driver
from tests.unit.subscriptions.harness import BASE_URL, JSON, Harness, tails


def overload(harness):
    """Too much is waiting to be written."""
    harness.engine.shard.commits.pending_bytes_max = 10
    harness.engine.append(json.dumps("x" * 100).encode(), "other/b", JSON)


def stall(harness):
    """The log has not answered for a write."""
    harness.engine.append(b'"x"', "other/b", JSON)
    harness.clock.advance(COMMIT_TIMEOUT_S + 1)


@pytest.fixture(params=[overload, stall])
def trouble(request):
    return request.param


@pytest.fixture
def harness():
    harness = Harness(Driver())
    harness.create_stream("events/a", 1)
    for path in ("other/b", "wake/pool"):
        harness.create_stream(path)
    return harness


def refused(harness, trouble, method, *arguments):
    """Ask for something in times of trouble: it is refused at once, and changes nothing."""
    trouble(harness)
    said = harness.ask(method, *arguments)
    assert (said.status, said.code) in {(503, "overloaded"), (503, "unavailable")}
    heal(harness)


def heal(harness):
    """The log is itself again."""
    harness.clock.run()
    harness.engine.log.answer(COMMITTED)
    harness.engine.commit()
    harness.engine.shard.commits.pending_bytes_max = 1 << 30


def seen(harness):
    """What a client sees of the subscription; its deadlines move on by themselves."""
    shown = harness.show()
    return {name: value for name, value in shown.items() if name != "lease_until"}


def test_creation(harness, trouble):
    config = harness.config(type="pull-wake", pattern="events/*", wake_stream="wake/pool")
    refused(harness, trouble, "create", config, BASE_URL)
    assert harness.do("show", "", 10).code == "SUBSCRIPTION_NOT_FOUND"
    harness = harness.restart()
    assert harness.do("show", "", 10).code == "SUBSCRIPTION_NOT_FOUND"
    # Nothing stands in the way of another attempt.
    assert harness.do("create", config, BASE_URL).status == 201
    harness.append("events/a")
    assert len(harness.events("wake/pool")) == 1


def test_deletion(harness, trouble):
    harness.pull()
    before = seen(harness)
    refused(harness, trouble, "delete")
    assert seen(harness) == before
    harness = harness.restart()
    assert seen(harness) == before
    assert harness.do("delete").status == 204
    assert harness.do("show", "", 10).code == "SUBSCRIPTION_NOT_FOUND"


class TestOfAWake:
    @pytest.fixture
    def wake(self, harness):
        """A worker has claimed."""
        harness.pull()
        harness.append("events/a")
        return harness.claim().json

    def asked(self, wake, *, done):
        acks = [{"stream": path, "offset": offset} for path, offset in tails(wake).items()]
        body = {key: wake[key] for key in ("wake_id", "generation")}
        return bodies.parse_wake(
            json.dumps({**body, "acks": acks, "done": done}).encode(), links_max=10
        )

    @pytest.mark.parametrize("done", [False, True], ids=["goes on", "done"])
    def test_acknowledgement(self, harness, trouble, wake, done):
        before = seen(harness)
        refused(harness, trouble, "ack", wake["token"], self.asked(wake, done=done))
        assert seen(harness) == before
        assert before["holder"] == "worker"
        again = harness.restart()
        assert seen(again) == before
        assert again.speak("ack", wake, tails(wake), done=True).status == 200
        assert again.acked() == tails(wake)

    def test_release(self, harness, trouble, wake):
        before = seen(harness)
        refused(harness, trouble, "release", wake["token"], self.asked(wake, done=False))
        assert seen(harness) == before
        assert harness.speak("release", wake).status == 204


def test_claim(harness, trouble):
    harness.pull()
    harness.append("events/a")
    before = seen(harness)
    refused(harness, trouble, "claim", "worker")
    assert seen(harness) == before
    assert before["holder"] is None
    assert harness.claim().status == 200


def test_streams_by_name(harness, trouble):
    harness.pull()
    before = seen(harness)
    refused(harness, trouble, "add_streams", ("other/b",))
    assert seen(harness) == before
    assert harness.do("add_streams", ("other/b",)).status == 204
    before = seen(harness)
    refused(harness, trouble, "remove_stream", "other/b")
    links = {each["path"] for each in seen(harness)["streams"]}
    assert links == {each["path"] for each in before["streams"]}


def test_what_happens_meanwhile_is_not_lost(harness, trouble):
    """A wake that could not be started is started later."""
    harness.pull()
    harness.engine.append(b"2", "events/a", JSON)
    trouble(harness)
    heal(harness)
    harness.advance(60)
    assert len(harness.events("wake/pool")) >= 1
    assert tails(harness.claim().json) == {"events/a": harness.tail("events/a")}
