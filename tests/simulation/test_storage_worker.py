"""The storage process of simulations: the same work, in a fake clock's time."""

import pytest

from holdfast import failpoints
from holdfast.errors import HoldfastError, StoreError
from holdfast.storage.commands import CollectGarbage, FlushLog, SwapPacks
from tests.simulation.storage_worker import SimWorker, WorkerKilledError
from tests.unit.storage.rig import Log, Rig


class Trap:
    """Kills the storage process at failpoints, and counts them."""

    def __init__(self):
        self.deadly = set()
        self.passed = []

    def __call__(self, name):
        self.passed.append(name)
        if name in self.deadly:
            raise WorkerKilledError(name)


@pytest.fixture
def trap():
    return Trap()


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path)
    yield rig
    rig.close()


@pytest.fixture
def worker(rig, trap):
    worker = SimWorker(
        rig.clock,
        rig.writer.path,
        rig.store,
        merge_packs=2,
        garbage_grace_s=1000,
        collect_s=5,
        read_file=rig.log.files.__getitem__,
        held_snapshots=rig.held.intersection,
        on_failpoint=trap,
    )
    worker.start()
    yield worker
    worker.end()


@pytest.fixture
def flush(rig, worker):
    """Ask for a flush of something new; the list that gets its answer."""

    def ask():
        rig.log.create(f"bucket/{rig.log.position}", b"bytes")
        rig.log.seal()
        answers = []
        worker.submit(FlushLog(list(rig.log.segments)), answers.append)
        return answers

    return ask


def test_commands_take_time_and_are_answered_in_order(rig, worker, flush):
    first, second = flush(), flush()
    assert first == second == []
    rig.clock.advance(0.5)
    assert (first, second) == ([1], [2])
    assert rig.catalog.flushed == 2
    assert worker.counters.flushes == 2


def test_packs_are_merged_in_between(rig, worker, flush):
    for _ in range(3):
        flush()
        rig.clock.advance(1)
    assert len(rig.packs) == 1
    assert worker.counters.merges == 2
    assert worker.is_idle
    rig.verify()


def test_failures_are_answered(rig, flush):
    rig.store.fail("put")
    answers = flush()
    rig.clock.advance(0.5)
    (answer,) = answers
    assert isinstance(answer, StoreError)


def test_segment_that_cannot_be_read_is_a_failure(rig, worker):
    answers = []
    log = Log()
    log.create("bucket/s")

    def unreadable(_):
        raise OSError(5, "Input/output error")

    worker._worker._flush._read_file = unreadable
    worker.submit(FlushLog([log.seal()]), answers.append)
    rig.clock.advance(0.5)
    assert [type(answer) for answer in answers] == [HoldfastError]


def test_swap_is_verified_and_answered_beside_others(rig, worker, flush):
    flush()
    swaps, flushes = [], flush()
    worker.submit(SwapPacks(["packs/none"], ["packs/none"]), swaps.append)
    rig.clock.advance(1)
    assert flushes == [2]
    assert len(swaps) == 1


@pytest.mark.parametrize("name", ["flush.started", "flush.uploaded", "flush.committed"])
def test_killed_process_answers_with_an_error_and_comes_back(rig, worker, trap, flush, name):
    trap.deadly.add(name)
    answers = flush()
    rig.clock.advance(0.05)
    assert worker.restarts == 1
    assert isinstance(answers[0], StoreError)
    refused = []
    worker.submit(CollectGarbage(), refused.append)
    assert isinstance(refused[0], StoreError)
    trap.deadly.clear()
    rig.clock.advance(1)
    again = flush()
    rig.clock.advance(1)
    assert again == [2]
    rig.verify()


def test_work_done_may_be_answered_with_an_error(rig, worker, trap, flush):
    trap.deadly.add("flush.committed")
    answers = flush()
    rig.clock.advance(0.05)
    assert isinstance(answers[0], StoreError)
    assert rig.catalog.flushed == 1


def test_other_exceptions_pass_through(rig, worker, trap, flush):
    class PowerFailure(BaseException):
        pass

    def fail(name):
        raise PowerFailure(name)

    worker._on_failpoint = fail
    flush()
    with pytest.raises(PowerFailure):
        rig.clock.advance(1)
    assert failpoints.hook is None


def test_nothing_is_answered_after_the_end(rig, worker, flush):
    answers = flush()
    worker.end()
    rig.clock.advance(10)
    assert answers == []
    assert rig.catalog.flushed == 0


def test_garbage_is_collected_now_and_then(rig, worker):
    rig.memory.put("packs/orphan", b"")
    rig.clock.advance(999)
    assert "packs/orphan" in rig.memory.objects
    rig.clock.advance(10)
    assert rig.memory.objects == {}
