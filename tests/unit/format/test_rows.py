"""Stream rows: what a record changes, what comes back, and what later versions may add."""

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.format.records import Fork, Kind, Record, Snapshot, StreamMeta
from holdfast.format.rows import (
    StreamRow,
    apply_write,
    begin_fork,
    decode_row,
    encode_row,
    later_row,
    publish_snapshot,
    remove,
    renewed_deadline_ms,
    stored_bytes,
    take_producers,
)
from holdfast.protocol.producer import NUMBER_MAX, Producer, ProducerState

numbers = st.integers(0, 2**63 - 1)
counts = st.integers(0, NUMBER_MAX)
times = st.integers(-(2**53), 2**53)
ids = st.binary(min_size=1, max_size=12)
metas = st.builds(
    StreamMeta,
    name=st.text(max_size=20),
    content_type=st.text(max_size=20),
    ttl_s=st.none() | st.integers(0, 2**40),
    expires_at_ms=st.none() | times,
)
digests = st.just(b"") | st.binary(min_size=8, max_size=8)
producers = st.builds(Producer, ids, counts, counts, digests)
stream_rows = st.builds(
    StreamRow,
    number=numbers,
    meta=metas,
    created_ms=times,
    last_write_ms=times,
    tail=numbers,
    closed=st.booleans(),
    closer=st.none() | producers,
    seq=st.none() | st.binary(max_size=12),
    producers=st.none()
    | st.dictionaries(ids, st.builds(ProducerState, counts, counts, times, digests), max_size=3),
    deadline_ms=st.none() | times,
)
META = StreamMeta("b/s", "text/plain")


def row(**fields):
    return StreamRow(5, META, 1000, 1000, **fields)


@given(stream_rows)
def test_round_trip(written):
    found = decode_row(encode_row(written))
    assert found == written
    assert found.closer is None or isinstance(found.closer, Producer)
    for state in (found.producers or {}).values():
        assert isinstance(state, ProducerState)


@given(stream_rows, st.lists(st.none() | st.integers() | st.text(), max_size=3))
def test_fields_that_a_later_version_adds_are_ignored(written, later):
    fields = msgspec.msgpack.decode(encode_row(written), strict=False)
    assert decode_row(msgspec.msgpack.encode([*fields, *map(str, later)])) == written


def test_fields_that_an_earlier_version_did_not_have_get_their_defaults():
    fields = msgspec.msgpack.decode(encode_row(row(tail=9)))
    assert decode_row(msgspec.msgpack.encode(fields[:4])) == row()
    assert decode_row(msgspec.msgpack.encode(fields[:5])) == row(tail=9)


def test_meta_that_a_later_version_adds_to_is_read():
    fields = msgspec.msgpack.decode(encode_row(row()))
    fields[1]["bucket_policy"] = "new"
    assert decode_row(msgspec.msgpack.encode(fields)) == row()


def test_fold_takes_the_later_row_and_the_later_state_of_each_producer():
    older = row(tail=4, producers={b"p": ProducerState(0, 3, 1), b"q": ProducerState(1, 1, 2)})
    newer = row(tail=9, producers={b"q": ProducerState(2, 0, 3), b"r": ProducerState(0, 0, 4)})
    producers = {**older.producers, **newer.producers}
    folded = decode_row(later_row(encode_row(older), encode_row(newer)))
    assert folded == row(tail=9, producers=producers)
    without = encode_row(row(tail=12))
    assert later_row(encode_row(row(tail=1)), without) == without
    assert decode_row(later_row(encode_row(newer), without)).producers == newer.producers


def test_fold_leaves_out_producers_that_were_idle_for_long():
    older = row(producers={b"p": ProducerState(0, 3, 10), b"q": ProducerState(1, 1, 20)})
    newer = row(tail=9, producers={b"r": ProducerState(0, 0, 5)})
    folded = decode_row(later_row(encode_row(older), encode_row(newer), 20))
    assert folded.producers.keys() == {b"q", b"r"}


def test_producers_without_a_time_wrote_when_the_stream_was_written_last():
    fields = msgspec.msgpack.decode(encode_row(row(producers={})))
    fields[8] = {b"p": [0, 3]}
    old = decode_row(msgspec.msgpack.encode(fields))
    assert take_producers(old) == {b"p": ProducerState(0, 3, 1000)}
    assert old == row()


class TestTakeOver:
    def test_producers_are_kept_by_id(self):
        stream = row()
        for producer in (Producer(b"p", 0, 0), Producer(b"q", 3, 7), Producer(b"p", 1, 0)):
            apply_write(stream, Record(Kind.APPEND, 5, 0, producer=producer))
        assert stream.producers == {b"p": ProducerState(1, 0), b"q": ProducerState(3, 7)}
        assert (stream.seq, stream.closed, stream.closer) == (None, False, None)

    def test_seq_is_the_last_one(self):
        stream = row()
        for seq in (b"a", b"b"):
            apply_write(stream, Record(Kind.APPEND, 5, 0, seq=seq))
        assert stream.seq == b"b"
        apply_write(stream, Record(Kind.APPEND, 5, 0, closes=True))
        assert stream.seq == b"b"

    @pytest.mark.parametrize("producer", [None, Producer(b"p", 2, 9)])
    def test_closure_remembers_who_closed(self, producer):
        stream = row()
        apply_write(stream, Record(Kind.APPEND, 5, 0, closes=True, producer=producer))
        assert stream.closed
        assert stream.closer == producer

    def test_record_without_any_changes_nothing(self):
        stream = row(seq=b"a", producers={b"p": ProducerState(0, 0)})
        apply_write(stream, Record(Kind.APPEND, 5, 0, b"payload"))
        assert stream == row(seq=b"a", producers={b"p": ProducerState(0, 0)})


class TestRenewedDeadline:
    def test_write_renews_a_ttl(self):
        assert renewed_deadline_ms(StreamMeta("a", "b", ttl_s=10), 5_000) == 15_000

    def test_nothing_renews_a_fixed_end(self):
        assert renewed_deadline_ms(StreamMeta("a", "b", expires_at_ms=9_000), 5_000) is None
        assert renewed_deadline_ms(StreamMeta("a", "b", 10, 9_000), 5_000) is None

    def test_stream_without_either_has_none(self):
        assert renewed_deadline_ms(META, 5_000) is None


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
        publish_snapshot(source, snapshot(30), 7)
        fork = family.fork(2, source, 60)
        assert (fork.start, fork.tail, fork.earliest) == (60, 60, 30)
        assert fork.snapshot == snapshot(30)
        assert source.forks == 1

    @pytest.mark.parametrize("offset", [30, 100])
    def test_both_ends_of_what_can_be_read(self, family, offset):
        source = family.source()
        publish_snapshot(source, snapshot(30), 7)
        assert family.fork(2, source, offset).tail == offset

    @pytest.mark.parametrize("offset", [29, 101])
    def test_outside_of_it_there_is_no_fork(self, family, offset):
        source = family.source()
        publish_snapshot(source, snapshot(30), 7)
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
        publish_snapshot(source, snapshot(80), 7)
        source.tail = 200
        assert (fork.earliest, fork.tail, fork.snapshot) == (0, 60, None)


class TestSnapshots:
    def test_stream_starts_there(self, family):
        source = family.source()
        assert publish_snapshot(source, snapshot(30), 7) == 30 - 1
        assert (source.start, source.earliest, source.snapshot) == (30, 30, snapshot(30))
        assert publish_snapshot(source, snapshot(35), 7) == 5
        assert stored_bytes(source) == 65 + 1

    def test_another_one_at_the_same_place(self, family):
        source = family.source()
        publish_snapshot(source, snapshot(30), 7)
        other = Snapshot(30, "snapshots/other", "text/plain", 5, 6)
        assert publish_snapshot(source, other, 7) == 1 - 5
        assert source.snapshot == other

    def test_at_the_tail_nothing_is_left(self, family):
        source = family.source()
        assert publish_snapshot(source, snapshot(100), 7) == 100 - 1
        assert source.start == source.tail
        assert stored_bytes(source) == 1

    def test_source_keeps_its_bytes_while_it_has_forks(self, family):
        source = family.source()
        family.fork(2, source, 60)
        assert publish_snapshot(source, snapshot(80), 7) == -1
        assert (source.start, source.earliest) == (0, 80)

    def test_fork_has_no_bytes_of_its_own_before_its_start(self, family):
        fork = family.fork(2, family.source(), 60)
        fork.tail = 90
        assert publish_snapshot(fork, snapshot(40), 7) == -1
        assert (fork.start, fork.earliest) == (60, 40)
        assert publish_snapshot(fork, snapshot(75), 7) == 15
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
        publish_snapshot(source, snapshot(80), 7)
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
                publish_snapshot(kin, snapshot(offset), 7)
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
