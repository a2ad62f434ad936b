"""The journal after many trims: the same batches, and nothing is left of those that are gone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine import journal
from holdfast.engine.journal import Journal, JournalBatch
from holdfast.format.records import Kind, Record

KEPT = 8


@pytest.fixture(autouse=True, scope="module")
def few():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "KEPT_ENTRIES", KEPT)
        yield


def batch(position, entries=1):
    records = [Record(Kind.APPEND, 7, 100, b"ab")] * entries
    return JournalBatch(position, records, [2] * entries, {})


class Model:
    """The same with a list of positions and sizes."""

    def __init__(self):
        self.batches = []
        self.earliest = self.last = self.flushed = 0

    def add(self, entries):
        self.last += 1
        self.batches.append((self.last, entries))

    def trim(self, *, keeps_unflushed):
        while sum(entries for _, entries in self.batches) > KEPT:
            position, _ = self.batches[0]
            if keeps_unflushed and position > self.flushed:
                return
            self.batches.pop(0)
            self.earliest = position


@pytest.mark.parametrize("keeps_unflushed", [False, True], ids=["memory", "storage"])
@given(st.lists(st.integers(0, 12), max_size=60), st.randoms(use_true_random=False))
def test_any_history(keeps_unflushed, sizes, random):
    """A size of 0 stands for a flush of some of it."""
    kept, model = Journal(keeps_unflushed=keeps_unflushed), Model()
    for size in sizes:
        if size:
            model.add(size)
            kept.add(batch(model.last, size))
        else:
            model.flushed = random.randint(model.flushed, model.last)
            kept.flushed(model.flushed)
        model.trim(keeps_unflushed=keeps_unflushed)
        assert (kept.earliest, kept.last) == (model.earliest, model.last)
        for after in range(model.earliest, model.last + 1):
            found = [(each.position, len(each.streams)) for each in kept.after(after)]
            assert found == [each for each in model.batches if each[0] > after]


def test_what_is_gone_takes_no_room():
    kept = Journal(keeps_unflushed=False)
    for position in range(1, 1000):
        kept.add(batch(position))
        assert len(kept._batches) <= 2 * KEPT + 2
        gone = [each for each in kept._batches if each.position <= kept.earliest]
        assert not any(each.streams for each in gone)
    assert [each.position for each in kept.after(kept.earliest)] == list(range(992, 1000))


def test_batches_once_taken_stay_whatever_is_trimmed_then():
    kept = Journal(keeps_unflushed=False)
    for position in range(1, KEPT + 1):
        kept.add(batch(position))
    taken = list(kept.after(0))
    for position in range(KEPT + 1, 100):
        kept.add(batch(position))
    assert [each.position for each in taken] == list(range(1, KEPT + 1))
    assert all(each.streams for each in taken)
