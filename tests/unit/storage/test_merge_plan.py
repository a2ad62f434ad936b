"""Which packs are merged: neighbours only, within limits, and not again and again."""

import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.format.packs import PackInfo
from holdfast.storage import merge
from holdfast.storage.merge import DATA_BYTES_MAX, MESSAGES_MAX, ROWS_MAX, next_merge

KIB, MIB = 1024, 1024 * 1024
TIERS = len(merge._TIER_BYTES)
HUGE_BYTES = 600 * MIB


def pack(size_bytes, after, through, *, dead=0.0, messages=1, rows=1, has_delta=True):
    """A pack whose data is all but a little of it; its name tells its range."""
    data_bytes = size_bytes * 9 // 10
    return PackInfo(
        f"{after}-{through}-{size_bytes}-{int(has_delta)}",
        size_bytes,
        data_bytes,
        int(dead * data_bytes),
        messages,
        rows,
        has_delta,
        after,
        through,
        16 * "0",
        0,
        [],
    )


def row_of(*sizes_bytes, **more):
    """Packs of these sizes, each one's range behind the other's."""
    return [pack(size, at, at + 1, **more) for at, size in enumerate(sizes_bytes)]


def merged(run):
    """What a merge makes of a run, as far as planning sees it."""
    live = sum(each.data_bytes - each.dead_bytes for each in run)
    extra = sum(each.size_bytes - each.data_bytes for each in run)
    return msgspec.structs.replace(
        run[0],
        name=f"{run[0].after}-{run[-1].through}-merged",
        size_bytes=live + extra,
        data_bytes=live,
        dead_bytes=0,
        messages=sum(each.messages for each in run),
        rows=sum(each.rows for each in run),
        through=run[-1].through,
    )


class Simulation:
    """Flushes of packs, with as much merging as there is after each."""

    def __init__(self, merge_packs, streams=None):
        self.merge_packs = merge_packs
        # How many streams there are in all: a merged pack has at most one row for each.
        self.streams = streams
        self.packs = []
        self.flushed_bytes = self.merged_bytes = self.merges = self.packs_most = 0

    def flush(self, size_bytes, **more):
        after = self.packs[-1].through if self.packs else 0
        self.packs.append(pack(size_bytes, after, after + 1, **more))
        self.flushed_bytes += size_bytes
        while run := next_merge(self.packs, self.merge_packs, set()):
            at = self.packs.index(run[0])
            assert self.packs[at : at + len(run)] == run
            joined = merged(run)
            if self.streams is not None:
                joined = msgspec.structs.replace(joined, rows=min(joined.rows, self.streams))
            self.packs[at : at + len(run)] = [joined]
            self.merged_bytes += self.packs[at].size_bytes
            self.merges += 1
            assert self.merges <= 2 * self.packs[-1].through, "merging comes to an end"
        self.packs_most = max(self.packs_most, len(self.packs))

    @property
    def amplification(self):
        return (self.flushed_bytes + self.merged_bytes) / self.flushed_bytes


def script(seed, length):
    """Packs as (size, positions left out, dead share, messages, rows, delta, spoilt)."""
    chance = random.Random(seed)
    sizes = [(100, MIB), (100, 2 * MIB), (MIB, 70 * MIB), (60 * MIB, 520 * MIB)]
    return [
        (
            chance.randint(*chance.choice(sizes)),
            chance.random() < 0.1,
            chance.random() ** 2,
            chance.choice([1, 1000, 1000, MESSAGES_MAX // 5, MESSAGES_MAX]),
            chance.choice([1, 1000, 1000, ROWS_MAX // 5, ROWS_MAX]),
            chance.random() < 0.9,
            chance.random() < 0.05,
        )
        for _ in range(length)
    ]


# Lists that hypothesis draws are mostly short, and then nothing is merged.
lists = st.builds(script, st.integers(0, 2**32), st.integers(0, 80))


def packs_and_spoilt(script):
    packs, spoilt, at = [], set(), 0
    for size, gap, dead, messages, rows, has_delta, is_spoilt in script:
        if has_delta:
            at += gap
            made = pack(size, at, at + 1, dead=dead, messages=messages, rows=rows)
            at += 1
        else:
            # A companion has the range of the pack that names it.
            made = pack(size, max(0, at - 1), at, dead=dead, messages=messages, has_delta=False)
        packs.append(made)
        if is_spoilt:
            spoilt.add(made.name)
    return packs, spoilt


class TestProperties:
    @given(lists, st.integers(2, 9))
    def test_whatever_is_picked_may_be_merged(self, script, merge_packs):
        packs, spoilt = packs_and_spoilt(script)
        run = next_merge(packs, merge_packs, spoilt)
        for one, other in pairwise(run):
            assert one.through == other.after
        assert all(each in packs and each.has_delta for each in run)
        assert not spoilt & {each.name for each in run}
        if len(run) > 1:
            assert sum(each.data_bytes - each.dead_bytes for each in run) <= DATA_BYTES_MAX
            assert sum(each.messages for each in run) <= MESSAGES_MAX
            assert sum(each.rows for each in run) <= ROWS_MAX
            enough = len(run) >= min(merge_packs, max(2, merge_packs // 2))
            sizes = [each.size_bytes for each in run]
            assert enough or 2 * min(sizes) > max(sizes)
        elif run:
            assert run[0].dead_bytes >= MIB
            assert 2 * run[0].dead_bytes >= run[0].data_bytes

    @given(lists, st.integers(2, 9))
    def test_merging_comes_to_an_end(self, script, merge_packs):
        packs, spoilt = packs_and_spoilt(script)
        merges = 0
        while run := next_merge(packs, merge_packs, spoilt):
            first = packs.index(run[0])
            packs = [each for each in packs if each not in run]
            packs.insert(first, merged(run))
            merges += 1
            assert merges <= 2 * len(script)

    @given(st.integers(0, 2**32), st.integers(2, 9))
    def test_packs_stay_few_whatever_sizes_flushes_have(self, seed, merge_packs):
        simulation, chance = Simulation(merge_packs), random.Random(seed)
        for _ in range(120):
            size = chance.choice([chance.randint(100, MIB), chance.randint(100, 8 * MIB)])
            simulation.flush(size)
            for least, most in pairwise((0, *merge._TIER_BYTES)):
                of_tier = [each for each in simulation.packs if least <= each.size_bytes < most]
                assert len(of_tier) < merge_packs * TIERS
        assert len(simulation.packs) < merge_packs * TIERS


class TestAmplification:
    @pytest.mark.parametrize("merge_packs", [8, 16])
    @pytest.mark.parametrize("size", [256 * KIB, MIB, 3 * MIB, 10 * MIB, 64 * MIB])
    def test_thousand_equal_flushes_are_not_written_four_times(self, size, merge_packs):
        simulation = Simulation(merge_packs)
        for _ in range(1000):
            simulation.flush(size)
        assert simulation.amplification < 4
        # Below the largest tier packs are few; those in it hold a good part of what they may.
        largest = simulation.flushed_bytes / (DATA_BYTES_MAX / merge_packs / 2)
        assert simulation.packs_most < merge_packs * TIERS + largest

    @pytest.mark.parametrize("size", [100, KIB, 10 * KIB, 100 * KIB])
    def test_small_flushes_cost_little_however_often_they_are_merged(self, size):
        simulation = Simulation(8)
        for _ in range(1000):
            simulation.flush(size)
        assert simulation.packs_most < 3 * 8
        # They are merged with what is there of the smallest tier, which is never more than this.
        assert simulation.merged_bytes < 3 * simulation.flushed_bytes + simulation.merges * 2 * MIB

    def test_log_of_all_sizes(self):
        simulation = Simulation(8)
        for at in range(600):
            simulation.flush([KIB, 40 * MIB, 300 * KIB, 64 * MIB, 5 * MIB][at % 5])
        assert simulation.amplification < 4
        assert len([each for each in simulation.packs if each.size_bytes < 64 * MIB]) < 30


class TestTiers:
    def test_too_few_are_left_alone(self):
        assert next_merge(row_of(*[KIB] * 3), 4, set()) == []

    def test_as_many_as_are_wanted_are_merged(self):
        packs = row_of(*[KIB] * 6)
        assert next_merge(packs, 4, set()) == packs[:4]

    def test_large_pack_is_not_rewritten_for_small_ones(self):
        packs = row_of(100 * MIB, *[KIB] * 3)
        assert next_merge(packs, 4, set()) == []
        packs = row_of(100 * MIB, *[KIB] * 4)
        assert next_merge(packs, 4, set()) == packs[1:]

    def test_small_ones_between_large_ones_go_along(self):
        packs = row_of(*[2 * MIB, KIB] * 4)
        assert next_merge(packs, 4, set()) == packs[:7]

    def test_packs_larger_than_all_tiers_stay(self):
        packs = row_of(*[HUGE_BYTES] * 9)
        assert next_merge(packs, 2, set()) == []

    def test_gap_in_the_log_is_never_bridged(self):
        packs = [pack(KIB, at, at + 1) for at in (0, 1, 2, 5, 6, 7)]
        assert next_merge(packs, 4, set()) == []
        assert next_merge(packs, 3, set()) == packs[:3]

    def test_companions_are_neither_merged_nor_in_the_way(self):
        packs = row_of(*[KIB] * 4)
        companions = [pack(20 * MIB, at, at + 1, has_delta=False) for at in range(4)]
        mixed = sorted([*packs, *companions], key=lambda each: each.after)
        assert next_merge(mixed, 4, set()) == packs
        assert next_merge(companions, 2, set()) == []


class TestLimits:
    @pytest.mark.parametrize(
        ("size", "more"),
        [
            (KIB, {"messages": MESSAGES_MAX // 5}),
            (KIB, {"rows": ROWS_MAX // 5}),
            (120 * MIB, {}),
        ],
    )
    def test_run_that_would_exceed_them_is_cut_shorter(self, size, more):
        packs = row_of(*[size] * 8, **more)
        run = next_merge(packs, 8, set())
        assert run == packs[: len(run)]
        assert 4 <= len(run) <= 5

    def test_run_moves_on_past_a_pack_that_leaves_no_room(self):
        packs = row_of(*[KIB] * 7)
        packs[1] = msgspec.structs.replace(packs[1], messages=MESSAGES_MAX)
        assert next_merge(packs, 4, set()) == packs[2:6]

    @pytest.mark.parametrize("rows", [131_072, 500_000, 1_000_000])
    def test_a_million_streams_in_every_pack_are_merged_as_fast_as_a_few(self, rows):
        packs = row_of(*[60 * MIB] * 8, rows=rows, messages=rows)
        assert next_merge(packs, 8, set()) == packs

    def test_dead_bytes_do_not_count(self):
        packs = row_of(*[200 * MIB] * 4, dead=0.9)
        assert next_merge(packs, 4, set()) == packs

    def test_streams_that_all_change_in_every_flush_do_not_end_up_in_ever_more_packs(self):
        # As many streams as reach `hot_bytes_soft` with 100 bytes each.
        rows = 100_663_296 // (700 + 128 + 100)
        simulation = Simulation(8, streams=rows)
        for _ in range(100):
            simulation.flush(300 * rows, rows=rows)
        assert len(simulation.packs) < 8 * TIERS


class TestDead:
    def test_pack_that_is_half_dead_is_rewritten(self):
        packs = row_of(100 * MIB, 100 * MIB, dead=0.0)
        packs[1] = msgspec.structs.replace(packs[1], dead_bytes=packs[1].data_bytes // 2)
        assert next_merge(packs, 4, set()) == [packs[1]]
        assert next_merge([packs[0], merged([packs[1]])], 4, set()) == []

    @pytest.mark.parametrize(("size", "dead"), [(100 * MIB, 0.49), (MIB, 1.0)])
    def test_pack_with_few_dead_bytes_is_not(self, size, dead):
        assert next_merge(row_of(size, dead=dead), 4, set()) == []

    def test_huge_pack_is_rewritten_too(self):
        packs = row_of(HUGE_BYTES, dead=0.6)
        assert next_merge(packs, 4, set()) == packs

    def test_dead_companion_is_garbage_and_not_merged(self):
        packs = row_of(100 * MIB, dead=1.0, has_delta=False)
        assert next_merge(packs, 4, set()) == []


class TestSpoilt:
    def test_it_is_left_alone_and_divides_the_log(self):
        packs = row_of(*[KIB] * 9)
        assert next_merge(packs, 4, {packs[3].name}) == packs[4:8]
        assert next_merge(packs, 4, {packs[3].name, packs[7].name}) == []

    def test_it_is_not_rewritten_for_its_dead_bytes(self):
        packs = row_of(100 * MIB, dead=0.9)
        assert next_merge(packs, 4, {packs[0].name}) == []
