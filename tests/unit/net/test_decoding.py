"""Content encodings: what was compressed comes back, in bounded pieces, or is an error."""

import gzip
import random
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import OutboundError
from holdfast.net.decoding import PIECE_BYTES_MAX, decoder_for


def bare(data):
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


ENCODINGS = {
    "gzip": ("gzip", gzip.compress),
    "zlib": ("deflate", zlib.compress),
    "bare": ("deflate", bare),
}
each_encoding = pytest.mark.parametrize(("name", "compress"), ENCODINGS.values(), ids=ENCODINGS)


def decoded(name, chunks, bytes_max=PIECE_BYTES_MAX):
    decoder = decoder_for(name)
    pieces = [piece for chunk in chunks for piece in decoder.feed(chunk, bytes_max)]
    decoder.finish()
    assert all(0 < len(piece) <= bytes_max for piece in pieces)
    return b"".join(pieces)


def cut(data, places):
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


@each_encoding
@given(
    data=st.binary(max_size=2000) | st.binary(min_size=1, max_size=9).map(lambda each: each * 3000),
    places=st.lists(st.integers(0, 10_000), max_size=6),
    bytes_max=st.integers(1, 5000),
)
def test_what_was_compressed_comes_back_however_it_is_cut(name, compress, data, places, bytes_max):
    assert decoded(name, cut(compress(data), places), bytes_max) == data


@given(
    st.lists(st.binary(max_size=50), min_size=1, max_size=5),
    st.lists(st.integers(0, 10_000), max_size=6),
    st.integers(0, 20),
)
def test_gzip_may_have_several_members(parts, places, padding):
    data = b"".join(gzip.compress(part) for part in parts) + bytes(padding)
    assert decoded("gzip", cut(data, places)) == b"".join(parts)


@each_encoding
def test_every_byte_alone(name, compress):
    data = b"data: hello\n\n" * 20
    assert decoded(name, [bytes([byte]) for byte in compress(data)]) == data


@each_encoding
def test_what_is_cut_short_is_an_error(name, compress):
    data = compress(b"data: hello\n\n" * 20)
    for length in range(1, len(data)):
        with pytest.raises(OutboundError):
            decoded(name, [data[:length]])


@each_encoding
def test_no_bytes_are_no_content(name, compress):
    assert decoded(name, []) == b""
    assert decoded(name, [b"", b""]) == b""


@pytest.mark.parametrize("name", ["gzip", "deflate"])
@pytest.mark.parametrize(
    "data", [b"hello, this is plain text", b"\xff" * 30, b"\x1f\x8b\x08garbage garbage garbage"]
)
def test_what_is_not_encoded_is_an_error(name, data):
    with pytest.raises(OutboundError, match=f"{name} encoding"):
        decoded(name, [data])


def test_a_wrong_checksum_is_an_error():
    for name, compress in (("gzip", gzip.compress), ("deflate", zlib.compress)):
        data = bytearray(compress(b"hello"))
        data[-5 if name == "gzip" else -1] ^= 1
        with pytest.raises(OutboundError, match="damaged"):
            decoded(name, [bytes(data)])


@each_encoding
@pytest.mark.parametrize("apart", [True, False])
def test_something_behind_the_end_is_an_error(name, compress, apart):
    data = [compress(b"hello"), b"and more"]
    with pytest.raises(OutboundError):
        decoded(name, data if apart else [b"".join(data)])


@each_encoding
def test_a_bomb_goes_off_in_small_pieces(name, compress):
    """A thousand times its size, but only as much of it as is asked for."""
    bomb = compress(bytes(64 * 1024 * 1024))
    decoder = decoder_for(name)
    size = 0
    for piece in decoder.feed(bomb):
        assert len(piece) <= PIECE_BYTES_MAX
        size += len(piece)
        if size > 1_000_000:
            break
    assert 1_000_000 < size <= 1_000_000 + PIECE_BYTES_MAX


@each_encoding
def test_what_is_flushed_is_there_at_once(name, compress):
    wbits = {"gzip": 31, "zlib": 15, "bare": -15}[
        next(key for key, value in ENCODINGS.items() if value == (name, compress))
    ]
    compressor = zlib.compressobj(wbits=wbits)
    decoder = decoder_for(name)
    noise = random.Random(1)
    for _ in range(20):
        event = b"data: %b\n\n" % noise.randbytes(40).hex().encode()
        chunk = compressor.compress(event) + compressor.flush(zlib.Z_SYNC_FLUSH)
        assert b"".join(decoder.feed(chunk)) == event
    assert list(decoder.feed(compressor.flush())) == []
    decoder.finish()


@pytest.mark.parametrize(
    ("value", "decodes"),
    [
        ("", False),
        ("identity", False),
        (" Identity , ", False),
        ("gzip", True),
        ("X-GZIP", True),
        ("deflate", True),
        ("gzip, identity", True),
        ("br", False),
        ("zstd", False),
        ("gzip, br", False),
        ("gzip, gzip", False),
        ("deflate, gzip", False),
        ("something", False),
    ],
)
def test_which_encodings_are_undone(value, decodes):
    assert (decoder_for(value) is not None) is decodes
