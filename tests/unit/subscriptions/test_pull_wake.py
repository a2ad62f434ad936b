"""Pull-wake subscriptions: offers, claims, acks, releases, leases."""

import logging

import pytest

from holdfast.engine.writes import AppendRequest, CreateRequest
from tests.unit.engine.driver import Ask, reply
from tests.unit.subscriptions.harness import Harness, tails


@pytest.fixture
def harness():
    harness = Harness()
    harness.create_stream("wake/pool")
    return harness


def generations(harness, stream="wake/pool"):
    return [event["generation"] for event in harness.events(stream)]


class TestOffer:
    @pytest.mark.spec("subscriptions 7.2-1")
    def test_an_append_is_offered_on_the_wake_stream(self, harness):
        harness.pull()
        harness.create_stream("events/a", 1)
        assert harness.events("wake/pool") == [
            {
                "type": "wake",
                "subscription_id": "sub",
                "stream": "events/a",
                "generation": 1,
                "ts": harness.clock.now_ms(),
            }
        ]

    @pytest.mark.spec("subscriptions 7-2")
    def test_once_for_any_number_of_appends(self, harness):
        harness.pull()
        harness.create_stream("events/a", 1)
        for _ in range(5):
            harness.append("events/a")
        assert generations(harness) == [1]

    def test_a_wake_stream_that_matches_the_pattern_does_not_wake_itself(self, harness):
        harness.pull("**")
        harness.create_stream("events/a", 1)
        wake = harness.claim().json
        assert set(tails(wake)) == {"events/a"}
        assert not harness.speak("ack", wake, tails(wake), done=True).json["next_wake"]
        assert generations(harness) == [1]
        assert "wake/pool" not in harness.acked()

    def test_a_missing_wake_stream_is_said_once_and_used_when_it_appears(self, harness, caplog):
        harness.pull(wake_stream="wake/later")
        with caplog.at_level(logging.WARNING):
            harness.create_stream("events/a", 1)
            harness.advance(100)
        said = [each.getMessage() for each in caplog.records]
        assert [each for each in said if "wake/later" in each] != []
        assert len([each for each in said if "'sub'" in each]) == 1
        harness.create_stream("wake/later")
        assert generations(harness, "wake/later") == [1]

    def test_a_wake_stream_of_another_type_is_tried_again_at_the_lease(self, harness, caplog):
        ask = Ask()
        harness.engine.shard.create("wake/text", CreateRequest("text/plain"), reply, ask)
        harness.engine.commit()
        harness.pull(wake_stream="wake/text")
        with caplog.at_level(logging.WARNING):
            harness.create_stream("events/a", 1)
        assert "application/json" in caplog.text
        harness.delete_stream("wake/text")
        harness.create_stream("wake/text")
        harness.advance(31)
        assert generations(harness, "wake/text") == [1]

    def test_an_offer_that_nobody_can_take_up_any_more_is_withdrawn(self, harness):
        """Otherwise the next append would find a wake in place, and nobody would hear of it."""
        harness.pull()
        harness.create_stream("events/a", 1)
        harness.delete_stream("events/a")
        assert harness.claim().code == "NO_PENDING_WORK"
        harness.create_stream("events/b", 1)
        assert generations(harness) == [1, 2]


class TestClaim:
    @pytest.mark.spec("subscriptions 7.2-3")
    def test_gives_the_wake_and_a_token(self, harness):
        harness.pull(lease_ttl_ms=5000)
        harness.create_stream("events/a", 1)
        wake = harness.claim().json
        assert wake["generation"] == 1
        assert wake["wake_id"].startswith("w_")
        assert wake["lease_ttl_ms"] == 5000
        assert tails(wake) == {"events/a": harness.tail("events/a")}

    @pytest.mark.spec("subscriptions 7.2-4")
    def test_one_holder_at_a_time(self, harness):
        harness.pull()
        harness.create_stream("events/a", 1)
        harness.claim("worker-1")
        error = harness.claim("worker-2").outcomes[0]
        assert (error.status, error.code) == (409, "ALREADY_CLAIMED")
        assert (error.holder, error.generation) == ("worker-1", 1)

    def test_nothing_pending_is_nothing_to_claim(self, harness):
        harness.pull()
        said = harness.claim()
        assert (said.status, said.code) == (409, "NO_PENDING_WORK")

    def test_an_append_can_be_claimed_as_soon_as_it_is_answered(self, harness):
        """That is before those who watch the shard are told of it."""
        harness.pull()
        harness.create_stream("events/a")
        claims = []
        request = AppendRequest(b"1", "application/json")
        harness.engine.shard.append(
            "events/a",
            request,
            lambda _context, _outcome: claims.append(harness.ask("claim", "w")),
            0,
        )
        harness.engine.commit()
        assert [each.status for each in claims] == [200]

    def test_is_not_for_webhooks_and_not_for_what_is_not_there(self, harness):
        harness.webhook()
        assert harness.claim().status == 400
        assert harness.claim(subscription="none").code == "SUBSCRIPTION_NOT_FOUND"


class TestAck:
    @pytest.mark.spec("subscriptions 7.2-6", "subscriptions 7.2-9")
    def test_done_acknowledges_and_ends_the_wake(self, harness):
        harness.pull()
        harness.create_stream("events/a", 1)
        wake = harness.claim().json
        said = harness.speak("ack", wake, tails(wake), done=True)
        assert said.json == {"ok": True, "next_wake": False}
        assert harness.acked() == tails(wake)
        assert harness.speak("ack", wake, done=True).code == "FENCED"
        assert harness.claim().code == "NO_PENDING_WORK"

    @pytest.mark.spec("subscriptions 7-2", "subscriptions 7.2-6")
    def test_what_came_meanwhile_is_offered(self, harness):
        harness.pull()
        harness.create_stream("events/a", 1)
        wake = harness.claim().json
        harness.append("events/a")
        assert generations(harness) == [1]
        assert harness.speak("ack", wake, tails(wake), done=True).json["next_wake"]
        assert generations(harness) == [1, 2]

    @pytest.mark.spec("subscriptions 7.2-5", "subscriptions 7.3-8")
    def test_without_done_keeps_the_lease(self, harness):
        harness.pull(lease_ttl_ms=1000)
        harness.create_stream("events/a", 1)
        wake = harness.claim().json
        for _ in range(3):
            harness.advance(0.9)
            assert harness.speak("ack", wake).json == {"ok": True, "next_wake": False}
        assert harness.claim("other").code == "ALREADY_CLAIMED"

    @pytest.mark.spec("subscriptions 7.2-9", "subscriptions 7.3-9", "subscriptions 7.3-10")
    def test_a_lease_that_ends_gives_the_wake_to_the_next(self, harness):
        harness.pull(lease_ttl_ms=1000)
        harness.create_stream("events/a", 1)
        first = harness.claim("worker-1").json
        harness.advance(1.1)
        assert generations(harness) == [1, 2]
        second = harness.claim("worker-2").json
        assert second["generation"] == 2
        assert harness.speak("ack", first, tails(first)).code == "FENCED"
        assert harness.speak("release", first).code == "FENCED"
        assert harness.acked() == {"events/a": "-1"}

    def test_a_lease_ends_at_its_deadline_though_no_timer_ran(self, harness):
        harness.pull(lease_ttl_ms=1000)
        harness.create_stream("events/a", 1)
        first = harness.claim("worker-1").json
        harness.clock._elapsed_s += 2
        assert harness.claim("worker-2").status == 200
        assert harness.speak("ack", first).code == "FENCED"

    @pytest.mark.parametrize(
        ("acks", "about"),
        [
            ({"events/a": "-1"}, "not an offset"),
            ({"events/a": "now"}, "not an offset"),
            ({"events/a": "00000000000000000099"}, "past the tail"),
            ({"events/a": "00000000000000000002"}, "already"),
            ({"events/none": "00000000000000000004"}, "not linked"),
        ],
    )
    def test_bad_offsets_change_nothing(self, harness, acks, about):
        harness.create_stream("events/a", 1)
        harness.pull()
        harness.append("events/a", 2)
        harness.create_stream("events/b", 1)
        before = harness.acked()
        wake = harness.claim().json
        said = harness.speak("ack", wake, {"events/b": harness.tail("events/b"), **acks})
        if about == "already":
            said = harness.speak("ack", wake, {"events/a": "00000000000000000001"})
        assert (said.status, said.code) == (409, "INVALID_OFFSET")
        assert about in said.outcomes[0].message
        after = harness.acked()
        assert after == before or about == "already"

    def test_an_ack_never_goes_back(self, harness):
        harness.pull()
        harness.create_stream("events/a", 1, 2, 3)
        wake = harness.claim().json
        assert harness.speak("ack", wake, {"events/a": f"{4:020d}"}).status == 200
        assert harness.speak("ack", wake, {"events/a": f"{2:020d}"}).code == "INVALID_OFFSET"
        assert harness.acked() == {"events/a": f"{4:020d}"}


class TestRelease:
    @pytest.mark.spec("subscriptions 7.2-7", "subscriptions 7.2-8")
    def test_offers_the_work_again(self, harness):
        harness.pull()
        harness.create_stream("events/a", 1)
        assert harness.speak("release", harness.claim().json).status == 204
        assert generations(harness) == [1, 2]
        assert harness.acked() == {"events/a": "-1"}

    def test_after_acks_there_is_nothing_to_offer(self, harness):
        harness.pull()
        harness.create_stream("events/a", 1)
        wake = harness.claim().json
        harness.speak("ack", wake, tails(wake))
        assert harness.speak("release", wake).status == 204
        assert generations(harness) == [1]
