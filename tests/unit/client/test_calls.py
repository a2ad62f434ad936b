"""When requests are sent again, and how long that takes, on a clock of our own."""

import asyncio

import pytest

from holdfast import errors
from holdfast.client.calls import NO_RETRY, Retry, may_repeat, pause
from holdfast.client.failures import error_of
from holdfast.errors import BadAnswerError, InvalidRequestError, OutboundError
from holdfast.testing import FakeClock
from tests.thorough import for_each

NETWORK = OutboundError("It broke off.")


def delays(retry, error, *, seed=0):
    clock, found = FakeClock(seed=seed), []
    for failures in range(1, retry.attempts):
        found.append(retry.delay_s(failures, error, clock))
    return found


class TestDelays:
    def test_double_up_to_the_longest_and_are_shortened_by_up_to_a_half(self):
        retry = Retry(attempts=10, first_s=0.1, max_s=3.0)
        for seed in range(50):
            for failures, delay_s in enumerate(delays(retry, NETWORK, seed=seed)):
                full_s = min(3.0, 0.1 * 2**failures)
                assert full_s / 2 <= delay_s <= full_s

    def test_differ_from_client_to_client(self):
        found = {delays(Retry(), NETWORK, seed=seed)[5] for seed in range(50)}
        assert len(found) > 25

    def test_are_the_same_from_the_same_seed(self):
        assert delays(Retry(), NETWORK, seed=3) == delays(Retry(), NETWORK, seed=3)

    def test_end_with_the_attempts(self):
        clock = FakeClock()
        assert Retry(attempts=3).delay_s(2, NETWORK, clock) is not None
        assert Retry(attempts=3).delay_s(3, NETWORK, clock) is None
        assert NO_RETRY.delay_s(1, NETWORK, clock) is None

    def test_do_not_overflow_after_very_many_failures(self):
        retry = Retry(attempts=10**9)
        assert retry.delay_s(10**8, NETWORK, FakeClock()) <= retry.max_s

    @pytest.mark.parametrize("status", [429, 503, 500])
    def test_are_as_long_as_the_server_asks_for(self, status):
        error = error_of(status, {"retry-after": "7"}, b"")
        assert delays(Retry(attempts=4), error) == [7.0, 7.0, 7.0]

    def test_are_longer_than_the_server_asks_for_if_that_is_too_short(self):
        error = error_of(503, {"retry-after": "1"}, b"")
        assert delays(Retry(attempts=3, first_s=10, max_s=10), error)[0] >= 5

    @pytest.mark.parametrize("status", [429, 503])
    def test_that_are_too_long_are_not_waited_for(self, status):
        retry = Retry(retry_after_max_s=60)
        for seconds, waits in [("60", True), ("61", False), ("86400", False)]:
            error = error_of(status, {"retry-after": seconds}, b"")
            assert (retry.delay_s(1, error, FakeClock()) is not None) is waits

    @pytest.mark.parametrize(
        "wrong", [{"attempts": 0}, {"first_s": 0}, {"first_s": -1}, {"first_s": 2, "max_s": 1}]
    )
    def test_that_make_no_sense_are_refused(self, wrong):
        with pytest.raises(InvalidRequestError):
            Retry(**wrong)


# What happened; whether a repeatable request is sent again, and whether a plain append is.
HAPPENED = [
    ("refused connection", OutboundError("x", sent=False), True, True),
    ("broken connection", OutboundError("x", sent=True), True, False),
    ("refused target", errors.OutboundRefusedError("x"), False, False),
    ("bad answer", BadAnswerError("x"), False, False),
    ("400", error_of(400, {}, b""), False, False),
    ("401", error_of(401, {}, b""), False, False),
    ("404", error_of(404, {}, b""), False, False),
    ("408", error_of(408, {}, b""), True, False),
    ("409", error_of(409, {}, b""), False, False),
    ("410", error_of(410, {}, b""), False, False),
    ("413", error_of(413, {}, b""), False, False),
    ("425", error_of(425, {}, b""), True, True),
    ("429", error_of(429, {}, b""), True, True),
    ("500", error_of(500, {}, b""), True, True),
    ("501", error_of(501, {}, b""), False, False),
    ("502", error_of(502, {}, b""), True, False),
    ("503", error_of(503, {}, b""), True, True),
    ("504", error_of(504, {}, b""), True, False),
    ("overloaded", errors.OverloadedError("x"), True, True),
    ("commit failed", errors.CommitFailedError("x"), True, True),
    ("commit unknown", errors.CommitUnknownError("x"), True, False),
    ("commit unknown, told", error_of(503, {}, b'{"code":"commit_unknown"}'), True, False),
    ("webhook failed, told", error_of(502, {}, b'{"code":"outbound_failed"}'), True, False),
    ("damaged data", errors.PackCorruptError("x"), False, False),
    ("a defect without a name", errors.HoldfastError("x"), True, True),
    ("certificate", errors.OutboundError("x", sent=False, passing=False), False, False),
]


@for_each(("error", "repeatable", "plain"), [each[1:] for each in HAPPENED])
def test_what_is_sent_again(error, repeatable, plain):
    assert may_repeat(error, repeatable=True) is repeatable
    assert may_repeat(error, repeatable=False) is plain


class TestPause:
    def test_lasts_as_long_as_the_clock_says(self):
        async def scenario():
            clock = FakeClock()
            waiting = asyncio.create_task(pause(clock, 5.0))
            await asyncio.sleep(0)
            clock.advance(4.9)
            await asyncio.sleep(0)
            assert not waiting.done()
            clock.advance(0.1)
            await waiting

        asyncio.run(scenario())

    def test_given_up_leaves_no_timer_behind(self):
        async def scenario():
            clock = FakeClock()
            waiting = asyncio.create_task(pause(clock, 5.0))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert all(entry.cancelled for entry in clock._heap)
            clock.advance(10)

        asyncio.run(scenario())
