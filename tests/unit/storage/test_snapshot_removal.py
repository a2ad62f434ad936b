"""How many snapshots one collection removes, so that a flush does not wait for long."""

import pytest

from holdfast.errors import StoreError
from holdfast.storage import garbage
from holdfast.storage.garbage import remove_dropped
from tests.unit.storage.rig import DAY_S, snapshot_of

MAX = 3


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(garbage, "REMOVED_MAX", MAX)


@pytest.fixture
def names(rig):
    """Seven snapshots that an eighth has replaced, one after the other."""
    number = rig.log.create("b/s", bytes(10))
    names = [f"snapshots/{shelf:02x}/{9 - shelf}" for shelf in range(8)]
    for offset, name in enumerate(names):
        rig.clock.advance(1)
        rig.log.now_ms = rig.clock.now_ms()
        rig.memory.put(name, b"a body")
        rig.log.snapshot(number, snapshot_of(name, offset))
        rig.flush()
    rig.clock.advance(2 * DAY_S)
    return names


def left(rig):
    return {name for name in rig.memory.objects if name.startswith("snapshots/")}


def test_rest_goes_the_next_time(rig, names):
    removed = []
    for _ in range(4):
        before = left(rig)
        rig.worker.collect()
        removed.append(before - left(rig))
    # Those that have been of no use for longest go first.
    assert removed == [set(names[:3]), set(names[3:6]), set(names[6:7]), set()]
    assert left(rig) == {names[-1]}
    assert rig.worker.counters.objects_removed == 7


def test_those_that_are_not_due_wait(rig, names):
    now_ms = rig.clock.now_ms()
    found = rig.writer.read("SELECT name, dropped_ms FROM dropped_snapshots ORDER BY dropped_ms")
    assert [name for name, _ in found] == names[:-1]
    done = remove_dropped(rig.writer, rig.memory, found[1][1])
    assert done.objects == 2
    assert left(rig) == set(names[2:])
    assert remove_dropped(rig.writer, rig.memory, now_ms).objects == MAX


def test_store_that_fails_half_way_is_asked_again(rig, names):
    rig.store.fail("remove")
    with pytest.raises(StoreError):
        remove_dropped(rig.writer, rig.store, rig.clock.now_ms())
    rig.memory.remove(names[1])
    for expected in (3, 3, 1):
        assert remove_dropped(rig.writer, rig.store, rig.clock.now_ms()).objects == expected
    assert left(rig) == {names[-1]}
