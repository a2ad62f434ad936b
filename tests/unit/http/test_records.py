"""The hot part of a scan while the log and its streams go on."""

import asyncio
import base64
import json

import pytest

from holdfast.engine import journal
from holdfast.errors import StoreError
from holdfast.storage.cold import ColdReader
from tests.unit.engine.tiered import MIB, Tiered
from tests.unit.http.apps import Served
from tests.unit.storage.ranges import HeldRanges

RECORDS = "/demo/streams/records"


@pytest.fixture
def served(tmp_path):
    """What is read from packs comes when the test wants it."""
    engine = Tiered(tmp_path)
    served = Served(engine)
    served.held = HeldRanges(engine.store)
    engine.shard.reader.cold = ColdReader(engine.catalog, served.held, 10 * MIB)
    yield served
    engine.close()


def write(served, *names):
    """A batch for each: streams with two messages, which are in packs."""
    for name in names:
        served.engine.committed(served.engine.create(name, body=b"one"))
    for name in names:
        served.engine.committed(served.engine.append(b"two", name=name))
    served.engine.flush()


def records(served, meanwhile):
    """All messages, of an answer during which something happens before packs are read."""

    async def ask():
        slot = served.ask("GET", RECORDS)
        meanwhile()
        for _ in range(100):
            await served.settle()
            served.held.answer_all()
        return slot

    slot = asyncio.run(ask())
    assert slot.ended, "the answer broke off"
    assert slot.status == 200
    lines = [json.loads(line) for line in slot.body.splitlines()]
    return [
        (line["stream_id"], line["offset"], base64.b64decode(line["payload"])) for line in lines
    ]


def of(name):
    return [(name, 0, b"one"), (name, 3, b"two")]


def in_order(found):
    return sorted(found)


def test_all_there_is(served):
    write(served, "demo/a", "demo/b", "other/c")
    assert in_order(records(served, lambda: None)) == of("a") + of("b")


def test_journal_that_is_trimmed_before_the_first_line(served, monkeypatch):
    write(served, "demo/a", "demo/b")
    monkeypatch.setattr(journal, "KEPT_ENTRIES", 3)

    def trim():
        write(served, "other/c", "other/d")
        assert served.shard.state.journal.earliest >= 4

    assert in_order(records(served, trim)) == of("a") + of("b")


def test_what_comes_later_is_for_the_next_scan(served):
    write(served, "demo/a")
    assert records(served, lambda: write(served, "demo/b")) == of("a")


@pytest.mark.parametrize("deleted", ["demo/a", "demo/b", "demo/c"])
def test_stream_that_is_deleted_meanwhile(served, deleted):
    """The others are told all the same."""
    names = ["demo/a", "demo/b", "demo/c"]
    write(served, *names)
    found = records(served, lambda: served.engine.committed(served.engine.delete(deleted)))
    names.remove(deleted)
    assert in_order(found) == [line for name in names for line in of(name[5:])]


def during_cold_read(served, name, change):
    """Have something happen while the packs of a stream are read."""

    async def ask():
        slot = served.ask("GET", f"{RECORDS}?prefix={name}")
        await served.settle()
        assert served.held.asked, "it is not read from packs"
        change()
        for _ in range(20):
            served.held.answer_all()
            await served.settle()
        return slot

    return asyncio.run(ask())


def test_stream_that_is_deleted_while_its_packs_are_read(served):
    write(served, "demo/a", "demo/ab")
    slot = during_cold_read(
        served, "a", lambda: served.engine.committed(served.engine.delete("demo/a"))
    )
    assert slot.ended
    assert slot.status == 200
    assert {json.loads(line)["stream_id"] for line in slot.body.splitlines()} == {"ab"}


def test_stream_that_is_trimmed_while_its_packs_are_read(served):
    write(served, "demo/a", "demo/ab")

    def trim():
        served.engine.committed(served.engine.publish(6, "demo/a"))
        while served.held.asked:
            served.held.answer(outcome=StoreError("swept already"))

    slot = during_cold_read(served, "a", trim)
    assert slot.ended
    assert slot.status == 200
    assert {json.loads(line)["stream_id"] for line in slot.body.splitlines()} == {"ab"}


def test_append_that_is_trimmed_in_part_while_its_packs_are_read(served):
    """What is left of it is told."""
    engine = served.engine
    engine.create("demo/a", "application/json", body=b"[1,22,333]")
    engine.flush()

    def trim():
        engine.committed(engine.publish(2, "demo/a"))
        while served.held.asked:
            served.held.answer(outcome=StoreError("swept already"))

    slot = during_cold_read(served, "a", trim)
    assert slot.ended
    lines = [json.loads(line) for line in slot.body.splitlines()]
    found = [(line["offset"], base64.b64decode(line["payload"])) for line in lines]
    assert found == [(2, b"22"), (5, b"333")]


def test_source_that_is_there_for_its_forks_only(served):
    write(served, "demo/a")
    served.engine.committed(served.engine.fork("demo/fork", "demo/a", body=b"own"))
    served.engine.committed(served.engine.delete("demo/a"))
    assert records(served, lambda: None) == [("fork", 6, b"own")]


def test_plan_while_everything_is_flushed(served, monkeypatch):
    """A flush while packs are divided must not take hot streams from the plan."""
    write(served, "demo/a")
    served.engine.committed(served.engine.create("demo/b", body=b"hot"))
    monkeypatch.setattr(journal, "KEPT_ENTRIES", 3)

    async def ask():
        slot = served.ask("GET", "/demo/streams/scan")
        # Now it waits for the catalog.
        await asyncio.sleep(0)
        assert not slot.ended
        write(served, "other/c", "other/d")
        assert served.shard.state.journal.earliest >= 4
        return await served.answered(slot)

    plan = json.loads(asyncio.run(ask()).body)
    assert [each["first_stream_id"] for each in plan["partitions"]] == ["a"]
    assert [each["last_stream_id"] for each in plan["hot"]] == ["b"]


@pytest.mark.parametrize("target", ["/demo/streams/scan", "/demo/streams/scan/ranges"])
def test_catalog_that_cannot_be_read_is_an_answer(served, target):
    write(served, "demo/a")
    with served.engine.writer.transaction() as connection:
        connection.execute("ALTER TABLE extents RENAME TO elsewhere")

    async def ask():
        return await served.answered(served.ask("GET", target))

    slot = asyncio.run(ask())
    assert not slot.aborted
    assert slot.status >= 500
    assert slot.fields["content-type"] == "application/json"
    assert slot.code == "catalog_damaged"


@pytest.mark.parametrize("part", ["scan", "scan/forks", "scan/inherited", "records"])
def test_server_in_memory_says_what_it_has_forgotten(monkeypatch, part):
    """Its journal is all that it has to find streams by."""
    monkeypatch.setattr(journal, "KEPT_ENTRIES", 3)
    served = Served()
    for name in ("demo/a", "demo/b", "demo/c", "demo/d"):
        served.engine.committed(served.engine.create(name, body=b"one"))

    async def ask(after):
        return await served.answered(served.ask("GET", f"/demo/streams/{part}?after={after}"))

    slot = asyncio.run(ask(0))
    assert (slot.status, slot.fields["changes-earliest-cursor"]) == (410, f"{1:020}")
    assert asyncio.run(ask(1)).status == 200
