"""Writers that come faster than the flush: they are slowed down, and only then refused."""

from random import Random

import pytest

from holdfast.errors import OverloadedError
from tests.unit.engine.driver import COMMIT_TIMEOUT_S, COMMITTED, NAME
from tests.unit.engine.tiered import Tiered

SOFT, HARD = 100_000, 200_000
BODY = bytes(844)
# With what a record takes up besides.
COST_BYTES = 1000
FLUSH_BYTES_PER_S = 400_000
COMMIT_S = 0.005
SECONDS = 10


class PacedFlushes(Tiered):
    """Flushes take their time, one more and another less; so do commits."""

    def __init__(self, path, seed=1):
        super().__init__(path, soft_bytes=SOFT, hard_bytes=HARD)
        self._random = Random(seed)
        self.worker.submit = self._flush_later
        self.refused = []
        self.highest = 0
        self.committed(self.create())

    def _flush_later(self, command, done):
        self.worker.asked.append((command, done))
        seconds = self.tier._flushing_cost / FLUSH_BYTES_PER_S
        self.clock.call_later(seconds * self._random.uniform(0.4, 1.6), self.worker.work)

    def send(self):
        ask = self.append(BODY)
        if ask.answered and isinstance(ask.outcome, OverloadedError):
            self.refused.append(self.held_bytes)
        return ask

    def step(self):
        """One commit, if there is something to commit and it may go."""
        self.clock.advance(COMMIT_S)
        if self.log.under_way is not None:
            self.answer(COMMITTED)
        self.highest = max(self.highest, self.tier.cost_bytes)

    @property
    def held_bytes(self):
        return self.tier.cost_bytes + self.shard.commits.pending_bytes

    @property
    def delayed_s(self):
        return self.shard.commits.delayed_s


@pytest.fixture
def paced(tmp_path):
    driver = PacedFlushes(tmp_path)
    yield driver
    driver.close()


def run_closed(driver, rate, writers=20):
    """Writers that send the next append once the last one is answered and it is time."""
    asks, due_s = [None] * writers, [driver.clock.monotonic_s()] * writers
    gap_s = writers * COST_BYTES / (rate * FLUSH_BYTES_PER_S)
    ends_s, appends = driver.clock.monotonic_s() + SECONDS, 0
    while (now_s := driver.clock.monotonic_s()) < ends_s:
        for at in range(writers):
            if due_s[at] <= now_s and (asks[at] is None or asks[at].answered):
                asks[at] = driver.send()
                due_s[at] += gap_s
                appends += 1
        driver.step()
    return appends * COST_BYTES / SECONDS / FLUSH_BYTES_PER_S


def run_open(driver, rate):
    """Appends that come whatever becomes of those before them."""
    for _ in range(int(SECONDS / COMMIT_S)):
        for _ in range(round(rate * FLUSH_BYTES_PER_S * COMMIT_S / COST_BYTES)):
            driver.send()
        driver.step()


def test_load_that_the_flush_can_take_is_not_refused(paced):
    assert run_closed(paced, 0.9) > 0.85
    assert paced.refused == []


def test_writers_that_wait_for_answers_come_at_the_pace_of_the_flush(paced):
    assert 0.8 < run_closed(paced, 5.0) < 1.2
    assert paced.refused == []
    assert paced.highest <= HARD
    assert paced.delayed_s > 1


def test_appends_that_come_anyway_are_refused_at_the_hard_limit(paced):
    run_open(paced, 2.0)
    assert len(paced.refused) > 100
    assert min(paced.refused) > HARD - COST_BYTES
    # Pending appends are counted without what their records take up besides.
    assert paced.highest <= 1.05 * HARD
    assert paced.delayed_s > 1


def test_below_the_mark_nothing_waits(paced):
    run_closed(paced, 0.3)
    assert paced.highest <= (SOFT + HARD) / 2
    assert paced.delayed_s == 0


def test_an_outage_does_not_slow_down_the_flushes_after_it(paced):
    paced.worker.work = paced.worker.fail
    while not paced.tier.flushing:
        paced.send()
        paced.step()
    paced.clock.advance(600)
    del paced.worker.work
    paced.clock.advance(20)
    assert not paced.tier.flushing
    # The next flush begins at the soft limit, and batches wait from the mark on.
    while not paced.delayed_s:
        for _ in range(10):
            paced.send()
        paced.step()
    assert paced.delayed_s < 0.05


class TestWaiting:
    @pytest.fixture
    def waiting(self, paced):
        """A batch that waits, while the flush takes for ever."""
        paced.worker.submit = lambda *asked: paced.worker.asked.append(asked)
        while paced.shard.commits._pause is None:
            paced.ask = paced.send()
            paced.step()
        assert not paced.ask.answered
        return paced

    def test_it_takes_a_second_at_most_and_reads_take_no_notice(self, waiting):
        assert len(waiting.read()) == waiting.shard.find(NAME).tail
        waiting.clock.advance(1)
        assert waiting.log.under_way is not None
        assert 0 < waiting.delayed_s <= 1

    def test_large_batch_waits_for_room_for_as_much_again(self, waiting):
        for _ in range(20):
            waiting.append(BODY)
        room_bytes = HARD - waiting.tier.cost_bytes
        while 2 * waiting.shard.commits.pending_bytes <= room_bytes:
            waiting.append(BODY)
        waiting.clock.advance(0.9)
        assert waiting.log.under_way is None
        waiting.clock.advance(0.1)
        assert waiting.log.under_way is not None

    def test_end_of_the_flush_ends_it(self, waiting):
        waiting.finish_flush()
        assert waiting.log.under_way is not None
        waiting.answer(COMMITTED)
        assert waiting.ask.answered

    def test_who_waits_for_an_idle_moment_does_not_end_it(self, waiting):
        idle = []
        waiting.shard.commits.when_idle(lambda: idle.append(True))
        assert waiting.log.under_way is None
        # Under load there may be no such moment for a long time, which must not be unpaced.
        while not waiting.ask.answered:
            waiting.step()
        assert idle == [True]
        assert waiting.delayed_s > 0

    def test_shutdown_ends_it_for_good(self, waiting):
        waiting.shard.commits.stop_pausing()
        for _ in range(3):
            waiting.step()
            assert waiting.ask.answered
            waiting.ask = waiting.send()

    def test_so_does_the_end_of_the_shard(self, waiting):
        waiting.shard.stop()
        waiting.commit()
        assert waiting.ask.answered

    def test_time_limit_counts_from_when_the_log_gets_it(self, waiting):
        while waiting.log.under_way is None:
            waiting.clock.advance(COMMIT_S)
        waiting.clock.advance(COMMIT_TIMEOUT_S - 0.1)
        assert not waiting.ask.answered
        waiting.clock.advance(0.2)
        assert waiting.ask.answered
