"""The faults that tests of storage ask for."""

import pytest

from holdfast.errors import ObjectMissingError, StoreError
from holdfast.objects.store import MemoryObjects, PostedRanges
from holdfast.testing import FakeClock, FaultyObjects, FaultyRanges
from tests.storage.stores import contents

OPERATIONS = {
    "put": lambda store: store.put("new", b"x"),
    "put_parts": lambda store: store.put_parts("new", [b"x"]),
    "create": lambda store: store.create("new", b"x"),
    "read": lambda store: store.read("old"),
    "size": lambda store: store.size("old"),
    "list": lambda store: list(store.list()),
    "remove": lambda store: store.remove("old"),
    "remove_unfinished": lambda store: store.remove_unfinished(0),
}


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def store(clock):
    store = FaultyObjects(MemoryObjects(clock))
    store.put("old", b"abc")
    store.calls.clear()
    return store


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_fails_as_often_as_asked(store, operation):
    call = OPERATIONS[operation]
    store.fail(operation, 2)
    for _ in range(2):
        with pytest.raises(StoreError):
            call(store)
    assert contents(store.inner) == {"old": b"abc"}
    call(store)
    assert store.calls == {operation: 3}


@pytest.mark.parametrize("operation", ["put", "put_parts", "create", "remove"])
def test_failure_after_the_effect(store, operation):
    store.fail(operation, after_effect=True)
    with pytest.raises(StoreError):
        OPERATIONS[operation](store)
    assert contents(store.inner) != {"old": b"abc"}


def test_real_errors_come_through(store):
    with pytest.raises(ObjectMissingError):
        store.read("none")


def test_flipped_bytes_show_wherever_they_are_read(store):
    store.corrupt("old", 1)
    assert store.read("old") == b"a\x9dc"
    assert store.read("old", 1) == b"\x9dc"
    assert store.read("old", 1, 1) == b"\x9d"
    assert store.read("old", 2) == b"c"
    assert store.read("old", 0, 1) == b"a"
    store.heal()
    assert store.read("old") == b"abc"


def test_healing_forgets_failures(store):
    store.fail("read", 5)
    store.heal()
    assert store.read("old") == b"abc"


class TestRanges:
    @pytest.fixture
    def answers(self):
        return []

    @pytest.fixture
    def reader(self, store, clock):
        return FaultyRanges(PostedRanges(store.inner, clock.call_soon), store.faults)

    def test_answers_wait_for_the_clock(self, reader, clock, answers):
        reader.read("old", 1, 5, answers.append)
        assert answers == []
        clock.run()
        assert answers == [b"bc"]

    def test_failures_come_the_same_way(self, store, reader, clock, answers):
        store.fail("read")
        reader.read("old", 0, 5, answers.append)
        assert answers == []
        clock.run()
        assert [type(answer) for answer in answers] == [StoreError]
        reader.read("none", 0, 5, answers.append)
        clock.run()
        assert [type(answer) for answer in answers] == [StoreError, ObjectMissingError]
        assert store.calls["read"] == 2

    def test_flipped_bytes(self, store, reader, clock, answers):
        store.corrupt("old", 1)
        reader.read("old", 0, 5, answers.append)
        clock.run()
        assert answers == [b"a\x9dc"]
