"""Packs as the catalog takes them."""

from holdfast.format.pack_builder import PackBuilder
from holdfast.format.packs import PackMeta
from holdfast.objects.memory_objects import MemoryObjects
from holdfast.objects.pack_reader import Pack
from holdfast.storage.new_packs import found_pack, new_pack
from holdfast.testing import FakeClock
from tests.unit.format.test_packs import SALT, SMALL, index_of

NAME = "packs/some.pack"
ROWS = {1: b"row of one", 7: b"the row of seven"}


def test_pack_made_elsewhere_is_as_the_builder_knew_it():
    store = MemoryObjects(FakeClock())
    builder = PackBuilder(SALT, 3, 8)
    out = bytearray(builder.header())
    for number, (start, messages) in SMALL.items():
        data, index = index_of(messages)
        builder.add(number, start, data, index)
        out += data
    meta = PackMeta(77, has_delta=True)
    for part in builder.finish(meta, sorted(ROWS.items())):
        out += part
    store.put(NAME, out)
    expected = new_pack(NAME, len(out), builder, meta, len(ROWS))
    assert found_pack(Pack(store, NAME)) == expected
