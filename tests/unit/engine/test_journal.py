"""The journal: what each batch did to which stream, as far back as it is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine import journal
from holdfast.engine.journal import Journal, JournalBatch, StreamChange
from holdfast.format.records import Kind, Record
from tests.unit.engine.driver import NAME, Driver
from tests.unit.engine.tiered import Tiered


def batch(position, entries=1):
    records = [Record(Kind.APPEND, 7, 100, b"ab")] * entries
    return JournalBatch(position, records, [2] * entries, {})


def positions(kept, after=None):
    return [each.position for each in kept.after(kept.earliest if after is None else after)]


class TestChanges:
    @pytest.fixture
    def driver(self):
        return Driver()

    def changes(self, driver, after=0):
        found = driver.shard.state.journal.after(after)
        return [change for each in found for change in each.changes()]

    def test_of_a_stream_from_its_birth_to_its_end(self, driver):
        driver.create(body=b"123")
        driver.commit()
        number, start_ms = driver.shard.find(NAME).number, driver.clock.now_ms()
        driver.clock.advance(1)
        driver.append(b"4567")
        driver.append(b"89")
        driver.delete()
        driver.commit()
        later_ms = start_ms + 1000
        assert self.changes(driver) == [
            StreamChange(1, number, 0, 3, Kind.CREATE, start_ms, NAME),
            StreamChange(2, number, 3, 4, Kind.APPEND, later_ms, ""),
            StreamChange(2, number, 7, 2, Kind.APPEND, later_ms, ""),
            StreamChange(2, number, 9, 0, Kind.DELETE, later_ms, NAME),
        ]
        assert self.changes(driver, 1) == self.changes(driver)[1:]
        assert self.changes(driver, 2) == []

    def test_fork_gains_only_what_is_its_own(self, driver):
        driver.create(body=b"0123456789")
        driver.fork("b/fork", offset=4, body=b"ab")
        driver.append(b"c", name="b/fork")
        driver.commit()
        _, forked, appended = self.changes(driver)
        assert (forked.offset, forked.length, forked.name) == (4, 2, "b/fork")
        assert (appended.offset, appended.length) == (6, 1)

    def test_what_adds_and_ends_nothing_is_no_change(self, driver):
        driver.create(body=b"123", ttl_s=60)
        driver.create_bucket("c")
        driver.documents(a=b"1")
        driver.commit()
        driver.publish(3)
        driver.commit()
        driver.shard.lifetimes.renew(driver.shard.find(NAME))
        assert [change.kind for change in self.changes(driver)] == [Kind.CREATE]
        assert driver.shard.state.journal.last == 2

    def test_expiry_is_an_end(self, driver):
        driver.create(ttl_s=5)
        driver.commit()
        driver.clock.advance(7)
        driver.commit()
        ended = self.changes(driver)[-1]
        assert (ended.kind, ended.name, ended.length) == (Kind.EXPIRE, NAME, 0)

    def test_replay_gives_the_same(self, driver):
        driver.create(body=b"123")
        driver.fork("b/fork", body=b"x")
        driver.commit()
        driver.append(b"4", name="b/fork")
        driver.publish(3)
        driver.delete()
        driver.commit()
        again = driver.restart()
        assert self.changes(again) == self.changes(driver)
        assert again.shard.state.journal.last == driver.shard.state.journal.last


class TestKeeping:
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch):
        monkeypatch.setattr(journal, "KEPT_ENTRIES", 5)

    def test_without_storage_the_number_of_entries_decides(self):
        kept = Journal(keeps_unflushed=False)
        for position in range(1, 10):
            kept.add(batch(position))
        assert (kept.earliest, kept.last) == (4, 9)
        assert positions(kept) == [5, 6, 7, 8, 9]

    def test_what_is_not_in_packs_stays_whatever_it_takes(self):
        kept = Journal(keeps_unflushed=True)
        for position in range(1, 10):
            kept.add(batch(position))
        assert (kept.earliest, positions(kept)) == (0, list(range(1, 10)))
        kept.flushed(3)
        assert (kept.earliest, positions(kept)) == (3, list(range(4, 10)))
        kept.flushed(9)
        assert (kept.earliest, positions(kept)) == (4, [5, 6, 7, 8, 9])

    def test_batches_go_as_a_whole(self):
        kept = Journal(keeps_unflushed=False)
        kept.add(batch(1, 4))
        kept.add(batch(2, 1))
        assert positions(kept) == [1, 2]
        kept.add(batch(3, 2))
        assert (kept.earliest, positions(kept)) == (1, [2, 3])

    def test_batch_that_is_larger_than_all_that_is_kept(self):
        kept = Journal(keeps_unflushed=False)
        kept.add(batch(1, 100))
        assert (kept.earliest, kept.last, positions(kept)) == (1, 1, [])

    def test_it_starts_behind_what_the_catalog_has(self):
        kept = Journal(keeps_unflushed=True)
        kept.start_after(40)
        assert (kept.earliest, kept.last, positions(kept)) == (40, 40, [])
        kept.add(batch(41))
        assert positions(kept) == [41]
        assert positions(kept, 41) == []

    def test_any_position_in_between(self):
        kept = Journal(keeps_unflushed=False)
        for position in range(1, 200):
            kept.add(batch(position))
            for after in range(kept.earliest, kept.last + 1):
                assert positions(kept, after) == list(range(after + 1, position + 1))

    def test_of_a_shard_with_storage(self, tmp_path):
        driver = Tiered(tmp_path)
        driver.create()
        driver.commit()
        for _ in range(9):
            driver.append(b"x")
            driver.commit()
        kept = driver.state.journal
        assert (kept.earliest, kept.last) == (0, 10)
        driver.flush()
        assert (kept.earliest, kept.last) == (5, 10)
        again = driver.restart()
        assert (again.state.journal.earliest, again.state.journal.last) == (10, 10)
        again.close()


KEPT = 8


@pytest.fixture(autouse=True, scope="module")
def few():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "KEPT_ENTRIES", KEPT)
        yield


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
