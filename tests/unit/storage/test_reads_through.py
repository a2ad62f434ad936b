"""Reads through forks and snapshots: the same bytes from memory, from packs, and from both.

What is read is held against a plain model of every stream's content; a merge, a collection of
garbage or a rebuilt catalog must not make a difference.
"""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.reading import ShardReader
from holdfast.errors import HoldfastError, OffsetGoneError
from holdfast.format import pack_builder
from holdfast.objects import pack_merge
from holdfast.objects.pack_merge import merge_packs
from holdfast.storage import flush
from holdfast.storage.catalog import Catalog
from holdfast.storage.cold import ColdReader
from holdfast.storage.merge import plan_merge, swap
from holdfast.storage.pending import run
from holdfast.storage.rebuild import build, resolve, survey
from tests.memory_directory import memory_directory
from tests.thorough import examples
from tests.unit.storage.histories import History, steps
from tests.unit.storage.rig import Rig

SIZES = (1, 4, 9, 30, 1 << 30)


class Reading:
    """Reads as a client does, and compares with what the streams' writers were told."""

    def __init__(self, state, clock=None, cold=None):
        self.reader = ShardReader(state)
        self.reader.cold = cold
        self._clock = clock

    def ask(self, call, *arguments):
        answers = []
        run(call(*arguments), answers.append)
        if self._clock is not None:
            self._clock.run()
        [answer] = answers
        return answer

    def check(self, history, seed=0):
        """Every stream, in pieces of any size, and all its boundaries."""
        chance = random.Random(seed)
        for told in history.alive:
            stream = self.reader.state.find(told.name)
            assert (stream.number, stream.tail) == (told.number, told.tail)
            assert stream.earliest == told.earliest
            self._check_bytes(stream, told, chance)
            self._check_gone(stream, told, chance)
            self._check_boundaries(stream, told, chance)

    def _check_bytes(self, stream, told, chance):
        at = told.earliest
        while at < told.tail:
            end, data = self.ask(self.reader.read, stream, at, chance.choice(SIZES))
            assert end > at
            assert data == told.data[at:end]
            if told.is_json:
                assert end in told.ends
            at = end
        assert self.ask(self.reader.read, stream, at, 10) == (told.tail, b"")

    def _check_gone(self, stream, told, chance):
        if told.earliest:
            at = chance.randrange(told.earliest)
            error = self.ask(self.reader.read, stream, at, 10)
            assert isinstance(error, OffsetGoneError)
            assert error.earliest == told.earliest

    def _check_boundaries(self, stream, told, chance):
        start = chance.randint(told.earliest, told.tail)
        end = chance.randint(start, told.tail)
        found = self.ask(self.reader.message_ends, stream, start, end)
        assert not isinstance(found, HoldfastError), found
        assert found == [each for each in told.ends if start < each <= end]
        at = chance.randint(told.earliest, told.tail)
        is_end = at in (0, told.earliest, *told.ends)
        assert self.ask(self.reader.is_boundary, stream, at) == is_end


@pytest.fixture(autouse=True)
def small_packs(monkeypatch):
    """Extents and packs so small that most streams have several."""
    monkeypatch.setattr(pack_builder, "EXTENT_BYTES_MAX", 20)
    monkeypatch.setattr(pack_merge, "EXTENT_BYTES_MAX", 20)
    monkeypatch.setattr(flush, "OWN_PACK_BYTES", 40)


@given(steps, st.integers(0, 99))
def test_from_memory(script, seed):
    history = History(script)
    Reading(history.state()).check(history, seed)


@settings(max_examples=examples(60))
@given(steps, st.integers(0, 99), st.integers(0, 5))
def test_from_packs_and_from_both(script, seed, hot_cuts):
    """With the last few cuts in memory and all before them in packs; 0 is all in packs."""
    history = History(script)
    with memory_directory() as path:
        rig = rig_of(history, path)
        count = max(0, len(history.cuts) - hot_cuts)
        rig.worker._flush.run(history.log.segments[:count])
        state = history.state(history.cuts[count - 1] if count else 0, rig.catalog)
        Reading(state, rig.clock, rig.cold).check(history, seed)
        rig.close()


@settings(max_examples=examples(60))
@given(steps, st.integers(0, 99), st.booleans())
def test_after_merges_garbage_and_a_rebuilt_catalog(script, seed, is_late):
    history = History(script)
    with memory_directory() as path:
        rig = rig_of(history, path)
        for count in range(1, len(history.cuts) + 1):
            rig.worker._flush.run(history.log.segments[:count])
            while not is_late and rig.merge():
                pass
        while rig.merge():
            pass
        rig.clock.advance(10)
        rig.worker.collect()
        rig.verify()
        last = history.cuts[-1] if history.cuts else 0
        Reading(history.state(last, rig.catalog), rig.clock, rig.cold).check(history, seed)
        rebuilt = Path(path) / "rebuilt.db"
        build(rig.memory, resolve(survey(rig.memory)), rebuilt, 0)
        catalog = Catalog(rebuilt)
        cold = ColdReader(catalog, rig.ranges, 1 << 20)
        Reading(history.state(last, catalog), rig.clock, cold).check(history, seed)
        catalog.close()
        rig.close()


@settings(max_examples=examples(40))
@given(steps)
def test_merged_packs_hold_nothing_that_is_dead(script):
    """But for the messages that a start lies inside of."""
    history = History(script)
    with memory_directory() as path:
        rig = rig_of(history, path)
        for count in range(1, len(history.cuts) + 1):
            rig.worker._flush.run(history.log.segments[:count])
        for row in rig.packs:
            if row.has_delta:
                made = merge_packs(rig.store, rig.clock, plan_merge(rig.writer, [row]))
                swap(rig.writer, [made], [row.name], rig.clock.now_ms())
        for told in history.streams.values():
            extents = rig.extents(told.number)
            assert not extents or extents[0].end > told.start
            for extent in extents:
                pack = {row.name: row for row in rig.packs}[extent.pack]
                if pack.has_delta and extent.start < told.start:
                    first = told.needed_messages()[0][0]
                    assert extent.start + len(first) > told.start
        rig.verify()
        rig.close()


def rig_of(history, path):
    rig = Rig(Path(path))
    rig.log = history.log
    rig.start(merge_packs=2, garbage_grace_s=0)
    return rig
