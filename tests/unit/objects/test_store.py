"""Markers: whose store it is."""

import pytest

from holdfast.errors import ObjectMissingError, UnknownFormatError
from holdfast.objects.store import MARKER, MemoryObjects, encode_marker, read_marker, store_owner
from holdfast.testing import FakeClock


@pytest.fixture
def store():
    return MemoryObjects(FakeClock())


def test_store_without_one_belongs_to_nobody(store):
    assert store_owner(store) == ""
    with pytest.raises(ObjectMissingError):
        read_marker(store)
    assert store.objects == {}


def test_what_is_written_is_read(store):
    store.put(MARKER, encode_marker("0a1b"))
    assert store_owner(store) == read_marker(store) == "0a1b"


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"format":1}', b'{"format":0,"id":"a"}'])
def test_what_is_no_marker_is_refused(store, text):
    store.put(MARKER, text)
    with pytest.raises(UnknownFormatError, match="is not a marker of Holdfast"):
        store_owner(store)


def test_later_format_is_refused(store):
    store.put(MARKER, b'{"format":2,"id":"a","more":1}')
    with pytest.raises(UnknownFormatError, match="is in format 2; this version knows 1"):
        store_owner(store)
