"""Chunks: columns of messages, and the Arrow batches made of them."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadAnswerError
from holdfast.protocol.content import frame
from holdfast.protocol.headers import OFFSET_MAX
from holdfast.spark.reading.arrow import (
    COLUMN_NAMES,
    DEFAULT_COLUMNS,
    Chunk,
    StreamName,
    arrow_schema,
    binary_array,
    offsets_text,
    split_chunk,
    split_records,
    to_batch,
)

OFFSETS = st.one_of(
    st.integers(0, OFFSET_MAX),
    st.integers(0, 20_000),
    st.integers(0, 10**13),
    st.sampled_from([0, 9999, 10_000, 10**8, 10**12 - 1, 10**12, 10**16, OFFSET_MAX]),
)


@given(st.lists(OFFSETS, max_size=50))
def test_offsets_have_twenty_digits(numbers: list[int]) -> None:
    found = offsets_text(np.array(numbers, dtype=np.int64))
    found.validate(full=True)
    assert found.to_pylist() == [f"{number:020d}" for number in numbers]


def test_offsets_of_others_stay_as_they_are() -> None:
    assert offsets_text(["0_5", "0_9"]).to_pylist() == ["0_5", "0_9"]


def chunk_of(streams: list[StreamName], rows: list[tuple[int, int, bytes]]) -> Chunk:
    """Rows of (which stream, offset, payload)."""
    offsets = np.array([offset for _, offset, _ in rows], dtype=np.int64)
    sizes = np.array([len(payload) for _, _, payload in rows], dtype=np.int64)
    return Chunk(
        streams,
        np.array([which for which, _, _ in rows], dtype=np.int32),
        offsets,
        offsets + sizes,
        np.arange(len(rows), dtype=np.int64) + 1_700_000_000_000,
        pa.array([payload for _, _, payload in rows], pa.binary()),
    )


BYTES = StreamName("raw", "application/octet-stream")
JSON = StreamName("json", "application/json")
JSON_UTF8 = StreamName("json2", "application/json; charset=utf-8")


def test_every_column() -> None:
    chunk = chunk_of(
        [BYTES, JSON, JSON_UTF8], [(0, 0, b"\xff"), (1, 7, b"{}"), (2, 0, b'"\xc3\xa9"')]
    )
    batch = to_batch(chunk, "events", COLUMN_NAMES)
    batch.validate(full=True)
    assert batch.schema == arrow_schema(COLUMN_NAMES)
    assert batch.column("bucket").to_pylist() == ["events"] * 3
    assert batch.column("stream_id").to_pylist() == ["raw", "json", "json2"]
    assert batch.column("offset").to_pylist() == [f"{n:020d}" for n in (0, 7, 0)]
    assert batch.column("next_offset").to_pylist() == [f"{n:020d}" for n in (1, 9, 4)]
    assert batch.column("value").to_pylist() == [None, "{}", '"é"']
    assert batch.column("payload").to_pylist() == [b"\xff", b"{}", b'"\xc3\xa9"']
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [
        1_700_000_000_000_000 + 1000 * n for n in range(3)
    ]


@pytest.mark.parametrize(("streams", "value"), [([JSON], "{}"), ([BYTES], None)])
def test_values_of_one_kind_of_stream(streams: list[StreamName], value: str | None) -> None:
    batch = to_batch(chunk_of(streams, [(0, 0, b"{}")]), "events", ("value", "offset"))
    assert batch.schema.names == ["value", "offset"]
    assert batch.column("value").to_pylist() == [value]


def test_where_nobody_tells_the_time() -> None:
    chunk = replace(chunk_of([BYTES], [(0, 0, b"a")]), timestamps=None)
    batch = to_batch(chunk, "events", DEFAULT_COLUMNS)
    assert batch.column("timestamp").to_pylist() == [None]
    assert batch.schema == arrow_schema(DEFAULT_COLUMNS)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=60),
    st.integers(1, 2000),
)
def test_pieces_are_the_chunk(sizes: list[int], batch_bytes: int) -> None:
    at = 0
    rows = []
    for number, size in enumerate(sizes):
        rows.append((number % 2, at, bytes([number]) * size))
        at += size
    chunk = chunk_of([BYTES, JSON], rows)
    found = split_chunk(chunk, batch_bytes)
    tables = [to_batch(piece, "events", DEFAULT_COLUMNS) for piece in found]
    assert (
        pa.Table.from_batches(tables)
        == pa.Table.from_batches([to_batch(chunk, "events", DEFAULT_COLUMNS)])
        or pa.Table.from_batches(tables).to_pylist()
        == to_batch(chunk, "events", DEFAULT_COLUMNS).to_pylist()
    )


def test_many_small_messages_are_not_one_batch() -> None:
    count = 1_000_000
    data = np.zeros(count, dtype=np.uint8)
    ends = np.arange(1, count + 1, dtype=np.int64)
    numbers = np.zeros(count, dtype=np.int64)
    chunk = Chunk(
        [BYTES],
        np.zeros(count, dtype=np.int32),
        ends - 1,
        ends,
        numbers,
        binary_array(data, ends),
    )
    found = split_chunk(chunk)
    assert sum(len(piece) for piece in found) == count
    largest = max(to_batch(piece, "events", DEFAULT_COLUMNS).nbytes for piece in found)
    assert largest < 32 * 1024 * 1024


RECORDS = st.lists(st.lists(st.binary(max_size=9), max_size=4), min_size=1, max_size=6)


@given(RECORDS, st.integers(0, 10**15))
def test_records_of_byte_streams(messages: list[list[bytes]], start: int) -> None:
    rows, expected, at = [], [], start
    for number, records in enumerate(messages):
        payload = b"".join(frame(record) for record in records)
        rows.append((0, at, payload))
        for record in records:
            expected.append((at, at + 4 + len(record), record, number))
            at += 4 + len(record)
    found = split_records(chunk_of([BYTES], rows))
    assert found.payloads.to_pylist() == [record for _, _, record, _ in expected]
    assert found.offsets.tolist() == [first for first, _, _, _ in expected]
    assert found.next_offsets.tolist() == [last for _, last, _, _ in expected]
    assert found.timestamps.tolist() == [1_700_000_000_000 + number for *_, number in expected]


def test_messages_of_json_streams_have_no_records() -> None:
    chunk = chunk_of([BYTES, JSON], [(1, 5, b'{"a":1}'), (0, 0, frame(b"x") + frame(b""))])
    found = split_records(chunk)
    assert found.payloads.to_pylist() == [b'{"a":1}', b"x", b""]
    assert found.stream_indexes.tolist() == [1, 0, 0]
    assert found.offsets.tolist() == [5, 0, 5]


def test_what_is_not_framed() -> None:
    with pytest.raises(BadAnswerError, match="'raw' at offset 3 does not hold whole length-pref"):
        split_records(chunk_of([BYTES], [(0, 3, b"\0\0\0\x09abc")]))
    unknown = replace(chunk_of([BYTES], [(0, 3, b"")]), offsets=["1_1"], next_offsets=["1_2"])
    with pytest.raises(BadAnswerError, match="read without 'framing'"):
        split_records(unknown)
