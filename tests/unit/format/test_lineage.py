"""Lineage: what forks and snapshots do to the streams they concern."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.format.lineage import begin_fork, publish_snapshot, remove
from holdfast.format.records import Fork, Snapshot, StreamMeta


@dataclass
class Kin:
    """Anything that has the fields."""

    number: int
    tail: int = 0
    fork: Fork | None = None
    start: int = 0
    earliest: int = 0
    snapshot: Snapshot | None = None
    forks: int = 0
    deleted: bool = False
    meta: StreamMeta = field(init=False)

    def __post_init__(self):
        self.meta = StreamMeta(f"b/{self.number}", "text/plain", fork=self.fork)


class Family:
    """Streams by number, and what becomes of them."""

    def __init__(self):
        self.streams = {}
        self.gone = []
        self.freed = []

    def source(self, number=1, tail=100):
        kin = self.streams[number] = Kin(number, tail)
        return kin

    def fork(self, number, source, offset):
        origin = Fork(source.number, source.meta.name, offset)
        kin = self.streams[number] = Kin(number, fork=origin)
        begin_fork(kin, source)
        return kin

    def remove(self, kin):
        remove(kin, self.streams.__getitem__, self._gone, self._freed)

    def _gone(self, kin):
        self.gone.append(kin.number)
        del self.streams[kin.number]

    def _freed(self, kin, size_bytes):
        self.freed.append((kin.number, size_bytes))


@pytest.fixture
def family():
    return Family()


def snapshot(offset):
    return Snapshot(offset, f"snapshots/{offset}", "text/plain", 1, 2)


class TestForks:
    def test_it_starts_at_its_offset_with_what_can_be_read_of_its_source(self, family):
        source = family.source()
        publish_snapshot(source, snapshot(30))
        fork = family.fork(2, source, 60)
        assert (fork.start, fork.tail, fork.earliest) == (60, 60, 30)
        assert fork.snapshot == snapshot(30)
        assert source.forks == 1

    @pytest.mark.parametrize("offset", [30, 100])
    def test_both_ends_of_what_can_be_read(self, family, offset):
        source = family.source()
        publish_snapshot(source, snapshot(30))
        assert family.fork(2, source, offset).tail == offset

    @pytest.mark.parametrize("offset", [29, 101])
    def test_outside_of_it_there_is_no_fork(self, family, offset):
        source = family.source()
        publish_snapshot(source, snapshot(30))
        with pytest.raises(AssertionError, match="inside its source"):
            family.fork(2, source, offset)

    def test_fork_of_a_fork_may_start_before_its_source_does(self, family):
        fork = family.fork(2, family.source(), 60)
        nested = family.fork(3, fork, 20)
        assert (nested.start, nested.earliest) == (20, 0)
        assert (fork.forks, family.streams[1].forks) == (1, 1)

    def test_what_becomes_of_the_source_later_is_no_concern_of_its_own(self, family):
        source = family.source()
        fork = family.fork(2, source, 60)
        publish_snapshot(source, snapshot(80))
        source.tail = 200
        assert (fork.earliest, fork.tail, fork.snapshot) == (0, 60, None)


class TestSnapshots:
    def test_stream_starts_there(self, family):
        source = family.source()
        assert publish_snapshot(source, snapshot(30)) == 30
        assert (source.start, source.earliest, source.snapshot) == (30, 30, snapshot(30))
        assert publish_snapshot(source, snapshot(35)) == 5

    def test_another_one_at_the_same_place(self, family):
        source = family.source()
        publish_snapshot(source, snapshot(30))
        other = Snapshot(30, "snapshots/other", "text/plain", 5, 6)
        assert publish_snapshot(source, other) == 0
        assert source.snapshot == other

    def test_at_the_tail_nothing_is_left(self, family):
        source = family.source()
        assert publish_snapshot(source, snapshot(100)) == 100
        assert source.start == source.tail

    def test_source_keeps_its_bytes_while_it_has_forks(self, family):
        source = family.source()
        family.fork(2, source, 60)
        assert publish_snapshot(source, snapshot(80)) == 0
        assert (source.start, source.earliest) == (0, 80)

    def test_fork_has_no_bytes_of_its_own_before_its_start(self, family):
        fork = family.fork(2, family.source(), 60)
        fork.tail = 90
        assert publish_snapshot(fork, snapshot(40)) == 0
        assert (fork.start, fork.earliest) == (60, 40)
        assert publish_snapshot(fork, snapshot(75)) == 15
        assert fork.start == 75


class TestRemoval:
    def test_stream_without_relatives(self, family):
        family.remove(family.source())
        assert (family.gone, family.freed) == ([1], [])

    def test_one_with_forks_stays(self, family):
        source = family.source()
        family.fork(2, source, 60)
        with pytest.raises(AssertionError, match="a stream with forks stays"):
            family.remove(source)

    def test_last_fork_frees_what_was_kept_for_it(self, family):
        source = family.source()
        forks = [family.fork(2, source, 60), family.fork(3, source, 70)]
        publish_snapshot(source, snapshot(80))
        family.remove(forks[0])
        assert (family.gone, family.freed, source.start) == ([2], [(1, 0)], 0)
        family.remove(forks[1])
        assert (family.gone, family.freed) == ([2, 3], [(1, 0), (1, 80)])
        assert (source.start, source.forks) == (80, 0)

    def test_deleted_source_goes_with_its_last_fork(self, family):
        source = family.source()
        forks = [family.fork(2, source, 60), family.fork(3, source, 70)]
        source.deleted = True
        family.remove(forks[1])
        assert family.gone == [3]
        family.remove(forks[0])
        assert family.gone == [3, 2, 1]
        assert family.freed == [(1, 0)]

    def test_line_of_deleted_streams_goes_at_once(self, family):
        first = family.source(1)
        second = family.fork(2, first, 50)
        third = family.fork(3, second, 50)
        last = family.fork(4, third, 50)
        first.deleted = second.deleted = third.deleted = True
        family.remove(last)
        assert family.gone == [4, 3, 2, 1]
        assert family.streams == {}

    def test_line_ends_where_somebody_is_left(self, family):
        first = family.source(1)
        second = family.fork(2, first, 50)
        third = family.fork(3, second, 50)
        other = family.fork(5, first, 20)
        second.deleted = first.deleted = True
        family.remove(third)
        assert family.gone == [3, 2]
        assert first.forks == 1
        family.remove(other)
        assert family.gone == [3, 2, 5, 1]


actions = st.lists(
    st.tuples(st.sampled_from(["fork", "snapshot", "end", "grow"]), st.integers(0, 99)),
    max_size=60,
)


@given(actions)
def test_counts_fit_and_every_byte_that_can_be_read_is_kept(script):
    family = Family()
    family.source()
    number = 1
    for action, choice in script:
        alive = [kin for kin in family.streams.values() if not kin.deleted]
        if not alive:
            return
        kin = alive[choice % len(alive)]
        offset = kin.earliest + choice % (kin.tail - kin.earliest + 1)
        match action:
            case "fork":
                number += 1
                family.fork(number, kin, offset)
            case "snapshot":
                publish_snapshot(kin, snapshot(offset))
            case "grow":
                kin.tail += choice
            case "end" if kin.forks:
                kin.deleted = True
            case "end":
                family.remove(kin)
        _check(family)


def _check(family):
    streams = family.streams
    for kin in streams.values():
        named = [each for each in streams.values() if each.fork and each.fork.source == kin.number]
        assert kin.forks == len(named)
        assert kin.forks or not kin.deleted
        assert kin.start <= kin.tail
        if not kin.deleted:
            for at in range(kin.earliest, kin.tail, 7):
                assert _owner(streams, kin, at).start <= at


def _owner(streams, kin, at):
    while kin.fork is not None and at < kin.fork.offset:
        kin = streams[kin.fork.source]
        assert at < kin.tail
    return kin
