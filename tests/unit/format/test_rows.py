"""Stream rows: what a record changes, what comes back, and what later versions may add."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.format.records import Kind, Record, StreamMeta
from holdfast.format.rows import StreamRow, decode_row, encode_row, renewed_deadline_ms, take_over
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
producers = st.builds(Producer, ids, counts, counts)
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
    | st.dictionaries(ids, st.builds(ProducerState, counts, counts), max_size=3),
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


class TestTakeOver:
    def test_producers_are_kept_by_id(self):
        stream = row()
        for producer in (Producer(b"p", 0, 0), Producer(b"q", 3, 7), Producer(b"p", 1, 0)):
            take_over(stream, Record(Kind.APPEND, 5, 0, producer=producer))
        assert stream.producers == {b"p": ProducerState(1, 0), b"q": ProducerState(3, 7)}
        assert (stream.seq, stream.closed, stream.closer) == (None, False, None)

    def test_seq_is_the_last_one(self):
        stream = row()
        for seq in (b"a", b"b"):
            take_over(stream, Record(Kind.APPEND, 5, 0, seq=seq))
        assert stream.seq == b"b"
        take_over(stream, Record(Kind.APPEND, 5, 0, closes=True))
        assert stream.seq == b"b"

    @pytest.mark.parametrize("producer", [None, Producer(b"p", 2, 9)])
    def test_closure_remembers_who_closed(self, producer):
        stream = row()
        take_over(stream, Record(Kind.APPEND, 5, 0, closes=True, producer=producer))
        assert stream.closed
        assert stream.closer == producer

    def test_record_without_any_changes_nothing(self):
        stream = row(seq=b"a", producers={b"p": ProducerState(0, 0)})
        take_over(stream, Record(Kind.APPEND, 5, 0, b"payload"))
        assert stream == row(seq=b"a", producers={b"p": ProducerState(0, 0)})


class TestRenewedDeadline:
    def test_write_renews_a_ttl(self):
        assert renewed_deadline_ms(StreamMeta("a", "b", ttl_s=10), 5_000) == 15_000

    def test_nothing_renews_a_fixed_end(self):
        assert renewed_deadline_ms(StreamMeta("a", "b", expires_at_ms=9_000), 5_000) is None
        assert renewed_deadline_ms(StreamMeta("a", "b", 10, 9_000), 5_000) is None

    def test_stream_without_either_has_none(self):
        assert renewed_deadline_ms(META, 5_000) is None
