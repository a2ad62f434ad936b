"""Batches while the log fails, and what is kept from whom meanwhile."""

import asyncio
import json
from functools import wraps

import msgspec
import pytest

from holdfast.errors import StoreError
from holdfast.http import publishing
from holdfast.protocol.headers import TTL_S_MAX
from holdfast.protocol.parts import APPENDS_MAX, PartAppend, encode_append, split_appends
from holdfast.storage.cold import ColdReader
from tests.unit.engine.driver import COMMITTED, FAILED, UNKNOWN, Driver
from tests.unit.engine.tiered import Tiered
from tests.unit.http.apps import Served
from tests.unit.storage.ranges import HeldRanges

JSON = "application/json"
PART = "part-0123456789abcdef"


def stage(served, *appends, part=PART, seq=0, **fields):
    body = b"".join(map(encode_append, appends))
    slot = served.ask("POST", f"/v1/batch/part?part={part}&seq={seq}", body, **fields)
    served.engine.commit()
    return slot


def publish(served, size_bytes, *parts, epoch=0, **fields):
    listed = [{"id": part, "bytes": size_bytes} for part in parts or [PART]]
    body = {"producer_id": "p", "epoch": epoch, "content_type": JSON, "parts": listed, **fields}
    return served.ask("POST", "/v1/batch", json.dumps(body).encode())


async def answered(served, slot):
    """Everything is committed from now on."""
    for _ in range(100):
        served.engine.commit()
        await served.settle()
        served.clock.advance(1.0)
        if slot.done:
            return slot
    raise AssertionError("no answer")


def staged(served, streams=3):
    appends = [PartAppend(f"demo/s{at % streams}", b"[%d]" % at) for at in range(9)]
    slot = stage(served, *appends)
    assert slot.status == 204
    return int(slot.fields["stream-next-offset"])


def stored(served, streams=3):
    return [served.engine.read(f"demo/s{at}") for at in range(streams)]


WHOLE = [b"0\x1e3\x1e6\x1e", b"1\x1e4\x1e7\x1e", b"2\x1e5\x1e8\x1e"]


def test_appends_in_parts():
    appends = [
        PartAppend("demo/é", b"[1]"),
        PartAppend("demo/b", b"onetwo", (3, 3)),
        PartAppend("demo/c", b"x" * 1000, (1000,)),
    ]
    data = b"".join(map(encode_append, appends))
    assert split_appends(data) == (appends, len(data))
    found, used = split_appends(data[:-1])
    assert (found, data[used:]) == (appends[:2], encode_append(appends[2]))


def in_event_loop(test):
    @wraps(test)
    def run(*args, **named):
        asyncio.run(test(*args, **named))

    return run


@pytest.mark.parametrize("outcome", [FAILED, UNKNOWN])
@pytest.mark.parametrize("visit", range(4))
@in_event_loop
async def test_a_log_that_fails_once(outcome, visit):
    """At the decision, at the appends, at the end: the batch is there once, and confirmed."""
    served = Served(Driver(batch_bytes_max=200))
    size_bytes = staged(served)
    slot = publish(served, size_bytes)
    for _ in range(visit):
        await served.settle()
        served.engine.answer(COMMITTED)
    await served.settle()
    served.engine.answer(outcome, stored=True)
    if outcome is UNKNOWN:
        # Longer than replies wait, so that it is published again.
        served.clock.advance(6.0)
        await served.settle()
    assert (await answered(served, slot)).json == {"published": True, "repeated": False}
    assert stored(served) == WHOLE
    again = await answered(served, publish(served, size_bytes))
    assert again.json == {"published": True, "repeated": True}
    restarted = served.engine.restart()
    assert [restarted.read(f"demo/s{at}") for at in range(3)] == WHOLE
    assert not restarted.listed("__parts/")


@in_event_loop
async def test_a_batch_under_way_keeps_its_streams_open_and_its_parts():
    served = Served()
    size_bytes = staged(served)
    await answered(served, served.ask("PUT", "/v1/stream/demo/s1", content_type=JSON))
    slot = publish(served, size_bytes, close_streams=True)
    await served.settle()
    close = {"stream_closed": "true"}
    assert served.ask("POST", "/v1/stream/demo/s1", **close).code == "unavailable"
    await answered(served, served.ask("PUT", "/v1/stream/demo/other", content_type=JSON))
    assert served.ask("DELETE", f"/v1/batch/part?part={PART}").code == "batch_conflict"
    assert stage(served, PartAppend("demo/s0", b"1"), seq=1).code == "batch_conflict"
    assert (await answered(served, slot)).status == 200
    assert served.shard.find("demo/s1").closed
    assert stored(served) == WHOLE


@in_event_loop
async def test_nobody_creates_a_stream_of_a_batch_meanwhile():
    """One that is closed, or of another type, would not take what the batch has for it."""
    served = Served()
    size_bytes = staged(served)
    slot = publish(served, size_bytes)
    await served.settle()
    other = {"content_type": "text/plain", "stream_closed": "true"}
    assert served.ask("PUT", "/v1/stream/demo/s1", **other).code == "unavailable"
    assert (await answered(served, slot)).status == 200
    assert stored(served) == WHOLE
    assert served.ask("PUT", "/v1/stream/demo/s1", content_type=JSON).status == 200


@in_event_loop
async def test_names_of_all_batches_under_way_are_limited(monkeypatch):
    monkeypatch.setattr(publishing, "NAMES_MAX", 4)
    served = Served()
    size_bytes = staged(served)
    stage(served, PartAppend("demo/a", b"1"), PartAppend("demo/b", b"1"), part="2" * 16)
    first = publish(served, size_bytes)
    await served.settle()
    second = publish(served, 36, "2" * 16, producer_id="q")
    assert (await answered(served, second)).code == "overloaded"
    assert (await answered(served, first)).status == 200
    again = publish(served, 36, "2" * 16, producer_id="q")
    assert (await answered(served, again)).status == 200


@in_event_loop
async def test_a_stream_deleted_after_the_decision_counts_as_deleted_after_the_batch():
    served = Served(Driver(batch_bytes_max=200))
    size_bytes = staged(served)
    slot = publish(served, size_bytes)
    await served.settle()
    # The decision, then the first appends.
    served.engine.answer(COMMITTED)
    await served.settle()
    served.engine.answer(COMMITTED)
    served.ask("DELETE", "/v1/stream/demo/s0")
    assert (await answered(served, slot)).status == 200
    assert [served.engine.exists(f"demo/s{at}") for at in range(3)] == [False, True, True]
    assert [served.engine.read(f"demo/s{at}") for at in (1, 2)] == WHOLE[1:]


@in_event_loop
async def test_a_deleted_stream_does_not_come_back_when_a_batch_is_published_again(monkeypatch):
    monkeypatch.setattr(publishing, "_PENDING_BYTES_MAX", 1)
    served = Served()
    slot = publish(served, staged(served))
    await served.settle()
    # The decision, and one append.
    for _ in range(2):
        served.engine.answer(COMMITTED)
        await served.settle()
    assert served.engine.read("demo/s0") == b"0\x1e"
    served.ask("DELETE", "/v1/stream/demo/s0")
    while served.engine.exists("demo/s0"):
        served.engine.answer(COMMITTED)
        await served.settle()
    served.engine.answer(FAILED)
    assert (await answered(served, slot)).status == 200
    assert [served.engine.exists(f"demo/s{at}") for at in range(3)] == [False, True, True]
    assert [served.engine.read(f"demo/s{at}") for at in (1, 2)] == WHOLE[1:]


@in_event_loop
async def test_parts_that_nobody_publishes_are_deleted_after_a_time():
    served = Served(part_ttl="3600")
    served.app.batches.start()
    staged(served)
    assert served.engine.listed("__parts/") == [f"__parts/{PART}"]
    served.clock.advance(3000)
    served.engine.commit()
    assert served.engine.listed("__parts/")
    served.clock.advance(1800)
    served.engine.commit()
    assert not served.engine.listed("__parts/")
    served.app.batches.stop()


@in_event_loop
async def test_quotas_are_checked_before_anything_is_stored():
    served = Served(bucket_bytes_max="10")
    slot = await answered(served, publish(served, staged(served)))
    assert slot.code == "quota_exceeded"
    served = Served(bucket_streams_max="2")
    slot = await answered(served, publish(served, staged(served)))
    assert slot.code == "quota_exceeded"
    assert served.engine.listed("demo/") == []


@in_event_loop
async def test_limits_of_a_request():
    """Beyond them a flush could not encode the stream, or the event loop would stop for seconds."""
    served = Served()
    append = PartAppend("demo/s0", b"1")
    assert stage(served, *[append] * (APPENDS_MAX + 1)).code == "payload_too_large"
    slot = stage(served, *[append] * APPENDS_MAX)
    assert slot.status == 204
    size_bytes = int(slot.fields["stream-next-offset"])
    assert publish(served, size_bytes, ttl=TTL_S_MAX + 1).code == "invalid_request"
    assert (await answered(served, publish(served, size_bytes, ttl=TTL_S_MAX))).status == 200


@in_event_loop
async def test_a_start_waits_for_the_store_to_continue_a_batch(tmp_path):
    """Nobody else would: its writer may be gone, and readers see a half of it."""
    engine = Tiered(tmp_path)
    served = Served(engine)
    staged(served)
    engine.flush()
    held = HeldRanges(engine.store)
    engine.shard.reader.cold = ColdReader(engine.catalog, held, 10_000)
    decision = publishing.Decision("p", 0, JSON, 0, parts=(PART,))
    document = {f"{publishing.DOCUMENTS}//p": msgspec.msgpack.encode(decision)}
    engine.shard.documents.commit(document, lambda *_: None, None)
    engine.commit()
    served.app.batches.start()
    for outcome in [StoreError("It does not respond.")] * 3 + [None] * 20:
        await served.settle()
        if held.asked:
            held.answer(outcome=outcome)
        served.clock.advance(1.0)
        engine.commit()
    assert stored(served) == WHOLE
    served.app.batches.stop()
    engine.close()
