"""Packs as bytes: what goes in comes out, everything lies where it should, and damage shows."""

from array import array
from itertools import groupby, pairwise
from struct import Struct, pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from holdfast.format import pack_builder, packs
from holdfast.format.pack_builder import Messages, PackBuilder
from holdfast.format.packs import (
    BLOCK_BYTES,
    DIRECTORY_FIELDS,
    FOOTER_BYTES,
    FORMAT_VERSION,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    Delta,
    PackFormatError,
    PackMeta,
    UnknownPackVersionError,
    check_sum,
    checksum,
    decode_footer,
    directory_in,
    padded,
)

U64_MAX = 2**64 - 1
SALT = 0xABCDEF0123456789
u64 = st.integers(0, U64_MAX)
i64 = st.integers(-(2**63), 2**63 - 1)
messages = st.lists(st.tuples(st.binary(min_size=1, max_size=40), i64, u64), min_size=1, max_size=6)
streams = st.dictionaries(u64, st.tuples(st.integers(0, 2**40), messages), max_size=5)
rows = st.dictionaries(u64, st.binary(max_size=30), max_size=6)
names = st.lists(st.text(max_size=20), max_size=3)
metas = st.builds(
    PackMeta,
    created_ms=st.integers(0, 2**53),
    has_delta=st.booleans(),
    supersedes=names,
    companions=names,
    removed=st.lists(u64, max_size=4),
)


def index_of(stream_messages):
    """The message index and the data of some (bytes, timestamp, position)."""
    index = Messages()
    for data, at_ms, position in stream_messages:
        index.add(len(data), at_ms, position)
    return b"".join(data for data, _, _ in stream_messages), index


def build(streams, rows=(), meta=None, salt=SALT, after=0, through=9):
    """A whole pack of {number: (start, messages)} and {number: row}."""
    builder = PackBuilder(salt, after, through)
    out = bytearray(builder.header())
    for number, (start, stream_messages) in sorted(streams.items()):
        data, index = index_of(stream_messages)
        builder.add(number, start, data, index)
        out += data
    meta = meta or PackMeta(1, has_delta=True)
    for part in builder.finish(meta, sorted(dict(rows).items())):
        out += part
    return bytes(out)


def parse(pack):
    footer = decode_footer(pack[-FOOTER_BYTES:], len(pack))
    directory = part(pack, footer.directory_at, footer.delta_at, footer.directory_sum)
    delta = part(pack, footer.delta_at, footer.footer_at, footer.delta_sum)
    return footer, list(directory_in(directory, footer)), Delta(delta, footer)


def part(pack, at, end, expected):
    """A function that reads from a part of the pack, which must be sound."""
    data = pack[at:end]
    footer = decode_footer(pack[-FOOTER_BYTES:], len(pack))
    check_sum([data[:5], data[5:]], footer.salt, expected, "part")
    return lambda first, size: data[first : first + size]


def column(pack, at, code, count):
    """An array as it lies in the pack."""
    values = array(code)
    values.frombytes(pack[at : at + values.itemsize * count])
    return values


SMALL = {
    1: (0, [(b"one", 10, 1), (b"two!", 11, 2)]),
    7: (100, [(b"seven", 12, 3)]),
}


class TestRoundTrip:
    @given(streams, rows, metas, u64, u64, u64)
    def test_everything_comes_back(self, streams, rows, meta, salt, after, through):
        pack = build(streams, rows, meta, salt, after, through)
        footer, extents, delta = parse(pack)
        assert (footer.salt, footer.after, footer.through) == (salt, after, through)
        assert footer.size_bytes == len(pack)
        assert delta.meta == meta
        assert dict(delta.items()) == rows
        assert [number for number, _ in delta.items()] == sorted(rows)
        found = {
            extent.stream: (extent.start, pack[extent.data_at : extent.data_at + extent.length])
            for extent in extents
        }
        assert found == {
            number: (start, b"".join(data for data, _, _ in stream_messages))
            for number, (start, stream_messages) in streams.items()
        }

    @given(streams)
    def test_message_index_is_three_arrays_in_the_order_of_the_data(self, streams):
        pack = build(streams)
        footer, extents, _ = parse(pack)
        written = [each for _, (_, some) in sorted(streams.items()) for each in some]
        assert footer.messages == len(written)
        assert list(column(pack, footer.lengths_at, "I", footer.messages)) == [
            len(data) for data, _, _ in written
        ]
        assert list(column(pack, footer.timestamps_at, "q", footer.messages)) == [
            at_ms for _, at_ms, _ in written
        ]
        assert list(column(pack, footer.positions_at, "Q", footer.messages)) == [
            position for _, _, position in written
        ]
        for extent in extents:
            own = written[extent.message_at : extent.message_at + extent.messages]
            assert own == streams[extent.stream][1]
            assert extent.first_position == own[0][2]
            assert extent.last_position == own[-1][2]
            lengths = pack[footer.lengths_at + 4 * extent.message_at :][: 4 * extent.messages]
            assert extent.index_sum == checksum(lengths, footer.salt)

    def test_pack_of_nothing_is_a_pack(self):
        footer, extents, delta = parse(build({}))
        assert (footer.extents, footer.messages, footer.rows, footer.blocks) == (0, 0, 0, 0)
        assert extents == list(delta.items()) == []
        assert footer.data_end == HEADER_BYTES

    def test_what_the_builder_knows_is_what_the_directory_says(self):
        builder = PackBuilder(SALT, 0, 9)
        for number, (start, stream_messages) in SMALL.items():
            builder.add(number, start, *index_of(stream_messages))
        assert builder.data_bytes == 12
        assert list(builder.finish(PackMeta(1, has_delta=True), []))
        _, extents, _ = parse(build(SMALL))
        assert list(builder.pack.extents) == list(builder.pack.extents) == extents

    def test_streams_bytes_and_messages_must_fit(self):
        _, index = index_of([(b"abc", 0, 1)])
        with pytest.raises(AssertionError, match="whole messages"):
            PackBuilder(SALT, 0, 9).add(1, 0, b"ab", index)


class TestLayout:
    @given(streams, rows, metas)
    def test_everything_behind_the_data_starts_at_a_multiple_of_8(self, streams, rows, meta):
        footer, _, _ = parse(build(streams, rows, meta))
        starts = [
            footer.lengths_at,
            footer.timestamps_at,
            footer.positions_at,
            footer.directory_at,
            footer.delta_at,
            footer.footer_at,
        ]
        assert [at % 8 for at in starts] == [0] * len(starts)
        assert starts == sorted(starts)

    def test_parts_lie_where_the_format_says(self):
        pack = build(SMALL, {1: b"row", 7: b"another"})
        footer, _, _ = parse(pack)
        assert pack[:HEADER_BYTES] == MAGIC + bytes([FORMAT_VERSION]) + bytes(7)
        assert pack[HEADER_BYTES : HEADER_BYTES + 12] == b"onetwo!seven"
        assert footer.data_end == 28
        assert footer.lengths_at == 32
        assert footer.timestamps_at == padded(32 + 3 * 4) == 48
        assert footer.positions_at == 48 + 3 * 8
        assert footer.directory_at == 48 + 3 * 16
        assert pack[28:32] == bytes(4)

    @pytest.mark.parametrize("count", [0, 1, 2, 3])
    def test_directory_is_an_array_per_field_and_then_the_blocks_sums(self, count):
        pack = build({number: (5, [(b"data", 3, number)]) for number in range(count)})
        footer, extents, _ = parse(pack)
        assert len(extents) == footer.extents == footer.blocks == count
        at = footer.directory_at
        columns = {}
        for name, code, width in DIRECTORY_FIELDS:
            assert at % 8 == 0
            columns[name] = list(column(pack, at, code, count))
            at = padded(at + width * count)
        assert columns["streams"] == list(range(count))
        assert columns["starts"] == [5] * count
        assert columns["lengths"] == [4] * count
        assert columns["first_positions"] == columns["last_positions"] == list(range(count))
        assert columns["messages"] == [1] * count
        sums = column(pack, at, "Q", count)
        assert list(sums) == [xxh3_64_intdigest(b"data", seed=SALT)] * count
        assert at + 8 * count == footer.delta_at

    def test_delta_is_the_meta_the_numbers_the_sizes_and_the_rows(self):
        pack = build({}, {3: b"abc", 9: b"defgh"})
        footer, _, _ = parse(pack)
        at = padded(footer.delta_at + footer.meta_bytes)
        assert list(column(pack, at, "Q", 2)) == [3, 9]
        assert list(column(pack, at + 16, "I", 2)) == [3, 5]
        assert pack[at + 24 : at + 32] == b"abcdefgh"

    def test_sizes_of_an_odd_number_of_rows_are_padded(self):
        pack = build({}, {3: b"abc"})
        footer, _, _ = parse(pack)
        at = padded(footer.delta_at + footer.meta_bytes)
        assert pack[at + 8 : at + 16] == bytes([3, 0, 0, 0, 0, 0, 0, 0])
        assert pack[at + 16 : at + 24] == b"abc" + bytes(5)


class TestExtents:
    def test_block_sums_of_an_extent_larger_than_one_block(self):
        data = bytes(range(256)) * (BLOCK_BYTES // 256 * 2) + b"rest"
        parts = [data[at : at + 100_000] for at in range(0, len(data), 100_000)]
        pack = build({1: (0, [(part, 0, 1) for part in parts])})
        _, [extent], _ = parse(pack)
        assert extent.length == len(data)
        sums = array("Q", extent.sums)
        assert list(sums) == [
            checksum(data[:BLOCK_BYTES], SALT),
            checksum(data[BLOCK_BYTES : 2 * BLOCK_BYTES], SALT),
            checksum(b"rest", SALT),
        ]

    @pytest.mark.parametrize("blocks", [1, 2])
    def test_extent_of_whole_blocks_has_no_empty_last_one(self, blocks):
        _, [extent], _ = parse(build({1: (0, [(bytes(blocks * BLOCK_BYTES), 0, 1)])}))
        assert len(extent.sums) == 8 * blocks

    def test_sums_of_several_extents_are_told_apart(self):
        large, small = bytes(BLOCK_BYTES + 1), b"small"
        pack = build({1: (0, [(small, 0, 1)]), 2: (0, [(large, 0, 1)]), 3: (0, [(small, 0, 1)])})
        _, extents, _ = parse(pack)
        assert [len(extent.sums) for extent in extents] == [8, 16, 8]
        assert extents[0].sums == extents[2].sums

    @given(
        st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=40),
        st.integers(1, 25),
        st.integers(1, 12),
    )
    def test_long_runs_are_split_between_messages(self, bodies, bytes_max, messages_max):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pack_builder, "EXTENT_BYTES_MAX", bytes_max)
            patch.setattr(pack_builder, "EXTENT_MESSAGES_MAX", messages_max)
            pack = build({4: (1000, [(body, at, at) for at, body in enumerate(bodies)])})
        footer, extents, _ = parse(pack)
        assert footer.messages == len(bodies)
        lengths = column(pack, footer.lengths_at, "I", footer.messages)
        at, message_at = 1000, 0
        for extent in extents:
            assert (extent.start, extent.message_at) == (at, message_at)
            own = lengths[message_at : message_at + extent.messages]
            assert sum(own) == extent.length
            assert extent.length <= bytes_max or extent.messages == 1
            assert extent.messages <= messages_max
            assert (extent.first_position, extent.last_position) == (
                message_at,
                message_at + extent.messages - 1,
            )
            at, message_at = extent.end, message_at + extent.messages
        assert at == 1000 + sum(map(len, bodies))
        for one, next_one in pairwise(extents):
            # None could have taken one message more.
            assert (
                one.length + lengths[next_one.message_at] > bytes_max
                or one.messages == messages_max
            )

    def test_limit_of_messages_applies_at_its_real_size(self):
        count = packs.EXTENT_MESSAGES_MAX + 1
        _, extents, _ = parse(build({1: (0, [(b"x", 0, 1)] * count)}))
        assert [extent.messages for extent in extents] == [packs.EXTENT_MESSAGES_MAX, 1]

    def test_extents_of_a_stream_are_back_to_back(self, monkeypatch):
        monkeypatch.setattr(pack_builder, "EXTENT_BYTES_MAX", 4)
        pack = build({1: (0, [(b"abc", 0, 1), (b"def", 0, 2)]), 2: (0, [(b"ghi", 0, 3)])})
        _, extents, _ = parse(pack)
        assert [len(list(some)) for _, some in groupby(extents, lambda each: each.stream)] == [2, 1]
        ends = [extent.data_at + extent.length for extent in extents]
        assert [HEADER_BYTES, *ends[:-1]] == [extent.data_at for extent in extents]


class TestDamage:
    @pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
    def test_every_flipped_byte_of_footer_directory_and_delta_is_noticed(self, flip):
        pack = build(SMALL, {1: b"row of one", 7: b"row"})
        footer, _, _ = parse(pack)
        for at in range(footer.directory_at, len(pack)):
            damaged = bytearray(pack)
            damaged[at] ^= flip
            with pytest.raises(PackFormatError):
                parse(bytes(damaged))

    def test_every_truncation_is_noticed(self):
        pack = build(SMALL, {1: b"row"})
        for size in range(len(pack)):
            with pytest.raises(PackFormatError):
                decode_footer(pack[:size][-FOOTER_BYTES:], size)

    def test_bytes_before_or_behind_are_noticed(self):
        pack = build(SMALL)
        for longer in (pack + b"\0", b"\0" + pack):
            with pytest.raises(PackFormatError):
                decode_footer(longer[-FOOTER_BYTES:], len(longer))

    def test_footer_of_another_pack_does_not_fit(self):
        one, other = build(SMALL), build(SMALL, {1: b"row"})
        swapped = one[:-FOOTER_BYTES] + other[-FOOTER_BYTES:]
        with pytest.raises(PackFormatError, match="bytes instead of"):
            decode_footer(swapped[-FOOTER_BYTES:], len(swapped))

    def test_blocks_of_one_pack_never_pass_for_those_of_another(self):
        _, [one, _], _ = parse(build(SMALL, salt=1))
        _, [other, _], _ = parse(build(SMALL, salt=2))
        assert one.sums != other.sums
        assert one.index_sum != other.index_sum

    def test_unknown_version_with_a_sound_footer_is_named(self):
        pack = bytearray(build(SMALL))
        body = slice(len(pack) - FOOTER_BYTES, len(pack) - 8)
        pack_into("<I", pack, body.start + 8, FORMAT_VERSION + 1)
        pack_into("<Q", pack, body.stop, xxh3_64_intdigest(pack[body]))
        with pytest.raises(UnknownPackVersionError, match="2"):
            decode_footer(bytes(pack[-FOOTER_BYTES:]), len(pack))

    def test_directory_that_does_not_fit_its_footer_is_refused(self):
        pack = build(SMALL)
        footer, _, _ = parse(pack)
        read = part(pack, footer.directory_at, footer.delta_at, footer.directory_sum)
        for field, wrong in (("messages", 4), ("data_end", 29), ("blocks", 3)):
            with pytest.raises(PackFormatError, match="its directory does not"):
                list(directory_in(read, footer._replace(**{field: wrong})))

    def test_header_names_the_format_too(self):
        assert HEADER.unpack(PackBuilder.header()) == (MAGIC, FORMAT_VERSION, 0)
        assert Struct("<8sII").size == HEADER_BYTES
