"""Webhook subscriptions: deliveries, callbacks, retries, leases."""

import pytest

from tests.unit.engine.driver import COMMITTED
from tests.unit.subscriptions.harness import BASE_URL, Harness, tails


@pytest.fixture
def harness():
    return Harness()


class TestWake:
    @pytest.mark.spec(
        "subscriptions 6.2-15", "subscriptions 7-1", "subscriptions 7.1-1", "subscriptions 7.1-2"
    )
    def test_an_append_to_a_matching_stream_is_delivered(self, harness):
        assert harness.webhook().status == 201
        harness.create_stream("events/a", {"event": 1})
        wake = harness.sent
        assert wake["subscription_id"] == "sub"
        assert wake["generation"] == 1
        assert wake["callback_url"] == f"{BASE_URL}/v1/stream/__ds/subscriptions/sub/callback"
        assert wake["streams"] == [
            {
                "path": "events/a",
                "link_type": "glob",
                "acked_offset": "-1",
                "tail_offset": harness.tail("events/a"),
                "has_pending": True,
            }
        ]

    @pytest.mark.spec("subscriptions 6.2-4")
    def test_what_does_not_match_wakes_nobody(self, harness):
        harness.webhook()
        harness.create_stream("other/a", 1)
        harness.create_stream("events/a/b", 1)
        harness.create_stream("events/empty")
        assert harness.courier.under_way == []
        assert harness.acked() == {}

    def test_nothing_is_sent_before_the_wake_is_durable(self, harness):
        harness.webhook()
        harness.create_stream("events/a")
        harness.engine.append(b"1", "events/a", "application/json")
        harness.clock.run()
        harness.engine.log.answer(COMMITTED)
        harness.clock.run()
        assert harness.courier.under_way == []
        harness.engine.commit()
        assert harness.sent["generation"] == 1

    @pytest.mark.spec("subscriptions 7-2")
    def test_appends_during_a_wake_make_no_second_one(self, harness):
        harness.webhook()
        harness.create_stream("events/a", 1)
        harness.append("events/a")
        harness.create_stream("events/b", 1)
        assert harness.sent["generation"] == 1

    @pytest.mark.spec("subscriptions 6.2-13", "subscriptions 6.2-14")
    def test_streams_that_exist_start_at_their_tail(self, harness):
        harness.create_stream("events/a", 1, 2)
        tail = harness.tail("events/a")
        harness.webhook()
        assert harness.acked() == {"events/a": tail}
        assert harness.courier.under_way == []
        harness.append("events/a")
        assert harness.sent["streams"][0]["acked_offset"] == tail

    def test_one_wake_tells_of_so_many_streams_and_the_next_of_the_others(self):
        harness = Harness(wake_streams_max=2)
        harness.webhook()
        for index in range(5):
            harness.create_stream(f"events/{index}", 1)
        told = [tails(harness.answer(done=True)) for _ in range(3)]
        assert [len(each) for each in told] == [1, 2, 2]
        assert set().union(*told) == {f"events/{index}" for index in range(5)}
        assert harness.courier.under_way == []


class TestDone:
    @pytest.mark.spec("subscriptions 7.1-5")
    def test_done_in_the_answer_acknowledges_what_was_sent(self, harness):
        harness.webhook()
        harness.create_stream("events/a", 1)
        tail = harness.tail("events/a")
        harness.answer(done=True)
        assert harness.acked() == {"events/a": tail}
        assert harness.courier.under_way == []

    @pytest.mark.spec("subscriptions 7.1-6")
    def test_what_came_after_the_snapshot_wakes_again(self, harness):
        harness.webhook()
        harness.create_stream("events/a", 1)
        first = harness.tail("events/a")
        later = harness.append("events/a")
        harness.answer(done=True)
        assert harness.acked() == {"events/a": first}
        assert harness.sent["generation"] == 2
        assert tails(harness.sent) == {"events/a": later}

    def test_a_stream_created_anew_meanwhile_is_not_acknowledged(self, harness):
        harness.webhook()
        harness.create_stream("events/a", 1)
        harness.delete_stream("events/a")
        harness.create_stream("events/a", 1)
        harness.answer(done=True)
        assert harness.acked() == {"events/a": "-1"}
        assert harness.sent["generation"] == 2


class TestCallback:
    @pytest.mark.spec("subscriptions 7.1-8", "subscriptions 7.1-9")
    def test_acknowledges_and_ends_the_wake(self, harness):
        harness.webhook()
        harness.create_stream("events/a", 1)
        wake = harness.answer()
        said = harness.speak("callback", wake, tails(wake), done=True)
        assert (said.status, said.json) == (200, {"ok": True, "next_wake": False})
        assert harness.acked() == tails(wake)
        stale = harness.speak("callback", wake, tails(wake), done=True)
        assert (stale.status, stale.code) == (409, "FENCED")

    @pytest.mark.spec("subscriptions 7.1-8")
    def test_next_wake_is_told(self, harness):
        harness.webhook()
        harness.create_stream("events/a", 1)
        harness.append("events/a")
        wake = harness.answer()
        assert harness.speak("callback", wake, tails(wake), done=True).json["next_wake"]
        assert harness.sent["generation"] == 2

    def test_a_callback_shows_that_the_wake_has_arrived(self, harness):
        """A receiver that works while its answer is still to come is not sent the wake again."""
        harness.webhook()
        harness.create_stream("events/a", 1)
        assert harness.speak("callback", harness.sent).status == 200
        harness.answer(problem="It did not answer in time.")
        assert harness.show()["status"] == "active"
        harness.advance(5)
        assert harness.courier.under_way == []

    @pytest.mark.spec("subscriptions 7.3-7")
    def test_extends_the_lease(self, harness):
        harness.webhook(lease_ttl_ms=1000)
        harness.create_stream("events/a", 1)
        wake = harness.answer()
        for _ in range(5):
            harness.advance(0.9)
            assert harness.speak("callback", wake).status == 200
        harness.advance(1.1)
        assert harness.sent["generation"] == 2
        assert harness.speak("callback", wake).code == "FENCED"

    @pytest.mark.spec("subscriptions 7.1-9", "subscriptions 7.3-4", "subscriptions 7.3-5")
    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"wake_id": "w_other"}, "FENCED"),
            ({"generation": 2}, "FENCED"),
            ({"generation": None}, "FENCED"),
        ],
    )
    def test_another_wake_is_fenced(self, harness, changes, code):
        harness.webhook()
        harness.create_stream("events/a", 1)
        assert harness.speak("callback", harness.sent, **changes).code == code

    @pytest.mark.spec("subscriptions 7.1-7", "subscriptions 7.3-2")
    def test_the_token_is_for_this_subscription_only(self, harness):
        harness.webhook()
        harness.create("other", type="webhook", pattern="none/*")
        harness.create_stream("events/a", 1)
        assert harness.speak("callback", harness.sent, subscription="other").code == "TOKEN_INVALID"
        assert harness.speak("callback", harness.sent | {"callback_token": "x.y"}).status == 401

    @pytest.mark.spec("subscriptions 6.3-6")
    def test_of_a_subscription_created_anew_are_not_for_tokens_of_the_old(self, harness):
        harness.webhook()
        harness.create_stream("events/a", 1)
        old = harness.answer()
        harness.do("delete")
        assert harness.speak("callback", old).code == "SUBSCRIPTION_NOT_FOUND"
        harness.webhook()
        harness.append("events/a")
        assert harness.speak("callback", harness.sent | old).code == "TOKEN_INVALID"

    def test_is_not_for_pull_wake(self, harness):
        harness.pull()
        assert (
            harness.speak("callback", {"wake_id": "w", "generation": 1, "token": "t"}).status == 400
        )


class TestRetries:
    @pytest.mark.spec("subscriptions 6.3-4", "subscriptions 7.1-10")
    def test_failures_are_repeated_after_growing_pauses(self, harness):
        harness.webhook()
        harness.create_stream("events/a", 1)
        pauses = []
        for _ in range(9):
            first = harness.answer(problem="Refused.")
            assert harness.show()["status"] == "failed"
            started = harness.clock.monotonic_s()
            while not harness.courier.under_way:
                harness.advance(0.05)
            pauses.append(harness.clock.monotonic_s() - started)
            assert (harness.sent["wake_id"], harness.sent["generation"]) == (first["wake_id"], 1)
        for pause, wanted in zip(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60], strict=True):
            assert 0.8 * wanted <= pause <= 1.2 * wanted + 0.1
        harness.answer(done=True)
        assert harness.show()["status"] == "active"
        assert harness.show()["next_attempt_at"] is None

    @pytest.mark.spec("subscriptions 7.1-11")
    def test_the_schedule_survives_a_restart(self, harness):
        harness.webhook()
        harness.create_stream("events/a", 1)
        for _ in range(4):
            harness.answer(problem="Refused.")
            harness.advance(10)
        wake = harness.answer(problem="Refused.")
        due = harness.show()["next_attempt_at"]
        harness = harness.restart()
        assert harness.show()["next_attempt_at"] == due
        assert harness.courier.under_way == []
        harness.advance(20)
        assert harness.sent["wake_id"] == wake["wake_id"]

    def test_a_new_wake_does_not_reach_a_failing_receiver_sooner(self, harness):
        harness.webhook(lease_ttl_ms=1000)
        harness.create_stream("events/a", 1)
        for _ in range(5):
            harness.answer(problem="Refused.")
            harness.advance(20)
        harness.answer(problem="Refused.")
        harness.advance(5)
        assert harness.courier.under_way == []
        assert harness.show()["generation"] == 1

    def test_an_overtaken_delivery_changes_nothing(self, harness):
        harness.webhook()
        harness.create_stream("events/a", 1)
        wake = harness.sent
        assert harness.speak("callback", wake, tails(wake), done=True).status == 200
        harness.append("events/a")
        harness.answer(done=True)
        assert harness.acked() == tails(wake)
        assert harness.sent["generation"] == 2


class TestLease:
    @pytest.mark.spec(
        "subscriptions 7-3", "subscriptions 7.3-1", "subscriptions 7.3-6", "subscriptions 7.3-10"
    )
    def test_a_receiver_that_never_calls_back_is_woken_again(self, harness):
        harness.webhook(lease_ttl_ms=1000)
        harness.create_stream("events/a", 1)
        first = harness.answer()
        harness.advance(0.9)
        assert harness.courier.under_way == []
        harness.advance(0.2)
        second = harness.sent
        assert second["generation"] == 2
        assert second["wake_id"] != first["wake_id"]

    @pytest.mark.spec("subscriptions 7.3-6")
    def test_a_delivery_that_takes_long_is_not_overtaken_by_its_lease(self, harness):
        harness.webhook(lease_ttl_ms=1000)
        harness.create_stream("events/a", 1)
        harness.advance(5)
        assert harness.sent["generation"] == 1
