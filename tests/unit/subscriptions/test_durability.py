"""What survives: answers wait for the log, failures are undone, a restart takes everything up."""

import json

import pytest

from holdfast.subscriptions.delivery import Receipt
from holdfast.subscriptions.requests import parse_wake
from tests.unit.engine.driver import COMMIT_TIMEOUT_S, COMMITTED, FAILED
from tests.unit.subscriptions.desk import BASE_URL, Desk, tails


@pytest.fixture
def desk():
    desk = Desk()
    desk.create_stream("wake/pool")
    return desk


class TestAnswersWait:
    def test_a_creation_is_answered_once_it_is_durable(self, desk):
        config = desk.config(type="webhook", pattern="events/*")
        said = desk.ask("create", config, BASE_URL)
        again = desk.ask("create", config, BASE_URL)
        seen = desk.ask("show", "", 10)
        assert not said.answered
        assert not again.answered
        assert not seen.answered
        desk.engine.commit()
        assert (said.status, again.status, seen.status) == (201, 200, 200)

    def test_so_are_refusals_that_rest_on_something_pending(self, desk):
        desk.pull()
        desk.create_stream("events/a", 1)
        first = desk.ask("claim", "worker-1")
        second = desk.ask("claim", "worker-2")
        assert not first.answered
        assert not second.answered
        desk.engine.commit()
        assert (first.status, second.code) == (200, "ALREADY_CLAIMED")

    def test_and_what_is_deleted_is_missed_only_once_that_is_durable(self, desk):
        desk.webhook()
        desk.ask("delete")
        seen = desk.ask("show", "", 10)
        assert not seen.answered
        desk.engine.commit()
        assert seen.code == "SUBSCRIPTION_NOT_FOUND"


class TestFailures:
    def test_a_creation_that_fails_leaves_nothing(self, desk):
        said = desk.ask("create", desk.config(type="webhook", pattern="events/*"), BASE_URL)
        desk.engine.answer(FAILED)
        assert (said.status, said.code) == (503, "commit_failed")
        assert desk.do("show", "", 10).code == "SUBSCRIPTION_NOT_FOUND"
        assert desk.webhook().status == 201

    def test_a_deletion_that_fails_changes_nothing(self, desk):
        desk.webhook()
        desk.ask("delete")
        desk.engine.answer(FAILED)
        desk.create_stream("events/a", 1)
        desk.advance(1.1)
        assert desk.sent["generation"] == 1

    def test_a_claim_that_fails_leaves_the_wake_to_others(self, desk):
        desk.pull()
        desk.create_stream("events/a", 1)
        lost, refused = desk.ask("claim", "worker-1"), desk.ask("claim", "worker-2")
        desk.engine.answer(FAILED)
        assert (lost.status, refused.status) == (503, 503)
        assert desk.claim("worker-2").status == 200

    def test_an_ack_that_fails_is_not_acknowledged(self, desk):
        desk.pull()
        desk.create_stream("events/a", 1)
        wake = desk.claim().json
        said = speak_without_commit(desk, wake, tails(wake), done=True)
        desk.engine.answer(FAILED)
        assert said.status == 503
        assert desk.acked() == {"events/a": "-1"}
        assert desk.speak("ack", wake, tails(wake), done=True).status == 200

    def test_a_wake_that_fails_is_started_again(self, desk):
        desk.webhook()
        desk.create_stream("events/a")
        desk.engine.append(b"1", "events/a", "application/json")
        desk.engine.answer(COMMITTED)
        desk.engine.answer(FAILED)
        assert desk.courier.under_way == []
        desk.advance(1.1)
        assert desk.sent["generation"] == 1

    def test_an_event_that_fails_is_written_again(self, desk):
        desk.pull()
        desk.create_stream("events/a")
        desk.engine.append(b"1", "events/a", "application/json")
        desk.engine.answer(COMMITTED)
        desk.engine.answer(COMMITTED)
        desk.engine.answer(FAILED)
        assert desk.events("wake/pool") == []
        desk.advance(1.1)
        assert [each["generation"] for each in desk.events("wake/pool")] == [1]

    def test_the_outcome_of_a_delivery_that_fails_is_found_out_again(self, desk):
        desk.webhook()
        desk.create_stream("events/a", 1)
        body, take = desk.courier.under_way.pop()
        take(Receipt(done=True))
        desk.engine.answer(FAILED)
        desk.advance(1.1)
        assert desk.sent["wake_id"] == body["wake_id"]
        desk.answer(done=True)
        assert desk.acked() == tails(body)


class TestSilence:
    def test_an_unknown_outcome_is_said_and_taken_up_once_it_is_known(self, desk):
        desk.pull()
        desk.create_stream("events/a", 1)
        said = desk.ask("claim", "worker-1")
        desk.clock.advance(COMMIT_TIMEOUT_S + 1)
        assert (said.status, said.code) == (503, "commit_unknown")
        assert desk.ask("show", "", 10).status == 503
        desk.engine.log.answer(COMMITTED)
        desk.engine.commit()
        assert desk.claim("worker-2").outcomes[0].holder == "worker-1"

    def test_or_undone(self, desk):
        desk.pull()
        desk.create_stream("events/a", 1)
        desk.ask("claim", "worker-1")
        desk.clock.advance(COMMIT_TIMEOUT_S + 1)
        desk.engine.log.answer(FAILED)
        desk.engine.commit()
        assert desk.claim("worker-2").status == 200

    def test_a_wake_is_delivered_once_it_is_known(self, desk):
        desk.webhook()
        desk.create_stream("events/a")
        desk.engine.append(b"1", "events/a", "application/json")
        desk.engine.answer(COMMITTED)
        desk.clock.advance(COMMIT_TIMEOUT_S + 1)
        assert desk.courier.under_way == []
        desk.engine.log.answer(COMMITTED)
        desk.engine.commit()
        assert desk.sent["generation"] == 1


class TestRestart:
    def test_a_wake_keeps_its_generation_and_its_token(self, desk):
        desk.pull()
        desk.create_stream("events/a", 1)
        wake = desk.claim("worker-1").json
        desk = desk.restart()
        assert desk.claim("worker-2").outcomes[0].holder == "worker-1"
        assert desk.speak("ack", wake, tails(wake), done=True).status == 200
        assert desk.acked() == tails(wake)

    def test_a_delivery_under_way_is_repeated(self, desk):
        desk.webhook()
        desk.create_stream("events/a", 1)
        wake = desk.sent
        desk = desk.restart()
        assert (desk.sent["wake_id"], desk.sent["generation"]) == (wake["wake_id"], 1)
        assert desk.speak("callback", wake, tails(wake), done=True).status == 200

    def test_what_was_delivered_is_not_delivered_again_before_its_lease_ends(self, desk):
        desk.webhook()
        desk.create_stream("events/a", 1)
        desk.answer()
        desk = desk.restart()
        assert desk.courier.under_way == []
        desk.advance(30)
        assert desk.sent["generation"] == 2

    @pytest.mark.spec("subscriptions 7.3-9", "subscriptions 7.3-10")
    def test_a_lease_that_ended_meanwhile_is_over(self, desk):
        desk.pull(lease_ttl_ms=1000)
        desk.create_stream("events/a", 1)
        old = desk.claim("worker-1").json
        desk.service.stop()
        desk.clock.advance(5)
        desk = desk.restart()
        desk.engine.commit()
        assert desk.claim("worker-2").json["generation"] == 2
        assert desk.speak("ack", old).code == "FENCED"

    @pytest.mark.spec("subscriptions 7-1")
    def test_an_append_whose_wake_was_lost_wakes(self, desk):
        desk.webhook()
        desk.create_stream("events/a")
        desk.engine.append(b"1", "events/a", "application/json")
        desk.engine.answer(COMMITTED)
        desk = desk.restart()
        desk.engine.commit()
        assert tails(desk.sent) == {"events/a": desk.tail("events/a")}
        assert desk.sent["streams"][0]["acked_offset"] == "-1"

    def test_links_are_as_they_were(self, desk):
        desk.create_stream("events/old", 1)
        desk.create_stream("events/idle")
        desk.webhook(streams=["manual/a", "manual/none", "events/both"])
        desk.create_stream("manual/a", 1)
        desk.create_stream("events/new", 1)
        desk.create_stream("events/empty")
        before = desk.show()
        assert set(desk.acked()) == {
            "events/old",
            "events/idle",
            "events/new",
            "events/both",
            "manual/a",
            "manual/none",
        }
        desk = desk.restart()
        assert desk.show() == before

    def test_a_stream_deleted_and_created_anew_is_another(self, desk):
        desk.create_stream("events/a", 1, 2, 3)
        desk.webhook()
        desk.engine.delete("events/a")
        desk.engine.create("events/a", "application/json", body=b"1")
        # Neither the removal of the link nor the wake is durable when the server dies.
        desk.engine.answer(COMMITTED)
        desk = desk.restart()
        desk.engine.commit()
        assert desk.acked() == {"events/a": "-1"}
        assert tails(desk.sent) == {"events/a": desk.tail("events/a")}

    def test_an_offer_that_nobody_has_taken_up_is_made_again(self, desk):
        desk.pull()
        desk.create_stream("events/a", 1)
        desk = desk.restart()
        desk.engine.commit()
        assert {each["generation"] for each in desk.events("wake/pool")} == {1}
        assert desk.claim().json["generation"] == 1

    def test_subscriptions_that_were_deleted_stay_so(self, desk):
        desk.webhook()
        desk.create_stream("events/a", 1)
        desk.answer(done=True)
        desk.do("delete")
        desk = desk.restart()
        assert list(desk.engine.shard.documents.items("")) == []


def speak_without_commit(desk, wake, acks, *, done):
    body = {
        "wake_id": wake["wake_id"],
        "generation": wake["generation"],
        "acks": [{"stream": path, "offset": offset} for path, offset in acks.items()],
        "done": done,
    }
    return desk.ask("ack", wake["token"], parse_wake(json.dumps(body).encode(), links_max=10))
