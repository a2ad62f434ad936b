"""Pull-wake subscriptions: offers, claims, acks, releases, leases."""

import logging

import pytest

from holdfast.engine.writes import AppendRequest, CreateRequest
from tests.unit.engine.driver import Ask, reply
from tests.unit.subscriptions.desk import Desk, tails


@pytest.fixture
def desk():
    desk = Desk()
    desk.create_stream("wake/pool")
    return desk


def generations(desk, stream="wake/pool"):
    return [event["generation"] for event in desk.events(stream)]


class TestOffer:
    @pytest.mark.spec("subscriptions 7.2-1")
    def test_an_append_is_offered_on_the_wake_stream(self, desk):
        desk.pull()
        desk.create_stream("events/a", 1)
        assert desk.events("wake/pool") == [
            {
                "type": "wake",
                "subscription_id": "sub",
                "stream": "events/a",
                "generation": 1,
                "ts": desk.clock.now_ms(),
            }
        ]

    @pytest.mark.spec("subscriptions 7-2")
    def test_once_for_any_number_of_appends(self, desk):
        desk.pull()
        desk.create_stream("events/a", 1)
        for _ in range(5):
            desk.append("events/a")
        assert generations(desk) == [1]

    def test_a_wake_stream_that_matches_the_pattern_does_not_wake_itself(self, desk):
        desk.pull("**")
        desk.create_stream("events/a", 1)
        wake = desk.claim().json
        assert set(tails(wake)) == {"events/a"}
        assert not desk.speak("ack", wake, tails(wake), done=True).json["next_wake"]
        assert generations(desk) == [1]
        assert "wake/pool" not in desk.acked()

    def test_a_missing_wake_stream_is_said_once_and_used_when_it_appears(self, desk, caplog):
        desk.pull(wake_stream="wake/later")
        with caplog.at_level(logging.WARNING):
            desk.create_stream("events/a", 1)
            desk.advance(100)
        assert [each.message for each in caplog.records if "wake/later" in each.message] != []
        assert len([each for each in caplog.records if "'sub'" in each.message]) == 1
        desk.create_stream("wake/later")
        assert generations(desk, "wake/later") == [1]

    def test_a_wake_stream_of_another_type_is_tried_again_at_the_lease(self, desk, caplog):
        ask = Ask()
        desk.engine.shard.create("wake/text", CreateRequest("text/plain"), reply, ask)
        desk.engine.commit()
        desk.pull(wake_stream="wake/text")
        with caplog.at_level(logging.WARNING):
            desk.create_stream("events/a", 1)
        assert "application/json" in caplog.text
        desk.delete_stream("wake/text")
        desk.create_stream("wake/text")
        desk.advance(31)
        assert generations(desk, "wake/text") == [1]

    def test_an_offer_that_nobody_can_take_up_any_more_is_withdrawn(self, desk):
        """Otherwise the next append would find a wake in place, and nobody would hear of it."""
        desk.pull()
        desk.create_stream("events/a", 1)
        desk.delete_stream("events/a")
        assert desk.claim().code == "NO_PENDING_WORK"
        desk.create_stream("events/b", 1)
        assert generations(desk) == [1, 2]


class TestClaim:
    @pytest.mark.spec("subscriptions 7.2-3")
    def test_gives_the_wake_and_a_token(self, desk):
        desk.pull(lease_ttl_ms=5000)
        desk.create_stream("events/a", 1)
        wake = desk.claim().json
        assert wake["generation"] == 1
        assert wake["wake_id"].startswith("w_")
        assert wake["lease_ttl_ms"] == 5000
        assert tails(wake) == {"events/a": desk.tail("events/a")}

    @pytest.mark.spec("subscriptions 7.2-4")
    def test_one_holder_at_a_time(self, desk):
        desk.pull()
        desk.create_stream("events/a", 1)
        desk.claim("worker-1")
        error = desk.claim("worker-2").outcomes[0]
        assert (error.status, error.code) == (409, "ALREADY_CLAIMED")
        assert (error.holder, error.generation) == ("worker-1", 1)

    def test_nothing_pending_is_nothing_to_claim(self, desk):
        desk.pull()
        said = desk.claim()
        assert (said.status, said.code) == (409, "NO_PENDING_WORK")

    def test_an_append_can_be_claimed_as_soon_as_it_is_answered(self, desk):
        """That is before those who watch the shard are told of it."""
        desk.pull()
        desk.create_stream("events/a")
        claims = []
        request = AppendRequest(b"1", "application/json")
        desk.engine.shard.append(
            "events/a", request, lambda _context, _outcome: claims.append(desk.ask("claim", "w")), 0
        )
        desk.engine.commit()
        assert [each.status for each in claims] == [200]

    def test_is_not_for_webhooks_and_not_for_what_is_not_there(self, desk):
        desk.webhook()
        assert desk.claim().status == 400
        assert desk.claim(subscription="none").code == "SUBSCRIPTION_NOT_FOUND"


class TestAck:
    @pytest.mark.spec("subscriptions 7.2-6", "subscriptions 7.2-9")
    def test_done_acknowledges_and_ends_the_wake(self, desk):
        desk.pull()
        desk.create_stream("events/a", 1)
        wake = desk.claim().json
        said = desk.speak("ack", wake, tails(wake), done=True)
        assert said.json == {"ok": True, "next_wake": False}
        assert desk.acked() == tails(wake)
        assert desk.speak("ack", wake, done=True).code == "FENCED"
        assert desk.claim().code == "NO_PENDING_WORK"

    @pytest.mark.spec("subscriptions 7-2", "subscriptions 7.2-6")
    def test_what_came_meanwhile_is_offered(self, desk):
        desk.pull()
        desk.create_stream("events/a", 1)
        wake = desk.claim().json
        desk.append("events/a")
        assert generations(desk) == [1]
        assert desk.speak("ack", wake, tails(wake), done=True).json["next_wake"]
        assert generations(desk) == [1, 2]

    @pytest.mark.spec("subscriptions 7.2-5", "subscriptions 7.3-8")
    def test_without_done_keeps_the_lease(self, desk):
        desk.pull(lease_ttl_ms=1000)
        desk.create_stream("events/a", 1)
        wake = desk.claim().json
        for _ in range(3):
            desk.advance(0.9)
            assert desk.speak("ack", wake).json == {"ok": True, "next_wake": False}
        assert desk.claim("other").code == "ALREADY_CLAIMED"

    @pytest.mark.spec("subscriptions 7.2-9", "subscriptions 7.3-9", "subscriptions 7.3-10")
    def test_a_lease_that_ends_gives_the_wake_to_the_next(self, desk):
        desk.pull(lease_ttl_ms=1000)
        desk.create_stream("events/a", 1)
        first = desk.claim("worker-1").json
        desk.advance(1.1)
        assert generations(desk) == [1, 2]
        second = desk.claim("worker-2").json
        assert second["generation"] == 2
        assert desk.speak("ack", first, tails(first)).code == "FENCED"
        assert desk.speak("release", first).code == "FENCED"
        assert desk.acked() == {"events/a": "-1"}

    def test_a_lease_ends_at_its_deadline_though_no_timer_ran(self, desk):
        desk.pull(lease_ttl_ms=1000)
        desk.create_stream("events/a", 1)
        first = desk.claim("worker-1").json
        desk.clock._elapsed_s += 2
        assert desk.claim("worker-2").status == 200
        assert desk.speak("ack", first).code == "FENCED"

    @pytest.mark.parametrize(
        ("acks", "about"),
        [
            ({"events/a": "-1"}, "no offset"),
            ({"events/a": "now"}, "no offset"),
            ({"events/a": "00000000000000000099"}, "past the tail"),
            ({"events/a": "00000000000000000002"}, "already"),
            ({"events/none": "00000000000000000004"}, "not linked"),
        ],
    )
    def test_bad_offsets_change_nothing(self, desk, acks, about):
        desk.create_stream("events/a", 1)
        desk.pull()
        desk.append("events/a", 2)
        desk.create_stream("events/b", 1)
        before = desk.acked()
        wake = desk.claim().json
        said = desk.speak("ack", wake, {"events/b": desk.tail("events/b"), **acks})
        if about == "already":
            said = desk.speak("ack", wake, {"events/a": "00000000000000000001"})
        assert (said.status, said.code) == (409, "INVALID_OFFSET")
        assert about in said.outcomes[0].message
        after = desk.acked()
        assert after == before or about == "already"

    def test_an_ack_never_goes_back(self, desk):
        desk.pull()
        desk.create_stream("events/a", 1, 2, 3)
        wake = desk.claim().json
        assert desk.speak("ack", wake, {"events/a": f"{4:020d}"}).status == 200
        assert desk.speak("ack", wake, {"events/a": f"{2:020d}"}).code == "INVALID_OFFSET"
        assert desk.acked() == {"events/a": f"{4:020d}"}


class TestRelease:
    @pytest.mark.spec("subscriptions 7.2-7", "subscriptions 7.2-8")
    def test_offers_the_work_again(self, desk):
        desk.pull()
        desk.create_stream("events/a", 1)
        assert desk.speak("release", desk.claim().json).status == 204
        assert generations(desk) == [1, 2]
        assert desk.acked() == {"events/a": "-1"}

    def test_after_acks_there_is_nothing_to_offer(self, desk):
        desk.pull()
        desk.create_stream("events/a", 1)
        wake = desk.claim().json
        desk.speak("ack", wake, tails(wake))
        assert desk.speak("release", wake).status == 204
        assert generations(desk) == [1]
