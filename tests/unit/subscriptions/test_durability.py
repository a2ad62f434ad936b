"""What survives: answers wait for the log, failures are undone, a restart takes everything up."""

import json

import pytest

from holdfast.subscriptions.bodies import parse_wake
from holdfast.subscriptions.delivery import DeliveryResult
from tests.unit.engine.driver import COMMIT_TIMEOUT_S, COMMITTED, FAILED
from tests.unit.subscriptions.harness import BASE_URL, Harness, tails


@pytest.fixture
def harness():
    harness = Harness()
    harness.create_stream("wake/pool")
    return harness


class TestAnswersWait:
    def test_a_creation_is_answered_once_it_is_durable(self, harness):
        config = harness.config(type="webhook", pattern="events/*")
        said = harness.ask("create", config, BASE_URL)
        again = harness.ask("create", config, BASE_URL)
        seen = harness.ask("show", "", 10)
        assert not said.answered
        assert not again.answered
        assert not seen.answered
        harness.engine.commit()
        assert (said.status, again.status, seen.status) == (201, 200, 200)

    def test_so_are_refusals_that_rest_on_something_pending(self, harness):
        harness.pull()
        harness.create_stream("events/a", 1)
        first = harness.ask("claim", "worker-1")
        second = harness.ask("claim", "worker-2")
        assert not first.answered
        assert not second.answered
        harness.engine.commit()
        assert (first.status, second.code) == (200, "ALREADY_CLAIMED")

    def test_and_what_is_deleted_is_missed_only_once_that_is_durable(self, harness):
        harness.webhook()
        harness.ask("delete")
        seen = harness.ask("show", "", 10)
        assert not seen.answered
        harness.engine.commit()
        assert seen.code == "SUBSCRIPTION_NOT_FOUND"


class TestFailures:
    def test_a_creation_that_fails_leaves_nothing(self, harness):
        said = harness.ask("create", harness.config(type="webhook", pattern="events/*"), BASE_URL)
        harness.engine.answer(FAILED)
        assert (said.status, said.code) == (503, "commit_failed")
        assert harness.do("show", "", 10).code == "SUBSCRIPTION_NOT_FOUND"
        assert harness.webhook().status == 201

    def test_a_deletion_that_fails_changes_nothing(self, harness):
        harness.webhook()
        harness.ask("delete")
        harness.engine.answer(FAILED)
        harness.create_stream("events/a", 1)
        harness.advance(1.1)
        assert harness.sent["generation"] == 1

    def test_a_claim_that_fails_leaves_the_wake_to_others(self, harness):
        harness.pull()
        harness.create_stream("events/a", 1)
        lost, refused = harness.ask("claim", "worker-1"), harness.ask("claim", "worker-2")
        harness.engine.answer(FAILED)
        assert (lost.status, refused.status) == (503, 503)
        assert harness.claim("worker-2").status == 200

    def test_an_ack_that_fails_is_not_acknowledged(self, harness):
        harness.pull()
        harness.create_stream("events/a", 1)
        wake = harness.claim().json
        said = speak_without_commit(harness, wake, tails(wake), done=True)
        harness.engine.answer(FAILED)
        assert said.status == 503
        assert harness.acked() == {"events/a": "-1"}
        assert harness.speak("ack", wake, tails(wake), done=True).status == 200

    def test_a_wake_that_fails_is_started_again(self, harness):
        harness.webhook()
        harness.create_stream("events/a")
        harness.engine.append(b"1", "events/a", "application/json")
        harness.engine.answer(COMMITTED)
        harness.engine.answer(FAILED)
        assert harness.courier.under_way == []
        harness.advance(1.1)
        assert harness.sent["generation"] == 1

    def test_an_event_that_fails_is_written_again(self, harness):
        harness.pull()
        harness.create_stream("events/a")
        harness.engine.append(b"1", "events/a", "application/json")
        harness.engine.answer(COMMITTED)
        harness.engine.answer(COMMITTED)
        harness.engine.answer(FAILED)
        assert harness.events("wake/pool") == []
        harness.advance(1.1)
        assert [each["generation"] for each in harness.events("wake/pool")] == [1]

    def test_the_outcome_of_a_delivery_that_fails_is_found_out_again(self, harness):
        harness.webhook()
        harness.create_stream("events/a", 1)
        body, take = harness.courier.under_way.pop()
        take(DeliveryResult(done=True))
        harness.engine.answer(FAILED)
        harness.advance(1.1)
        assert harness.sent["wake_id"] == body["wake_id"]
        harness.answer(done=True)
        assert harness.acked() == tails(body)


class TestSilence:
    def test_an_unknown_outcome_is_said_and_taken_up_once_it_is_known(self, harness):
        harness.pull()
        harness.create_stream("events/a", 1)
        said = harness.ask("claim", "worker-1")
        harness.clock.advance(COMMIT_TIMEOUT_S + 1)
        assert (said.status, said.code) == (503, "commit_unknown")
        assert harness.ask("show", "", 10).status == 503
        harness.engine.log.answer(COMMITTED)
        harness.engine.commit()
        assert harness.claim("worker-2").outcomes[0].holder == "worker-1"

    def test_or_undone(self, harness):
        harness.pull()
        harness.create_stream("events/a", 1)
        harness.ask("claim", "worker-1")
        harness.clock.advance(COMMIT_TIMEOUT_S + 1)
        harness.engine.log.answer(FAILED)
        harness.engine.commit()
        assert harness.claim("worker-2").status == 200

    def test_a_wake_is_delivered_once_it_is_known(self, harness):
        harness.webhook()
        harness.create_stream("events/a")
        harness.engine.append(b"1", "events/a", "application/json")
        harness.engine.answer(COMMITTED)
        harness.clock.advance(COMMIT_TIMEOUT_S + 1)
        assert harness.courier.under_way == []
        harness.engine.log.answer(COMMITTED)
        harness.engine.commit()
        assert harness.sent["generation"] == 1


class TestRestart:
    def test_a_wake_keeps_its_generation_and_its_token(self, harness):
        harness.pull()
        harness.create_stream("events/a", 1)
        wake = harness.claim("worker-1").json
        harness = harness.restart()
        assert harness.claim("worker-2").outcomes[0].holder == "worker-1"
        assert harness.speak("ack", wake, tails(wake), done=True).status == 200
        assert harness.acked() == tails(wake)

    def test_a_delivery_under_way_is_repeated(self, harness):
        harness.webhook()
        harness.create_stream("events/a", 1)
        wake = harness.sent
        harness = harness.restart()
        assert (harness.sent["wake_id"], harness.sent["generation"]) == (wake["wake_id"], 1)
        assert harness.speak("callback", wake, tails(wake), done=True).status == 200

    def test_what_was_delivered_is_not_delivered_again_before_its_lease_ends(self, harness):
        harness.webhook()
        harness.create_stream("events/a", 1)
        harness.answer()
        harness = harness.restart()
        assert harness.courier.under_way == []
        harness.advance(30)
        assert harness.sent["generation"] == 2

    @pytest.mark.spec("subscriptions 7.3-9", "subscriptions 7.3-10")
    def test_a_lease_that_ended_meanwhile_is_over(self, harness):
        harness.pull(lease_ttl_ms=1000)
        harness.create_stream("events/a", 1)
        old = harness.claim("worker-1").json
        harness.service.stop()
        harness.clock.advance(5)
        harness = harness.restart()
        harness.engine.commit()
        assert harness.claim("worker-2").json["generation"] == 2
        assert harness.speak("ack", old).code == "FENCED"

    @pytest.mark.spec("subscriptions 7-1")
    def test_an_append_whose_wake_was_lost_wakes(self, harness):
        harness.webhook()
        harness.create_stream("events/a")
        harness.engine.append(b"1", "events/a", "application/json")
        harness.engine.answer(COMMITTED)
        harness = harness.restart()
        harness.engine.commit()
        assert tails(harness.sent) == {"events/a": harness.tail("events/a")}
        assert harness.sent["streams"][0]["acked_offset"] == "-1"

    def test_links_are_as_they_were(self, harness):
        harness.create_stream("events/old", 1)
        harness.create_stream("events/idle")
        harness.webhook(streams=["manual/a", "manual/none", "events/both"])
        harness.create_stream("manual/a", 1)
        harness.create_stream("events/new", 1)
        harness.create_stream("events/empty")
        before = harness.show()
        assert set(harness.acked()) == {
            "events/old",
            "events/idle",
            "events/new",
            "events/both",
            "manual/a",
            "manual/none",
        }
        harness = harness.restart()
        assert harness.show() == before

    def test_a_stream_deleted_and_created_anew_is_another(self, harness):
        harness.create_stream("events/a", 1, 2, 3)
        harness.webhook()
        harness.engine.delete("events/a")
        harness.engine.create("events/a", "application/json", body=b"1")
        # Neither the removal of the link nor the wake is durable when the server dies.
        harness.engine.answer(COMMITTED)
        harness = harness.restart()
        harness.engine.commit()
        assert harness.acked() == {"events/a": "-1"}
        assert tails(harness.sent) == {"events/a": harness.tail("events/a")}

    def test_an_offer_that_nobody_has_taken_up_is_made_again(self, harness):
        harness.pull()
        harness.create_stream("events/a", 1)
        harness = harness.restart()
        harness.engine.commit()
        assert {each["generation"] for each in harness.events("wake/pool")} == {1}
        assert harness.claim().json["generation"] == 1

    def test_subscriptions_that_were_deleted_stay_so(self, harness):
        harness.webhook()
        harness.create_stream("events/a", 1)
        harness.answer(done=True)
        harness.do("delete")
        harness = harness.restart()
        assert list(harness.engine.shard.documents.items("")) == []


def speak_without_commit(harness, wake, acks, *, done):
    body = {
        "wake_id": wake["wake_id"],
        "generation": wake["generation"],
        "acks": [{"stream": path, "offset": offset} for path, offset in acks.items()],
        "done": done,
    }
    return harness.ask("ack", wake["token"], parse_wake(json.dumps(body).encode(), links_max=10))
