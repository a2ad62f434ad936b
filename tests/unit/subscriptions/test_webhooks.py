"""Webhook subscriptions: deliveries, callbacks, retries, leases."""

import pytest

from tests.unit.engine.driver import COMMITTED
from tests.unit.subscriptions.desk import BASE_URL, Desk, tails


@pytest.fixture
def desk():
    return Desk()


class TestWake:
    @pytest.mark.spec(
        "subscriptions 6.2-15", "subscriptions 7-1", "subscriptions 7.1-1", "subscriptions 7.1-2"
    )
    def test_an_append_to_a_matching_stream_is_delivered(self, desk):
        assert desk.webhook().status == 201
        desk.create_stream("events/a", {"event": 1})
        wake = desk.sent
        assert wake["subscription_id"] == "sub"
        assert wake["generation"] == 1
        assert wake["callback_url"] == f"{BASE_URL}/v1/stream/__ds/subscriptions/sub/callback"
        assert wake["streams"] == [
            {
                "path": "events/a",
                "link_type": "glob",
                "acked_offset": "-1",
                "tail_offset": desk.tail("events/a"),
                "has_pending": True,
            }
        ]

    @pytest.mark.spec("subscriptions 6.2-4")
    def test_what_does_not_match_wakes_nobody(self, desk):
        desk.webhook()
        desk.create_stream("other/a", 1)
        desk.create_stream("events/a/b", 1)
        desk.create_stream("events/empty")
        assert desk.courier.under_way == []
        assert desk.acked() == {}

    def test_nothing_is_sent_before_the_wake_is_durable(self, desk):
        desk.webhook()
        desk.create_stream("events/a")
        desk.engine.append(b"1", "events/a", "application/json")
        desk.clock.run()
        desk.engine.log.answer(COMMITTED)
        desk.clock.run()
        assert desk.courier.under_way == []
        desk.engine.commit()
        assert desk.sent["generation"] == 1

    @pytest.mark.spec("subscriptions 7-2")
    def test_appends_during_a_wake_make_no_second_one(self, desk):
        desk.webhook()
        desk.create_stream("events/a", 1)
        desk.append("events/a")
        desk.create_stream("events/b", 1)
        assert desk.sent["generation"] == 1

    @pytest.mark.spec("subscriptions 6.2-13", "subscriptions 6.2-14")
    def test_streams_that_exist_start_at_their_tail(self, desk):
        desk.create_stream("events/a", 1, 2)
        tail = desk.tail("events/a")
        desk.webhook()
        assert desk.acked() == {"events/a": tail}
        assert desk.courier.under_way == []
        desk.append("events/a")
        assert desk.sent["streams"][0]["acked_offset"] == tail

    def test_one_wake_tells_of_so_many_streams_and_the_next_of_the_others(self):
        desk = Desk(wake_streams_max=2)
        desk.webhook()
        for index in range(5):
            desk.create_stream(f"events/{index}", 1)
        told = [tails(desk.answer(done=True)) for _ in range(3)]
        assert [len(each) for each in told] == [1, 2, 2]
        assert set().union(*told) == {f"events/{index}" for index in range(5)}
        assert desk.courier.under_way == []


class TestDone:
    @pytest.mark.spec("subscriptions 7.1-5")
    def test_done_in_the_answer_acknowledges_what_was_sent(self, desk):
        desk.webhook()
        desk.create_stream("events/a", 1)
        tail = desk.tail("events/a")
        desk.answer(done=True)
        assert desk.acked() == {"events/a": tail}
        assert desk.courier.under_way == []

    @pytest.mark.spec("subscriptions 7.1-6")
    def test_what_came_after_the_snapshot_wakes_again(self, desk):
        desk.webhook()
        desk.create_stream("events/a", 1)
        first = desk.tail("events/a")
        later = desk.append("events/a")
        desk.answer(done=True)
        assert desk.acked() == {"events/a": first}
        assert desk.sent["generation"] == 2
        assert tails(desk.sent) == {"events/a": later}

    def test_a_stream_created_anew_meanwhile_is_not_acknowledged(self, desk):
        desk.webhook()
        desk.create_stream("events/a", 1)
        desk.delete_stream("events/a")
        desk.create_stream("events/a", 1)
        desk.answer(done=True)
        assert desk.acked() == {"events/a": "-1"}
        assert desk.sent["generation"] == 2


class TestCallback:
    @pytest.mark.spec("subscriptions 7.1-8", "subscriptions 7.1-9")
    def test_acknowledges_and_ends_the_wake(self, desk):
        desk.webhook()
        desk.create_stream("events/a", 1)
        wake = desk.answer()
        said = desk.speak("callback", wake, tails(wake), done=True)
        assert (said.status, said.json) == (200, {"ok": True, "next_wake": False})
        assert desk.acked() == tails(wake)
        stale = desk.speak("callback", wake, tails(wake), done=True)
        assert (stale.status, stale.code) == (409, "FENCED")

    @pytest.mark.spec("subscriptions 7.1-8")
    def test_next_wake_is_told(self, desk):
        desk.webhook()
        desk.create_stream("events/a", 1)
        desk.append("events/a")
        wake = desk.answer()
        assert desk.speak("callback", wake, tails(wake), done=True).json["next_wake"]
        assert desk.sent["generation"] == 2

    def test_a_callback_shows_that_the_wake_has_arrived(self, desk):
        """A receiver that works while its answer is still to come is not sent the wake again."""
        desk.webhook()
        desk.create_stream("events/a", 1)
        assert desk.speak("callback", desk.sent).status == 200
        desk.answer(problem="It did not answer in time.")
        assert desk.show()["status"] == "active"
        desk.advance(5)
        assert desk.courier.under_way == []

    @pytest.mark.spec("subscriptions 7.3-7")
    def test_extends_the_lease(self, desk):
        desk.webhook(lease_ttl_ms=1000)
        desk.create_stream("events/a", 1)
        wake = desk.answer()
        for _ in range(5):
            desk.advance(0.9)
            assert desk.speak("callback", wake).status == 200
        desk.advance(1.1)
        assert desk.sent["generation"] == 2
        assert desk.speak("callback", wake).code == "FENCED"

    @pytest.mark.spec("subscriptions 7.1-9", "subscriptions 7.3-4", "subscriptions 7.3-5")
    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"wake_id": "w_other"}, "FENCED"),
            ({"generation": 2}, "FENCED"),
            ({"generation": None}, "FENCED"),
        ],
    )
    def test_another_wake_is_fenced(self, desk, changes, code):
        desk.webhook()
        desk.create_stream("events/a", 1)
        assert desk.speak("callback", desk.sent, **changes).code == code

    @pytest.mark.spec("subscriptions 7.1-7", "subscriptions 7.3-2")
    def test_the_token_is_for_this_subscription_only(self, desk):
        desk.webhook()
        desk.create("other", type="webhook", pattern="none/*")
        desk.create_stream("events/a", 1)
        assert desk.speak("callback", desk.sent, subscription="other").code == "TOKEN_INVALID"
        assert desk.speak("callback", desk.sent | {"callback_token": "x.y"}).status == 401

    @pytest.mark.spec("subscriptions 6.3-6")
    def test_of_a_subscription_created_anew_are_not_for_tokens_of_the_old(self, desk):
        desk.webhook()
        desk.create_stream("events/a", 1)
        old = desk.answer()
        desk.do("delete")
        assert desk.speak("callback", old).code == "SUBSCRIPTION_NOT_FOUND"
        desk.webhook()
        desk.append("events/a")
        assert desk.speak("callback", desk.sent | old).code == "TOKEN_INVALID"

    def test_is_not_for_pull_wake(self, desk):
        desk.pull()
        assert desk.speak("callback", {"wake_id": "w", "generation": 1, "token": "t"}).status == 400


class TestRetries:
    @pytest.mark.spec("subscriptions 6.3-4", "subscriptions 7.1-10")
    def test_failures_are_repeated_after_growing_pauses(self, desk):
        desk.webhook()
        desk.create_stream("events/a", 1)
        pauses = []
        for _ in range(9):
            first = desk.answer(problem="Refused.")
            assert desk.show()["status"] == "failed"
            started = desk.clock.monotonic_s()
            while not desk.courier.under_way:
                desk.advance(0.05)
            pauses.append(desk.clock.monotonic_s() - started)
            assert (desk.sent["wake_id"], desk.sent["generation"]) == (first["wake_id"], 1)
        for pause, wanted in zip(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60], strict=True):
            assert 0.8 * wanted <= pause <= 1.2 * wanted + 0.1
        desk.answer(done=True)
        assert desk.show()["status"] == "active"
        assert desk.show()["next_attempt_at"] is None

    @pytest.mark.spec("subscriptions 7.1-11")
    def test_the_schedule_survives_a_restart(self, desk):
        desk.webhook()
        desk.create_stream("events/a", 1)
        for _ in range(4):
            desk.answer(problem="Refused.")
            desk.advance(10)
        wake = desk.answer(problem="Refused.")
        due = desk.show()["next_attempt_at"]
        desk = desk.restart()
        assert desk.show()["next_attempt_at"] == due
        assert desk.courier.under_way == []
        desk.advance(20)
        assert desk.sent["wake_id"] == wake["wake_id"]

    def test_a_new_wake_does_not_reach_a_failing_receiver_sooner(self, desk):
        desk.webhook(lease_ttl_ms=1000)
        desk.create_stream("events/a", 1)
        for _ in range(5):
            desk.answer(problem="Refused.")
            desk.advance(20)
        desk.answer(problem="Refused.")
        desk.advance(5)
        assert desk.courier.under_way == []
        assert desk.show()["generation"] == 1

    def test_an_overtaken_delivery_changes_nothing(self, desk):
        desk.webhook()
        desk.create_stream("events/a", 1)
        wake = desk.sent
        assert desk.speak("callback", wake, tails(wake), done=True).status == 200
        desk.append("events/a")
        desk.answer(done=True)
        assert desk.acked() == tails(wake)
        assert desk.sent["generation"] == 2


class TestLease:
    @pytest.mark.spec(
        "subscriptions 7-3", "subscriptions 7.3-1", "subscriptions 7.3-6", "subscriptions 7.3-10"
    )
    def test_a_receiver_that_never_calls_back_is_woken_again(self, desk):
        desk.webhook(lease_ttl_ms=1000)
        desk.create_stream("events/a", 1)
        first = desk.answer()
        desk.advance(0.9)
        assert desk.courier.under_way == []
        desk.advance(0.2)
        second = desk.sent
        assert second["generation"] == 2
        assert second["wake_id"] != first["wake_id"]

    @pytest.mark.spec("subscriptions 7.3-6")
    def test_a_delivery_that_takes_long_is_not_overtaken_by_its_lease(self, desk):
        desk.webhook(lease_ttl_ms=1000)
        desk.create_stream("events/a", 1)
        desk.advance(5)
        assert desk.sent["generation"] == 1
