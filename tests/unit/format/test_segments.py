"""Segment headers and batch frames: every damage shows, and no payload passes for a batch."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from holdfast.format.segments import (
    FORMAT_VERSION,
    FRAME_BYTES,
    HEADER_BYTES,
    DamagedSegmentError,
    SegmentHeader,
    UnknownVersionError,
    decode_batch,
    decode_header,
    encode_batch,
    encode_header,
    find_batch,
    iter_batches,
)

u64 = st.integers(0, 2**64 - 1)
headers = st.builds(SegmentHeader, u64, u64, u64, u64)
bodies = st.binary(max_size=120)
HEADER = SegmentHeader(0x1122334455667788, 42, 7, 4096)
SALT, OTHER_SALT = 0xDEADBEEF, 0xFEEDFACE


def flips(data):
    """Every copy of the bytes with exactly one bit changed."""
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            yield bytes(flipped)


@given(headers, st.binary(max_size=50))
def test_header_round_trip(header, rest):
    encoded = encode_header(header)
    assert len(encoded) == HEADER_BYTES
    assert decode_header(encoded + rest) == header


def test_every_flipped_bit_of_a_header_is_detected():
    for damaged in flips(encode_header(HEADER)):
        assert decode_header(damaged) is None


def test_every_truncation_of_a_header_is_detected():
    encoded = encode_header(HEADER)
    for size in range(HEADER_BYTES):
        assert decode_header(encoded[:size]) is None


def test_zeros_are_no_header():
    assert decode_header(bytes(HEADER_BYTES)) is None


def test_sound_header_of_another_version_is_named():
    packed = pack("<8sIIQQQQ", b"HOLDFAST", FORMAT_VERSION + 1, 0, *HEADER)
    encoded = packed + pack("<Q", xxh3_64_intdigest(packed))
    with pytest.raises(UnknownVersionError, match="2"):
        decode_header(encoded.ljust(HEADER_BYTES, b"\0"))


@given(u64, u64, bodies, st.binary(max_size=20), st.binary(max_size=20))
def test_batch_round_trip_at_any_byte(salt, position, body, before, after):
    encoded = encode_batch(salt, position, body)
    frame = decode_batch(before + encoded + after, len(before), salt)
    assert frame is not None
    assert (frame.position, frame.body) == (position, body)
    assert frame.end == len(before) + len(encoded) == len(before) + FRAME_BYTES + len(body)


@pytest.mark.parametrize("body", [b"", b"x", b"a body of some bytes" * 3])
def test_every_flipped_bit_of_a_batch_is_detected(body):
    for damaged in flips(encode_batch(SALT, 5, body)):
        assert decode_batch(damaged, 0, SALT) is None


def test_every_truncation_of_a_batch_is_detected():
    encoded = encode_batch(SALT, 5, b"body")
    for size in range(len(encoded)):
        assert decode_batch(encoded[:size], 0, SALT) is None


@given(u64, u64, u64, bodies)
def test_batch_of_another_salt_is_no_batch(salt, other, position, body):
    if salt != other:
        assert decode_batch(encode_batch(salt, position, body), 0, other) is None


@given(st.lists(bodies, min_size=1, max_size=4), st.binary(max_size=60))
def test_find_batch_finds_the_first_sound_one(batch_bodies, garbage):
    frames = [encode_batch(SALT, at + 1, body) for at, body in enumerate(batch_bodies)]
    data = garbage + b"".join(frames)
    assert find_batch(data, 0, SALT) == len(garbage)
    assert find_batch(data, len(garbage) + 1, SALT) == (
        len(garbage) + len(frames[0]) if len(frames) > 1 else None
    )


def test_find_batch_passes_by_a_damaged_one():
    first, second = encode_batch(SALT, 1, b"first"), encode_batch(SALT, 2, b"second")
    for damaged in flips(first):
        assert find_batch(damaged + second, 0, SALT) == len(first)


@given(st.lists(st.tuples(u64, bodies), min_size=1, max_size=4))
def test_payloads_that_hold_whole_batches_fool_nobody(inner):
    forged = b"".join(
        encode_batch(OTHER_SALT, position, encode_batch(OTHER_SALT, 1, body))
        for position, body in inner
    )
    batch = encode_batch(SALT, 1, forged)
    assert find_batch(batch, 1, SALT) is None
    torn = batch[:-1]
    assert find_batch(torn, 0, SALT) is None
    damaged = torn + bytes([batch[-1] ^ 1])
    assert find_batch(damaged + encode_batch(SALT, 2, b"next"), 0, SALT) == len(damaged)


def test_length_that_was_never_written_is_not_trusted():
    encoded = bytearray(encode_batch(SALT, 1, b"x" * 40))
    encoded[4:8] = (4).to_bytes(4, "little")
    assert decode_batch(bytes(encoded), 0, SALT) is None


def test_many_magic_words_are_no_batch():
    data = encode_batch(OTHER_SALT, 1, b"")[:4] * 20_000
    assert find_batch(data, 0, SALT) is None


class TestIteration:
    """All batches of a segment, or the byte where it is not what it should be."""

    FIRST = 42
    BODIES = (b"alpha", b"", b"gamma" * 10)

    def segment(self, *positions):
        positions = positions or range(self.FIRST, self.FIRST + 3)
        frames = [
            encode_batch(HEADER.salt, position, body)
            for position, body in zip(positions, self.BODIES, strict=True)
        ]
        return encode_header(HEADER) + b"".join(frames)

    def read(self, data, end):
        return [(frame.position, frame.body) for frame in iter_batches(data, HEADER, end)]

    @property
    def whole(self):
        return [(self.FIRST + at, body) for at, body in enumerate(self.BODIES)]

    @pytest.mark.parametrize("form", [bytes, memoryview])
    def test_batches_up_to_the_end(self, form):
        data = self.segment()
        assert self.read(form(data + b"what lies beyond"), len(data)) == self.whole
        assert self.read(form(data), HEADER_BYTES) == []

    def test_bodies_are_bytes_of_their_own(self):
        data = bytearray(self.segment())
        frames = list(iter_batches(memoryview(data), HEADER, len(data)))
        data[:] = bytes(len(data))
        assert [frame.body for frame in frames] == list(self.BODIES)
        assert all(type(frame.body) is bytes for frame in frames)

    @pytest.mark.parametrize("rest", [b"", b"rubbish", bytes(500)])
    def test_without_an_end_they_go_on_while_they_are_sound(self, rest):
        assert self.read(self.segment() + rest, None) == self.whole

    def test_every_flipped_bit_is_named_with_its_batch(self):
        data = self.segment()
        sound = list(iter_batches(data, HEADER, len(data)))
        starts = [HEADER_BYTES, *(frame.end for frame in sound)]
        for number, damaged in enumerate(flips(data[HEADER_BYTES:])):
            at = HEADER_BYTES + number // 8
            start = max(start for start in starts if start <= at)
            with pytest.raises(ValueError, match=f"^byte {start}: there is no valid batch"):
                self.read(data[:HEADER_BYTES] + damaged, len(data))

    def test_every_end_inside_a_batch_is_refused(self):
        data = self.segment()
        ends = {HEADER_BYTES, *(frame.end for frame in iter_batches(data, HEADER, len(data)))}
        for end in set(range(len(data) + 10)) - ends:
            with pytest.raises(DamagedSegmentError, match="byte"):
                self.read(data, end)

    @pytest.mark.parametrize("positions", [(42, 44, 45), (42, 42, 43), (41, 42, 43), (43, 44, 45)])
    @pytest.mark.parametrize("known", [True, False])
    def test_batch_out_of_order_is_refused(self, positions, known):
        data = self.segment(*positions)
        with pytest.raises(DamagedSegmentError, match=r"byte \d+: batch \d+ where \d+ belongs"):
            self.read(data, len(data) if known else None)
