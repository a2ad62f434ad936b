"""Spools: what was written can be read back, wherever it is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import StoreError
from holdfast.objects.spool import FileSpool


@given(st.lists(st.binary(max_size=30), max_size=12), st.integers(0, 80), st.data())
def test_any_part_comes_back(pieces, held_bytes, data):
    spool = FileSpool(held_bytes)
    for piece in pieces:
        spool.write(piece)
    whole = b"".join(pieces)
    assert spool.read(0, len(whole)) == whole
    for _ in range(5):
        at = data.draw(st.integers(0, len(whole)))
        size = data.draw(st.integers(0, len(whole) + 10))
        assert spool.read(at, size) == whole[at : at + size]


def test_file_has_no_name(tmp_path):
    spool = FileSpool(10, tmp_path)
    spool.write(bytes(1000))
    assert list(tmp_path.iterdir()) == []
    assert spool.read(990, 20) == bytes(10)


def test_directory_that_cannot_be_written(tmp_path):
    spool = FileSpool(10, tmp_path / "none")
    spool.write(bytes(10))
    with pytest.raises(StoreError, match="none cannot be written: No such file"):
        spool.write(b"x")
