"""A cold read that finds packs gone starts again, and nothing of the first attempt gets into it."""

import gc

import pytest

from holdfast.storage.cold import ColdBytes, ColdRequest
from holdfast.storage.pending import run
from tests.unit.storage.rig import BINARY


class LateRanges:
    """Holds reads back until the test answers them, in whatever order."""

    def __init__(self, store):
        self._store = store
        self.asked = []

    def read(self, name, at, size, done):
        self.asked.append((name, at, size, done))

    def answer(self, index):
        name, at, size, done = self.asked.pop(index)
        try:
            found = self._store.read(name, at, size)
        except Exception as error:  # noqa: BLE001 (handed on as it is)
            found = error
        done(found)


@pytest.fixture
def merged(rig):
    """A stream in two packs whose extents were looked up, before both were merged into one."""
    number = rig.log.create("bucket/s", b"first,")
    rig.flush()
    rig.log.append(number, b"second")
    rig.flush()
    rig.start(merge_packs=2)
    rig.cold.blocks._ranges = ranges = LateRanges(rig.memory)
    answers = []
    run(rig.cold.read(ColdRequest(number, BINARY, 0, 12, 100)), answers.append)
    assert len(ranges.asked) == 2
    old = [row.name for row in rig.packs]
    assert rig.merge()
    return rig, ranges, answers, old


@pytest.mark.parametrize("gone", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize("order", [(0, 0, 0), (1, 0, 0), (0, -1, 0), (1, -1, 0)])
def test_parts_of_the_first_attempt_are_not_taken_for_those_of_the_second(merged, gone, order):
    rig, ranges, answers, old = merged
    for each in gone:
        rig.memory.remove(old[each])
    for index in order:
        if ranges.asked:
            ranges.answer(min(index, len(ranges.asked) - 1))
    assert not ranges.asked
    assert answers == [ColdBytes(12, b"first,second")]


@pytest.fixture
def no_collector():
    """Nothing is collected before the test does it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_what_a_first_attempt_holds_is_freed_without_the_collector(merged, no_collector):
    rig, ranges, answers, old = merged
    rig.memory.remove(old[1])
    gc.collect()
    while ranges.asked:
        ranges.answer(0)
    assert gc.collect() == 0
    assert answers == [ColdBytes(12, b"first,second")]


def test_so_is_what_a_first_look_at_message_ends_holds(rig, no_collector):
    number = rig.log.create("bucket/s", b"first,")
    rig.flush()
    rig.log.append(number, b"second")
    rig.flush()
    rig.start(merge_packs=2)
    rig.cold.blocks._ranges = ranges = LateRanges(rig.memory)
    answers = []
    run(rig.cold.message_ends(number, 0, 12), answers.append)
    old = [row.name for row in rig.packs]
    assert rig.merge()
    for name in old:
        rig.memory.remove(name)
    gc.collect()
    while ranges.asked:
        ranges.answer(0)
    assert gc.collect() == 0
    assert answers == [[6, 12]]
