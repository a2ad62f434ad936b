"""The contract every log keeps, whoever keeps it; see `log.interface`."""

import pytest

from holdfast.log.interface import CommitOutcome, CommitResult, Cut, ReplayedBatch
from tests.log.implementations import batches

BODIES = [b"first", b"", b"x" * 10_000, b"\x00" * 100, b"last"]


class TestAppending:
    def test_new_log_is_empty(self, any_log):
        assert any_log.open().replayed == []

    def test_batches_are_committed_one_after_the_other(self, any_log):
        log = any_log.open()
        for batch in batches(*BODIES):
            assert log.append(batch.position, batch.body) == CommitResult(CommitOutcome.COMMITTED)

    def test_answer_comes_once_and_on_the_event_loop(self, any_log):
        log = any_log.open()
        results = []
        log.log.append(1, [b"body"], results.append)
        assert log._wait(results).outcome is CommitOutcome.COMMITTED
        log.append(2, b"next")
        assert len(results) == 1

    def test_stats_are_numbers(self, any_log):
        log = any_log.open()
        log.commit(*batches(*BODIES))
        stats = log.log.stats()
        assert stats.size_bytes >= 0
        assert stats.segments >= 0

    def test_closing_twice_is_harmless(self, any_log):
        log = any_log.open()
        log.commit(*batches(b"body"))
        log.close()
        log.close()


class TestReplay:
    def test_everything_comes_back_in_order(self, keeping_log):
        keeping_log.open().commit(*batches(*BODIES))
        assert keeping_log.reopen().replayed == batches(*BODIES)

    def test_parts_of_a_batch_come_back_as_one_body(self, keeping_log):
        keeping_log.open().append(1, b"a", b"", b"bc")
        assert keeping_log.reopen().replayed == [ReplayedBatch(1, b"abc")]

    @pytest.mark.parametrize("after", range(len(BODIES) + 1))
    def test_only_what_is_past_the_given_position_comes_back(self, keeping_log, after):
        keeping_log.open().commit(*batches(*BODIES))
        assert keeping_log.reopen(after).replayed == batches(*BODIES)[after:]

    def test_appends_go_on_after_a_restart(self, keeping_log):
        expected = []
        for restart in range(5):
            log = keeping_log.reopen()
            assert log.replayed == expected
            added = batches(b"a%d" % restart, b"b%d" % restart, first=len(expected) + 1)
            log.commit(*added)
            expected += added
        assert keeping_log.reopen().replayed == expected

    def test_restarts_without_appends_change_nothing(self, keeping_log):
        keeping_log.open().commit(*batches(*BODIES))
        for _ in range(4):
            assert keeping_log.reopen().replayed == batches(*BODIES)

    def test_restarts_of_an_empty_log_change_nothing(self, keeping_log):
        for _ in range(4):
            assert keeping_log.reopen().replayed == []
        keeping_log.reopen().commit(*batches(b"first"))
        assert keeping_log.reopen().replayed == batches(b"first")


class TestFailure:
    def test_failed_batch_never_comes_back_and_says_why(self, keeping_log):
        log = keeping_log.open()
        log.commit(*batches(b"first"))
        keeping_log.fail_next()
        result = log.append(2, b"failed")
        assert result.outcome is CommitOutcome.FAILED
        assert result.reason
        for _ in range(3):
            assert keeping_log.reopen().replayed == batches(b"first")

    def test_position_of_a_failed_batch_is_free_again(self, keeping_log):
        log = keeping_log.open()
        for attempt in range(3):
            keeping_log.fail_next()
            assert log.outcome(1, b"failed %d" % attempt) is CommitOutcome.FAILED
        log.commit(*batches(b"first", b"second"))
        assert keeping_log.reopen().replayed == batches(b"first", b"second")

    def test_failures_between_commits_leave_no_trace(self, keeping_log):
        log = keeping_log.open()
        expected = batches(*(b"%d" % n for n in range(12)))
        for batch in expected:
            if batch.position % 3 == 0:
                keeping_log.fail_next()
                assert log.outcome(batch.position, b"failed") is CommitOutcome.FAILED
            log.commit(batch)
        assert keeping_log.reopen().replayed == expected


class TestUnknown:
    def test_settling_tells_what_replay_will_give(self, keeping_log):
        log = keeping_log.open()
        log.commit(*batches(b"first"))
        keeping_log.lose_next()
        lost = log.append(2, b"lost")
        assert lost.outcome is CommitOutcome.UNKNOWN
        assert lost.reason
        settled = log.settle()
        assert settled.outcome in {CommitOutcome.COMMITTED, CommitOutcome.FAILED}
        expected = batches(b"first")
        if settled.outcome is CommitOutcome.COMMITTED:
            expected = batches(b"first", b"lost")
        log.commit(ReplayedBatch(len(expected) + 1, b"next"))
        expected.append(ReplayedBatch(len(expected) + 1, b"next"))
        for _ in range(3):
            assert keeping_log.reopen().replayed == expected

    def test_crash_instead_of_settling_gives_one_or_the_other_for_good(self, keeping_log):
        log = keeping_log.open()
        log.commit(*batches(b"first"))
        keeping_log.lose_next()
        assert log.outcome(2, b"lost") is CommitOutcome.UNKNOWN
        found = keeping_log.reopen().replayed
        assert found in (batches(b"first"), batches(b"first", b"lost"))
        for _ in range(3):
            assert keeping_log.reopen().replayed == found


class TestTrim:
    @pytest.mark.parametrize("through", [0, 1, 3, 8])
    def test_everything_past_the_trimmed_position_stays(self, keeping_log, through):
        expected = batches(*(b"%d" % n * 1000 for n in range(9)))
        log = keeping_log.open()
        log.commit(*expected)
        log.log.trim(through)
        log.commit(ReplayedBatch(10, b"after"))
        again = keeping_log.reopen(after=through)
        assert again.replayed == [*expected[through:], ReplayedBatch(10, b"after")]

    def test_appends_go_on_after_trimming_and_restarting(self, keeping_log):
        expected = batches(*(b"%d" % n * 1000 for n in range(9)))
        log = keeping_log.open()
        log.commit(*expected)
        log.log.trim(6)
        again = keeping_log.reopen(after=6)
        again.commit(ReplayedBatch(10, b"next"))
        assert keeping_log.reopen(after=6).replayed == [*expected[6:], ReplayedBatch(10, b"next")]


class TestCut:
    def test_cut_of_an_empty_log_is_empty(self, any_log):
        assert any_log.open().cut() == Cut(0, ())

    def test_cut_tells_the_last_position(self, any_log):
        log = any_log.open()
        for batch in batches(*BODIES):
            log.commit(batch)
            assert log.cut().through == batch.position

    def test_cut_comes_between_the_batches_it_parts(self, any_log):
        log, events, last = any_log.open(), [], 6

        def done(result):
            assert result.outcome is CommitOutcome.COMMITTED
            position = sum(isinstance(event, int) for event in events) + 1
            events.append(position)
            if position < last:
                hand_over(position + 1)

        def hand_over(position):
            log.log.append(position, [b"body"], done)
            log.log.cut(events.append)

        hand_over(1)
        while len(events) < 2 * last:
            log.wait_for_one()
        for at, event in enumerate(events):
            if isinstance(event, Cut):
                before = [each for each in events[:at] if isinstance(each, int)]
                assert before == list(range(1, event.through + 1))

    def test_failed_batch_is_no_part_of_a_cut(self, keeping_log):
        log = keeping_log.open()
        log.commit(*batches(b"first"))
        keeping_log.fail_next()
        assert log.outcome(2, b"failed") is CommitOutcome.FAILED
        assert log.cut().through == 1

    def test_batch_of_unknown_outcome_is_no_part_of_a_cut(self, keeping_log):
        log = keeping_log.open()
        log.commit(*batches(b"first"))
        keeping_log.lose_next()
        assert log.outcome(2, b"lost") is CommitOutcome.UNKNOWN
        cuts = []
        log.log.cut(cuts.append)
        assert log.settle().outcome is CommitOutcome.FAILED
        assert [cut.through for cut in cuts] == [1]

    def test_appends_go_on_after_cuts(self, keeping_log):
        log = keeping_log.open()
        for batch in batches(*BODIES):
            log.cut()
            log.commit(batch)
        assert keeping_log.reopen().replayed == batches(*BODIES)

    def test_what_was_cut_can_be_trimmed(self, keeping_log):
        log = keeping_log.open()
        log.commit(*batches(*BODIES))
        through = log.cut().through
        log.log.trim(through)
        assert log.cut() == Cut(through, ())
        log.commit(ReplayedBatch(through + 1, b"after"))
        again = keeping_log.reopen(after=through)
        assert again.replayed == [ReplayedBatch(through + 1, b"after")]
        assert again.cut().through == through + 1

    def test_position_outlives_a_log_that_was_trimmed_to_nothing(self, keeping_log):
        log = keeping_log.open()
        log.commit(*batches(*BODIES))
        log.log.trim(log.cut().through)
        for _ in range(3):
            log = keeping_log.reopen(after=len(BODIES))
            assert log.replayed == []
            assert log.cut().through == len(BODIES)
        log.commit(ReplayedBatch(len(BODIES) + 1, b"next"))
