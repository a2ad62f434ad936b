"""Gathering: records do to rows what the engine does to streams, wherever the log is cut."""

from pathlib import Path

import pytest
from hypothesis import given, settings

from holdfast.errors import LogCorruptError
from holdfast.format.records import Kind, Record, encode
from holdfast.format.rows import BUCKET_PREFIX, decode_bucket, decode_row, encode_row
from holdfast.storage.flush import Gather
from tests.memory_directory import memory_directory
from tests.thorough import examples
from tests.unit.storage.histories import (
    History,
    fields_of_row,
    fields_of_stream,
    hot_bytes,
    steps,
    stored_row,
)
from tests.unit.storage.rig import JSON, Log, Rig


class Rows:
    """As much of a catalog as gathering needs, with the bytes of each stream."""

    def __init__(self):
        self.rows = {}
        self.documents = {}
        self.data = {}
        self.messages = {}
        self.flushed = 0
        self.removed = set()

    def find(self, number):
        return decode_row(self.rows[number]) if number in self.rows else None

    def take(self, log, through):
        """Gather up to a cut, and keep the outcome."""
        gather = Gather(self.flushed, self.find, self.documents.get)
        for position in range(self.flushed + 1, through + 1):
            gather.apply(position, log.body(position))
        assert gather.through == through
        for number in gather.removed:
            del self.rows[number], self.data[number], self.messages[number]
            self.removed.add(number)
        for number, share in gather.shares.items():
            assert gather.is_new(number) == (number not in self.rows)
            origin = share.row.meta.fork
            own_start = 0 if origin is None else origin.offset
            assert share.start == own_start + len(self.data.setdefault(number, b""))
            data = share.take_data()
            assert share.size_bytes == len(data)
            self.rows[number] = encode_row(share.row)
            self.data[number] += data
            self.messages.setdefault(number, []).extend(_cut_up(data, share.messages))
        for key, value in gather.documents().items():
            self.documents[key] = value
            if value is None:
                del self.documents[key]
        self.flushed = through


def _cut_up(data, index):
    at = 0
    for length, at_ms, position in zip(
        index.lengths, index.timestamps, index.positions, strict=True
    ):
        yield data[at : at + length], at_ms, position
        at += length
    assert at == len(data)


def _check_documents(documents, state, history):
    """Documents and buckets' rows are the engine's, and both what writers were told."""
    rows = {
        key.removeprefix(BUCKET_PREFIX): decode_bucket(documents.pop(key))
        for key in list(documents)
        if key.startswith(BUCKET_PREFIX)
    }
    assert rows == state.buckets | state._former
    assert {name for name, row in rows.items() if row.exists} == state.buckets.keys()
    assert documents == state.documents == history.documents_now
    assert history.buckets() == {
        name: (row.explicit, row.streams, row.size_bytes) for name, row in rows.items()
    }
    assert state.stored_bytes == sum(row.size_bytes for row in rows.values())


class TestEquality:
    @given(steps)
    def test_rows_are_the_engines_streams_wherever_the_log_is_cut(self, script):
        history = History(script)
        state, rows = history.state(), Rows()
        for cut in history.cuts:
            rows.take(history.log, cut)
        told = history.by_number
        assert rows.rows.keys() == state.by_number.keys() == told.keys()
        for number, stream in state.by_number.items():
            assert fields_of_row(rows.find(number)) == fields_of_stream(stream)
            assert rows.data[number] == told[number].data[told[number].own_start :]
            assert hot_bytes(stream) == told[number].data[stream.start :]
            assert rows.messages[number] == told[number].messages
        assert rows.removed <= history.removed
        _check_documents(rows.documents, state, history)

    @given(steps)
    def test_cuts_make_no_difference(self, script):
        history = History(script)
        once, often = Rows(), Rows()
        once.take(history.log, history.log.position - 1)
        for position in range(1, history.log.position):
            often.take(history.log, position)
        assert once.rows == often.rows
        assert once.documents == often.documents
        assert once.data == often.data
        assert once.messages == often.messages
        assert once.removed == set()

    @settings(max_examples=examples(60))
    @given(steps)
    def test_flushes_into_a_catalog_add_up_to_the_engines_state(self, script):
        history = History(script)
        state = history.state()
        with memory_directory() as path:
            rig = Rig(Path(path))
            rig.log = history.log
            rig.start()
            for count in range(1, len(history.cuts) + 1):
                rig.worker._flush.run(history.log.segments[:count])
            for number, stream in state.by_number.items():
                assert fields_of_row(stored_row(rig.catalog, number)) == fields_of_stream(stream)
                assert rig.catalog.find_name(stream.meta.name).number == number
                assert rig.stored(number) == hot_bytes(stream)
                assert rig.messages(number) == history.by_number[number].needed_messages()
            for number in history.removed:
                assert rig.catalog.find_number(number) is None
                assert rig.extents(number) == []
            assert rig.catalog.totals().streams == state.streams
            assert rig.catalog.totals().flushed == history.log.position - 1
            _check_documents(dict(rig.catalog.documents()), state, history)
            rig.verify()
            rig.close()


class TestMessages:
    @pytest.mark.parametrize(
        ("content_type", "payload", "lengths"),
        [
            (JSON, b"1\x1e", [2]),
            (JSON, b"1\x1e22\x1e333\x1e", [2, 3, 4]),
            (JSON, b'""\x1e', [3]),
            ("text/plain", b"1\x1e22\x1e", [5]),
            ("application/octet-stream", b"\x1e\x1e", [2]),
        ],
    )
    def test_json_arrays_are_split_and_nothing_else(self, content_type, payload, lengths):
        log = Log()
        number = log.create("b/s", b"", content_type)
        log.append(number, payload)
        gather = Gather(0, lambda _: None, lambda _: None)
        gather.apply(log.commit(), log.body(1))
        assert list(gather.shares[number].messages.lengths) == lengths

    def test_stream_without_bytes_has_a_share_without_messages(self):
        log = Log()
        number = log.create("b/s")
        gather = Gather(0, lambda _: None, lambda _: None)
        gather.apply(log.commit(), log.body(1))
        assert len(gather.shares[number].messages) == 0
        assert gather.shares[number].take_data() == b""


class TestRefusals:
    @pytest.mark.parametrize("position", [0, 1, 3])
    def test_only_the_next_batch_is_taken(self, position):
        gather = Gather(1, lambda _: None, lambda _: None)
        with pytest.raises(LogCorruptError, match=f"position {position} where 2"):
            gather.apply(position, b"")
        assert gather.through == 1

    @pytest.mark.parametrize("kind", [Kind.APPEND, Kind.TOUCH])
    def test_stream_that_the_catalog_does_not_know(self, kind):
        gather = Gather(0, lambda _: None, lambda _: None)
        with pytest.raises(LogCorruptError, match="stream 2a"):
            gather.apply(1, encode(Record(kind, 0x2A, 0, b"")))

    def test_removal_of_a_stream_of_the_same_range_leaves_nothing(self):
        log = Log()
        number = log.create("b/s", b"x")
        log.commit()
        log.delete(number)
        log.commit()
        gather = Gather(0, lambda _: None, lambda _: None)
        gather.apply(1, log.body(1))
        gather.apply(2, log.body(2))
        assert gather.shares == {}
        assert gather.removed == []
