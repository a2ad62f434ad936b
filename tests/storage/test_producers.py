"""Producers in packs and in the catalog: a flush writes what changed, and forgets idle ones."""

from contextlib import closing

import pytest

from holdfast.format.rows import decode_row
from holdfast.objects.pack_reader import Pack
from holdfast.storage.catalog import Catalog
from holdfast.storage.rebuild import build, rebuild, resolve, survey
from tests.producer_states import stored_producers
from tests.simulation.files import KilledError
from tests.storage.filled import Filled, killed_at

MANY = 2000
IDLE_S = 3600.0
# How many are kept, however long they are idle.
KEPT = 2


@pytest.fixture
def data(tmp_path):
    with closing(Filled(tmp_path, producers_max=2 * KEPT, producer_idle_s=IDLE_S)) as filled:
        filled.number = filled.create("s")
        yield filled


def produce(data, producer_id, epoch=0, seq=0):
    data.append(data.number, b"x", producer=(producer_id, epoch, seq))


def stored(data, path=None):
    """The last pair of each producer."""
    with closing(Catalog(path or data.path)) as catalog:
        found = stored_producers(catalog, data.number)
        count, _ = catalog.find_producer(data.number, b"")
    assert count == len(found)
    return {producer_id: state[:2] for producer_id, state in found.items()}


def rebuilt(data):
    path = data.path.with_name("other.sqlite")
    path.unlink(missing_ok=True)
    build(data.store, resolve(survey(data.store)), path, 0)
    return path


def row_of(data, pack):
    [(_, row)] = Pack(data.store, pack).delta().items()
    return decode_row(row)


def test_a_flush_writes_only_the_producers_that_changed(data):
    for at in range(MANY):
        produce(data, b"producer-%d" % at)
    [first] = data.flush()
    produce(data, b"producer-7", 0, 1)
    [second] = data.flush()
    data.append(data.number, b"y")
    [third] = data.flush()
    assert len(row_of(data, first).producers) == MANY
    assert row_of(data, second).producers.keys() == {b"producer-7"}
    assert row_of(data, third).producers is None
    assert len(data.store.objects[first][0]) > 20 * MANY
    assert max(len(data.store.objects[name][0]) for name in (second, third)) < 700
    [(size,)] = data._catalog.read("SELECT length(row) FROM streams")
    assert size < 100
    assert len(stored(data)) == MANY
    assert stored(data)[b"producer-7"] == (0, 1)
    assert data.verify().ok
    data.merge()
    assert data.verify().ok
    assert stored(data, rebuilt(data)) == stored(data)


def test_a_stream_with_few_forgets_none(data):
    for producer_id in (b"p", b"q"):
        produce(data, producer_id)
    data.flush()
    data.clock.advance(10 * IDLE_S)
    produce(data, b"q", 0, 1)
    data.flush()
    assert stored(data) == {b"p": (0, 0), b"q": (0, 1)}


def test_one_idle_for_long_is_forgotten_by_the_next_flush(data):
    for producer_id in (b"idle", b"again", b"busy"):
        produce(data, producer_id, 1)
    data.flush()
    data.clock.advance(IDLE_S / 2)
    produce(data, b"busy", 1, 1)
    data.flush()
    data.clock.advance(IDLE_S / 2)
    data.append(data.create("another"), b"x", producer=(b"idle", 0, 0))
    data.flush()
    assert b"idle" in stored(data)
    # It was idle for as long as the other, and writes in this flush.
    produce(data, b"again", 1, 1)
    data.flush()
    assert stored(data) == {b"again": (1, 1), b"busy": (1, 1)}
    assert data.verify().ok
    # The packs have it until they are merged: a rebuild remembers it, until the next flush.
    assert stored(data, rebuilt(data)) == {b"idle": (1, 0), b"again": (1, 1), b"busy": (1, 1)}
    data.merge()
    assert stored(data, rebuilt(data)) == {b"again": (1, 1), b"busy": (1, 1)}
    assert data.verify().ok


def test_the_times_of_the_log_decide_and_not_the_clock(data):
    for producer_id in (b"p", b"q"):
        produce(data, producer_id)
    data.flush()
    produce(data, b"r")
    data.seal()
    data.clock.advance(10 * IDLE_S)
    data.flush_again()
    assert stored(data).keys() == {b"p", b"q", b"r"}


def test_a_flush_that_is_killed_forgets_and_stores_nothing(data):
    produce(data, b"idle")
    produce(data, b"lazy")
    data.flush()
    before = stored(data)
    assert len(before) == KEPT
    data.clock.advance(IDLE_S + 1)
    produce(data, b"new")
    data.upload_only()
    assert stored(data) == before
    with killed_at("flush.committed"), pytest.raises(KilledError):
        data.flush_again()
    assert stored(data) == {b"new": (0, 0)}
    data.flush_again()
    assert stored(data) == {b"new": (0, 0)}
    assert data.verify().ok


def test_a_deleted_stream_leaves_none(data):
    produce(data, b"p")
    data.flush()
    data.delete(data.number)
    data.flush()
    assert data._catalog.read("SELECT * FROM producers") == []
    with closing(Catalog(rebuilt(data))) as catalog:
        assert catalog.read("SELECT * FROM producers") == []


def test_a_rebuilt_catalog_goes_on(data):
    produce(data, b"p", 3)
    produce(data, b"q")
    data.flush()
    produce(data, b"p", 3, 1)
    data.flush()
    data.close()
    data.path.unlink()
    rebuild(data.store, resolve(survey(data.store)), data.path, 0)
    with closing(Filled.over(data)) as again:
        again.number = data.number
        produce(again, b"q", 0, 1)
        again.flush()
        assert stored(again) == {b"p": (3, 1), b"q": (0, 1)}
        assert again.verify().ok


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE producers SET seq = 9 WHERE id = x'70'", "1 producers of stream 100000 are not"),
        ("DELETE FROM producers WHERE id = x'70'", "1 producers of stream 100000 are not the"),
        ("UPDATE streams SET producers = 7", "stream 100000 says it has 7 producers, and has 2"),
        (
            "INSERT INTO producers VALUES (9, x'70', 0, 0, 0, x'')",
            "1 producers wrote to stream 9, ",
        ),
    ],
)
def test_what_is_wrong_with_them_is_found(data, change, said):
    produce(data, b"p")
    produce(data, b"q")
    data.flush()
    data.change(change)
    [found] = data.verify().of("damage")
    assert said in found.what
