"""Subscriptions while the log takes nothing: 503, and everything is as it was."""

import json

import pytest

from holdfast.subscriptions import requests
from tests.unit.engine.driver import COMMIT_TIMEOUT_S, COMMITTED, Driver
from tests.unit.subscriptions.desk import BASE_URL, JSON, Desk, tails


def overload(desk):
    """Too much is waiting to be written."""
    desk.engine.shard.commits.pending_bytes_max = 10
    desk.engine.append(json.dumps("x" * 100).encode(), "other/b", JSON)


def stall(desk):
    """The log has not answered for a write."""
    desk.engine.append(b'"x"', "other/b", JSON)
    desk.clock.advance(COMMIT_TIMEOUT_S + 1)


@pytest.fixture(params=[overload, stall])
def trouble(request):
    return request.param


@pytest.fixture
def desk():
    desk = Desk(Driver())
    desk.create_stream("events/a", 1)
    for path in ("other/b", "wake/pool"):
        desk.create_stream(path)
    return desk


def refused(desk, trouble, method, *arguments):
    """Ask for something in times of trouble: it is refused at once, and changes nothing."""
    trouble(desk)
    said = desk.ask(method, *arguments)
    assert (said.status, said.code) in {(503, "overloaded"), (503, "unavailable")}
    heal(desk)


def heal(desk):
    """The log is itself again."""
    desk.clock.run()
    desk.engine.log.answer(COMMITTED)
    desk.engine.commit()
    desk.engine.shard.commits.pending_bytes_max = 1 << 30


def seen(desk):
    """What a client sees of the subscription; its deadlines move on by themselves."""
    shown = desk.show()
    return {name: value for name, value in shown.items() if name != "lease_until"}


def test_creation(desk, trouble):
    config = desk.config(type="pull-wake", pattern="events/*", wake_stream="wake/pool")
    refused(desk, trouble, "create", config, BASE_URL)
    assert desk.do("show", "", 10).code == "SUBSCRIPTION_NOT_FOUND"
    desk = desk.restart()
    assert desk.do("show", "", 10).code == "SUBSCRIPTION_NOT_FOUND"
    # Nothing stands in the way of another attempt.
    assert desk.do("create", config, BASE_URL).status == 201
    desk.append("events/a")
    assert len(desk.events("wake/pool")) == 1


def test_deletion(desk, trouble):
    desk.pull()
    before = seen(desk)
    refused(desk, trouble, "delete")
    assert seen(desk) == before
    desk = desk.restart()
    assert seen(desk) == before
    assert desk.do("delete").status == 204
    assert desk.do("show", "", 10).code == "SUBSCRIPTION_NOT_FOUND"


class TestOfAWake:
    @pytest.fixture
    def wake(self, desk):
        """A worker has claimed."""
        desk.pull()
        desk.append("events/a")
        return desk.claim().json

    def asked(self, wake, *, done):
        acks = [{"stream": path, "offset": offset} for path, offset in tails(wake).items()]
        body = {key: wake[key] for key in ("wake_id", "generation")}
        return requests.parse_wake(
            json.dumps({**body, "acks": acks, "done": done}).encode(), links_max=10
        )

    @pytest.mark.parametrize("done", [False, True], ids=["goes on", "done"])
    def test_acknowledgement(self, desk, trouble, wake, done):
        before = seen(desk)
        refused(desk, trouble, "ack", wake["token"], self.asked(wake, done=done))
        assert seen(desk) == before
        assert before["holder"] == "worker"
        again = desk.restart()
        assert seen(again) == before
        assert again.speak("ack", wake, tails(wake), done=True).status == 200
        assert again.acked() == tails(wake)

    def test_release(self, desk, trouble, wake):
        before = seen(desk)
        refused(desk, trouble, "release", wake["token"], self.asked(wake, done=False))
        assert seen(desk) == before
        assert desk.speak("release", wake).status == 204


def test_claim(desk, trouble):
    desk.pull()
    desk.append("events/a")
    before = seen(desk)
    refused(desk, trouble, "claim", "worker")
    assert seen(desk) == before
    assert before["holder"] is None
    assert desk.claim().status == 200


def test_streams_by_name(desk, trouble):
    desk.pull()
    before = seen(desk)
    refused(desk, trouble, "add_streams", ("other/b",))
    assert seen(desk) == before
    assert desk.do("add_streams", ("other/b",)).status == 204
    before = seen(desk)
    refused(desk, trouble, "remove_stream", "other/b")
    links = {each["path"] for each in seen(desk)["streams"]}
    assert links == {each["path"] for each in before["streams"]}


def test_what_happens_meanwhile_is_not_lost(desk, trouble):
    """A wake that could not be started is started later."""
    desk.pull()
    desk.engine.append(b"2", "events/a", JSON)
    trouble(desk)
    heal(desk)
    desk.advance(60)
    assert len(desk.events("wake/pool")) >= 1
    assert tails(desk.claim().json) == {"events/a": desk.tail("events/a")}
