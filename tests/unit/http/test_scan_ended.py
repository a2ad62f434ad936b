"""Streams that are gone for readers, and that packs and journal still hold: no scan gives them."""

import asyncio
import json
import threading
from array import array

import msgspec
import pytest

from holdfast.errors import UnavailableError
from holdfast.format.packs import PackStreams
from holdfast.http.scan import in_thread
from holdfast.protocol.headers import OFFSET_MAX
from holdfast.storage import catalog_scan
from holdfast.storage.catalog_scan import CatalogScan, Scanned
from tests.unit.engine.tiered import Tiered
from tests.unit.http.apps import Served

STREAMS = "/demo/streams"


@pytest.fixture
def served(tmp_path):
    engine = Tiered(tmp_path)
    yield Served(engine)
    engine.close()


def get(served, below):
    async def ask():
        return await served.answered(served.ask("GET", STREAMS + below))

    slot = asyncio.run(asyncio.wait_for(ask(), 10))
    assert slot.status == 200, slot.body
    return slot.body


def given(served):
    """The ids of the streams that each kind of request gives."""
    pack, *_ = json.loads(get(served, "/scan?by=packs"))["packs"]
    streams = msgspec.msgpack.decode(
        get(served, f"/scan/pack?pack={pack['name']}"), type=PackStreams
    )
    gone = {
        number
        for number, start in zip(
            array("Q", streams.hidden), array("q", streams.visible_from), strict=True
        )
        if start == OFFSET_MAX
    }
    changes = json.loads(get(served, "/changes"))["changes"]
    return {
        "ranges": ids(get(served, "/scan/ranges").splitlines()),
        "records": ids(get(served, "/records").splitlines()),
        "changes": {each["stream_id"] for each in changes if not each.get("deleted")},
        "packs": {
            name.partition("/")[2] for name, number in served.numbers.items() if number not in gone
        },
    }


def ids(lines):
    return {json.loads(line)["stream_id"] for line in lines}


@pytest.fixture
def filled(served):
    """Two streams with messages in a pack and more that are not, at half past a sweep."""
    served.clock.advance(0.5)
    engine = served.engine
    engine.committed(engine.create("demo/kept", body=b"cold"))
    engine.committed(engine.create("demo/brief", body=b"cold", ttl_s=1))
    engine.flush()
    for name in ("demo/kept", "demo/brief"):
        engine.committed(engine.append(b"hot", name=name))
    served.numbers = {
        name: served.shard.state.find(name).number for name in ("demo/kept", "demo/brief")
    }
    return served


def everywhere(*stream_ids):
    return {key: set(stream_ids) for key in ("ranges", "records", "changes", "packs")}


def test_while_they_exist(filled):
    assert given(filled) == everywhere("kept", "brief")


def test_from_the_moment_their_time_is_up(filled):
    filled.clock.advance(1.2)
    assert "demo/brief" in filled.shard.state.by_name, "it is not removed yet"
    assert given(filled) == everywhere("kept")


def test_from_the_moment_their_time_is_up_in_packs_alone(filled):
    filled.engine.flush()
    filled.shard.state.evict(filled.shard.state.by_name["demo/brief"])
    filled.clock.advance(1.2)
    assert "demo/brief" not in filled.shard.state.by_name
    found = given(filled)
    assert (found["ranges"], found["packs"]) == ({"kept"}, {"kept"})


def test_from_the_moment_they_are_deleted(filled):
    engine = filled.engine
    engine.committed(engine.delete(name="demo/brief"))
    assert filled.shard.catalog.find_name("demo/brief") is not None, "the catalog still has it"
    assert given(filled) == everywhere("kept")
    engine.flush()
    assert given(filled)["ranges"] == {"kept"}


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


def test_the_thread_of_a_client_that_has_left_ends(filled):
    """Otherwise this test would not."""
    scan = CatalogScan(filled.shard.catalog.path, Scanned("demo/", 0, 99))
    begun = threading.Event()

    def work():
        with scan.opened():
            begun.set()
            scan._all(ENDLESS)

    async def leave():
        task = asyncio.create_task(in_thread(scan, work))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    with pytest.raises(UnavailableError):
        next(scan.ranges())


def test_ranges_end_between_two_pages_for_a_client_that_has_left(filled, monkeypatch):
    monkeypatch.setattr(catalog_scan, "_SCAN_STREAMS", 1)
    scan = CatalogScan(filled.shard.catalog.path, Scanned("demo/", 0, 99))
    ranges = scan.ranges()
    assert next(ranges).stream_id == "demo/brief"
    scan.cancel()
    with pytest.raises(UnavailableError):
        next(ranges)
