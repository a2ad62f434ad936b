"""Who is woken by a batch, when, and what is sent to whom."""

import json

import pytest

from holdfast.engine import journal
from holdfast.engine.state import State
from holdfast.engine.writes import AppendRequest
from holdfast.errors import StoreError
from holdfast.http import changes
from tests.unit.engine.driver import COMMITTED, TEXT
from tests.unit.http.apps import Served

ROUND = 32


class Reader:
    """Somebody who waits for the changes of a bucket."""

    def __init__(self, served, bucket):
        self._journal = served.shard.state.journal
        self.bucket = bucket
        self.after = self._journal.last
        self.woken_at = []

    def wake(self):
        self.woken_at.append(self.after)
        self.after = self._journal.last

    def finish(self):
        """Nothing to say."""


@pytest.fixture
def served():
    served = Served()
    for name in ("alpha/s", "other/s"):
        served.engine.committed(served.engine.create(name))
    return served


def append(served, *names):
    """Append to these streams in one batch."""
    for name in names:
        served.engine.append(b"x", name=name)
    served.engine.commit()


def follow(served, bucket, live="sse", after="now", **fields):
    return served.ask("GET", f"/{bucket}/streams/changes?live={live}&after={after}", **fields)


def events(slot):
    """What the events of a feed say: ids of streams, and the cursor."""
    found = []
    for event in slot.body.decode().split("\n\n"):
        lines = dict(line.split(":", 1) for line in event.splitlines() if line[:1] != ":")
        if lines:
            data = json.loads(lines["data"])
            assert lines["id"].strip() == data["next_cursor"]
            streams = [each["stream_id"] for each in data["changes"]]
            found.append((streams, int(data["next_cursor"])))
    return found


class TestWaking:
    def test_only_readers_of_buckets_that_were_touched(self, served):
        one, two = Reader(served, "alpha"), Reader(served, "other")
        for reader in (one, two):
            served.app.feed.add(reader)
        append(served, "alpha/s", "alpha/s")
        assert (len(one.woken_at), len(two.woken_at)) == (1, 0)
        append(served, "alpha/s", "other/s")
        assert (len(one.woken_at), len(two.woken_at)) == (2, 1)

    @pytest.mark.parametrize("ending", ["create", "delete", "expire"])
    def test_births_and_ends_touch_a_bucket(self, served, ending):
        engine = served.engine
        engine.committed(engine.create("alpha/short", ttl_s=1))
        one, two = Reader(served, "alpha"), Reader(served, "other")
        for reader in (one, two):
            served.app.feed.add(reader)
        if ending == "create":
            engine.create("alpha/new")
        elif ending == "delete":
            engine.delete("alpha/short")
        else:
            served.clock.advance(3)
        engine.commit()
        assert (len(one.woken_at), len(two.woken_at)) == (1, 0)

    def test_some_in_each_round_of_the_loop(self, served):
        readers = [Reader(served, "alpha") for _ in range(3 * ROUND + 4)]
        for reader in readers:
            served.app.feed.add(reader)
        served.engine.append(b"x", name="alpha/s")
        served.clock.run()
        served.engine.log.answer(COMMITTED)
        counts = []

        def count():
            counts.append(sum(bool(reader.woken_at) for reader in readers))
            if counts[-1] < len(readers):
                served.clock.call_soon(count)

        count()
        served.clock.run()
        assert counts == [ROUND, 2 * ROUND, 3 * ROUND, 3 * ROUND + 4]
        assert all(len(reader.woken_at) == 1 for reader in readers)

    def test_reader_that_leaves_before_its_turn(self, served):
        slots = [follow(served, "alpha") for _ in range(ROUND + 1)]
        served.engine.append(b"x", name="alpha/s")
        served.clock.run()
        served.engine.log.answer(COMMITTED)
        slots[-1].on_gone()
        served.clock.run()
        assert [len(events(slot)) for slot in slots] == [2] * ROUND + [1]
        assert len(served.app.feed) == ROUND

    def test_nobody_is_told_of_batches_once_all_have_left(self, served):
        readers = [Reader(served, bucket) for bucket in ("alpha", "alpha", "other")]
        for reader in readers:
            served.app.feed.add(reader)
        assert len(served.shard.watchers) == 1
        for reader in (*readers, *readers):
            served.app.feed.remove(reader)
        assert served.shard.watchers == []
        assert len(served.app.feed) == 0

    def test_place_moves_past_what_concerned_others(self, served):
        reader = Reader(served, "alpha")
        served.app.feed.add(reader)
        append(served, "other/s")
        append(served, "other/s")
        append(served, "alpha/s")
        last = served.shard.state.journal.last
        assert reader.woken_at == [last - 1]


class TestEvents:
    def test_readers_at_the_same_place_get_the_same_bytes(self, served):
        slots = [follow(served, "alpha") for _ in range(3)]
        for _ in range(2):
            append(served, "alpha/s")
            assert len({id(slot.pieces[-1]) for slot in slots}) == 1
        assert events(slots[0])[1:] == [(["s"], 3), (["s"], 4)]

    def test_readers_of_other_places_get_their_own(self, served):
        served.engine.committed(served.engine.create("alpha/t"))
        whole = follow(served, "alpha")
        part = served.ask("GET", "/alpha/streams/changes?live=sse&after=now&prefix=t")
        append(served, "alpha/s", "alpha/t")
        append(served, "alpha/s")
        append(served, "alpha/t")
        assert events(whole)[1:] == [(["s", "t"], 4), (["s"], 5), (["t"], 6)]
        assert events(part)[1:] == [(["t"], 4), (["t"], 6)]

    def test_reader_that_does_not_read_gets_the_rest_at_once(self, served):
        slow, fast = follow(served, "alpha"), follow(served, "alpha")
        slow.paused = True
        append(served, "alpha/s")
        append(served, "alpha/s", "alpha/s")
        assert len(events(slow)) == 1
        slow.resume()
        assert events(slow)[1:] == [(["s"] * 3, 4)]
        append(served, "alpha/s")
        assert events(slow)[-1] == events(fast)[-1] == (["s"], 5)

    def test_feed_over_several_pages(self, served, monkeypatch):
        monkeypatch.setattr(changes, "PAGE_ENTRIES_MAX", 4)
        for _ in range(10):
            append(served, "other/s")
        append(served, "alpha/s")
        slot = follow(served, "alpha", after=f"{2:020d}")
        # The first event says where the reader stands, though nothing on its page concerns it.
        assert events(slot) == [([], 6)]
        served.clock.run()
        assert events(slot)[1:] == [(["s"], 13)]

    def test_last_event_id_is_where_a_browser_goes_on(self, served):
        for _ in range(3):
            append(served, "alpha/s")
        slot = follow(served, "alpha", after="-1", last_event_id=f"{4:020d}")
        assert events(slot) == [(["s"], 5)]
        # Other reads know no such thing.
        for live in ("long-poll", ""):
            target = f"/alpha/streams/changes?after={2:020d}" + (live and f"&live={live}")
            answer = served.ask("GET", target, last_event_id=f"{4:020d}")
            assert len(answer.json["changes"]) == 3

    @pytest.mark.parametrize("last", ["", "7", "x" * 20, f"{99:020d}"])
    def test_last_event_id_that_is_none(self, served, last):
        slot = follow(served, "alpha", last_event_id=last)
        assert (slot.status, slot.code) == (400, "invalid_request")


def test_batch_of_which_nobody_knows_whom_it_concerns(served, monkeypatch):
    """The catalog could not be asked: whoever is told of the next batch is told of both."""
    slot = follow(served, "alpha")
    with monkeypatch.context() as patch:

        def fails(_state, _number):
            raise StoreError("no catalog")

        patch.setattr(State, "name_of", fails)
        append(served, "alpha/s")
    assert len(events(slot)) == 1
    append(served, "alpha/s")
    assert events(slot)[1:] == [(["s", "s"], 4)]


class TestBetweenAnswerAndTelling:
    """A request behind an append is there before anybody is told of the append's batch."""

    @pytest.fixture(params=[0, 1], ids=["alone", "with another"])
    def others(self, request, served):
        """Readers of the bucket that are there already."""
        others = [follow(served, "alpha") for _ in range(request.param)]
        append(served, "other/s")
        return others

    def come(self, served, live):
        """Start a reader as soon as an append is answered, from before it."""
        slots, before = [], served.shard.state.journal.last
        served.shard.append(
            "alpha/s",
            AppendRequest(b"x", TEXT),
            lambda _context, _outcome: slots.append(
                follow(served, "alpha", live, f"{before:020d}")
            ),
            None,
        )
        served.engine.commit()
        [slot] = slots
        return slot

    def test_feed_is_told_once(self, served, others):
        slot = self.come(served, "sse")
        last = served.shard.state.journal.last
        assert events(slot) == [(["s"], last)]
        append(served, "alpha/s")
        assert events(slot)[1:] == [(["s"], last + 1)]
        assert [events(other)[1:] for other in others] == [
            [(["s"], last), (["s"], last + 1)] for _ in others
        ]

    def test_long_poll_is_answered(self, served, others):
        slot = self.come(served, "long-poll")
        assert [each["stream_id"] for each in slot.json["changes"]] == ["s"]


class TestLongPoll:
    def test_change_behind_a_page_that_concerns_others(self, served, monkeypatch):
        monkeypatch.setattr(changes, "PAGE_ENTRIES_MAX", 4)
        for _ in range(10):
            append(served, "other/s")
        append(served, "alpha/s")
        slot = follow(served, "alpha", "long-poll", f"{2:020d}")
        assert not slot.done
        served.clock.run()
        found = slot.json
        assert [each["stream_id"] for each in found["changes"]] == ["s"]
        assert (found["next_cursor"], found["up_to_date"]) == (f"{13:020d}", True)

    def test_wait_behind_pages_that_concern_others(self, served, monkeypatch):
        monkeypatch.setattr(changes, "PAGE_ENTRIES_MAX", 4)
        for _ in range(10):
            append(served, "other/s")
        slot = follow(served, "alpha", "long-poll", f"{2:020d}")
        served.clock.run()
        assert not slot.done
        append(served, "alpha/s")
        assert [each["stream_id"] for each in slot.json["changes"]] == ["s"]
        assert len(served.app.feed) == 0

    def test_time_is_up(self, served):
        slot = follow(served, "alpha", "long-poll")
        append(served, "other/s")
        served.clock.advance(60)
        assert slot.json["changes"] == []
        assert slot.json["next_cursor"] == f"{3:020d}"
        assert slot.json["up_to_date"]


class TestJournalThatForgets:
    @pytest.fixture(autouse=True)
    def short(self, monkeypatch):
        monkeypatch.setattr(journal, "KEPT_ENTRIES", 5)

    def test_reader_of_a_quiet_bucket_misses_nothing(self, served):
        slot, waits = follow(served, "alpha"), follow(served, "alpha", "long-poll")
        for _ in range(20):
            append(served, "other/s")
        append(served, "alpha/s")
        last = served.shard.state.journal.last
        assert events(slot)[1:] == [(["s"], last)]
        assert not slot.done
        assert [each["stream_id"] for each in waits.json["changes"]] == ["s"]

    def test_reader_that_misses_something_is_let_go(self, served):
        """It comes back with its cursor, and is told then."""
        slot = follow(served, "alpha")
        slot.paused = True
        for _ in range(20):
            append(served, "alpha/s")
        slot.resume()
        assert slot.ended
        assert len(events(slot)) == 1

    def test_reader_of_a_quiet_bucket_that_reads_again(self, served):
        slot = follow(served, "alpha")
        slot.paused = True
        for _ in range(20):
            append(served, "other/s")
        slot.resume()
        assert not slot.ended
        append(served, "alpha/s")
        assert events(slot)[1:] == [(["s"], served.shard.state.journal.last)]

    def test_long_poll_that_misses_something_is_410(self, served):
        """A batch may be more than all that is kept."""
        slot = follow(served, "alpha", "long-poll")
        append(served, *["alpha/s"] * 10)
        assert (slot.status, slot.code) == (410, "cursor_gone")
        assert slot.fields["changes-earliest-cursor"] == f"{3:020d}"
