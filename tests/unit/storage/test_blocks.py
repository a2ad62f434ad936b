"""Blocks: kept within a limit, fetched once however many want them, believed only if they match."""

from array import array
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ObjectMissingError, PackCorruptError, StoreError
from holdfast.storage import blocks as blocks_module
from holdfast.storage.blocks import ENTRY_COST_BYTES, BlockCache, BlockKey, Blocks
from tests.unit.storage.ranges import HeldRanges, make_blocks_small

BLOCK = 16
DATA = bytes(range(100))


def cost(parts):
    return sum(len(part) + ENTRY_COST_BYTES for part in parts.values())


class TestCache:
    @given(
        st.lists(st.tuples(st.booleans(), st.integers(0, 8), st.integers(0, 12)), max_size=60),
        st.integers(0, 4 * ENTRY_COST_BYTES),
    )
    def test_against_a_model(self, script, bytes_max):
        cache, model = BlockCache(bytes_max), {}
        for is_put, name, size in script:
            key = BlockKey("p", name)
            if is_put:
                cache.put({key: memoryview(bytes(size))})
                model.pop(key, None)
                model[key] = bytes(size)
                while cost(model) > bytes_max:
                    del model[next(iter(model))]
            else:
                part = cache.get(key)
                assert part == model.get(key)
                if key in model:
                    model[key] = model.pop(key)
            assert len(cache) == len(model)
            assert cache.size_bytes == cost(model) <= bytes_max

    def test_index_counts_with_its_real_size(self):
        cache = BlockCache(10_000)
        cache.put({BlockKey("p", 0, is_index=True): array("Q", [1, 2, 3])})
        assert cache.size_bytes == 24 + ENTRY_COST_BYTES

    def test_index_and_block_at_the_same_byte_are_two_things(self):
        cache = BlockCache(10_000)
        cache.put({BlockKey("p", 0): memoryview(b"block")})
        cache.put({BlockKey("p", 0, is_index=True): array("Q", [5])})
        assert cache.get(BlockKey("p", 0)) == b"block"
        assert cache.get(BlockKey("p", 0, is_index=True)) == array("Q", [5])

    def test_what_is_there_is_not_counted_twice(self):
        cache = BlockCache(10_000)
        for _ in range(3):
            cache.put({BlockKey("p", 0): memoryview(b"block")})
        assert cache.size_bytes == 5 + ENTRY_COST_BYTES

    def test_small_indexes_stay_while_they_take_little(self):
        cache = BlockCache(100 * ENTRY_COST_BYTES)
        for at in range(20):
            cache.put({BlockKey("p", at, is_index=True): array("Q")})
        for at in range(200):
            cache.put({BlockKey("p", at): memoryview(b"")})
        kept = [at for at in range(20) if cache.get(BlockKey("p", at, is_index=True)) is not None]
        assert kept == list(range(8, 20)), "an eighth of the cache is theirs, and no more"
        assert cache.get(BlockKey("p", 199)) is not None
        assert cache.size_bytes <= cache.bytes_max

    def test_what_shares_a_buffer_goes_together(self):
        buffer = memoryview(bytes(400))
        cache = BlockCache(4 * ENTRY_COST_BYTES)
        cache.put({BlockKey("p", 0): buffer[:200], BlockKey("p", 200): buffer[200:]})
        cache.put({BlockKey("q", 0): memoryview(b"another")})
        assert len(cache) == 3
        cache.put({BlockKey("r", 0): memoryview(bytes(ENTRY_COST_BYTES))})
        assert cache.get(BlockKey("p", 200)) is None
        assert cache.get(BlockKey("p", 0)) is None
        assert cache.get(BlockKey("q", 0)) is not None


class Asked:
    """Collects what `done` was called with."""

    def __init__(self):
        self.found = {}

    def __call__(self, number, part):
        assert number not in self.found, "each block is answered once"
        self.found[number] = part


@pytest.fixture
def made(rig, monkeypatch):
    """Blocks over one extent of seven blocks, the last one short, and its neighbour."""
    make_blocks_small(monkeypatch, BLOCK)
    number = rig.log.create("b/s", DATA[:40])
    rig.log.append(number, DATA[40:])
    other = rig.log.create("b/t", DATA[::-1])
    rig.flush()
    [rig.extent] = rig.extents(number)
    [rig.other] = rig.extents(other)
    rig.held = HeldRanges(rig.memory)
    rig.blocks = Blocks(rig.held, 10_000)
    return rig


def block(number):
    return DATA[number * BLOCK : (number + 1) * BLOCK]


def ask(made, first, last, extent=None):
    asked = Asked()
    for number, part in enumerate(made.blocks.blocks(extent or made.extent, first, last), first):
        part.then(partial(asked, number))
    return asked


class TestFetching:
    def test_neighbours_are_fetched_together(self, made):
        asked = ask(made, 1, 3)
        assert made.held.requests == [(made.extent.pack, made.extent.data_at + BLOCK, 3 * BLOCK)]
        assert asked.found == {}
        made.held.answer()
        assert asked.found == {number: block(number) for number in (1, 2, 3)}

    def test_last_block_is_what_is_left(self, made):
        asked = ask(made, 6, 6)
        assert made.held.requests[0][2] == 4
        made.held.answer()
        assert asked.found == {6: DATA[96:]}

    def test_request_has_a_limit(self, made):
        asked = ask(made, 0, 6)
        assert [size for _, _, size in made.held.requests] == [4 * BLOCK, 2 * BLOCK + 4]
        made.held.answer(1)
        assert set(asked.found) == {4, 5, 6}
        made.held.answer()
        assert b"".join(asked.found[number] for number in range(7)) == DATA

    def test_what_is_in_the_cache_is_given_at_once_and_not_fetched(self, made):
        ask(made, 2, 3)
        made.held.answer()
        asked = ask(made, 1, 5)
        assert asked.found == {2: block(2), 3: block(3)}
        assert [(at - made.extent.data_at, size) for _, at, size in made.held.requests] == [
            (BLOCK, BLOCK),
            (4 * BLOCK, 2 * BLOCK),
        ]
        made.held.answer_all()
        assert set(asked.found) == {1, 2, 3, 4, 5}

    def test_blocks_of_other_extents_are_others(self, made):
        ask(made, 0, 0)
        ask(made, 0, 0, made.other)
        assert len(made.held.asked) == 2

    def test_many_who_want_the_same_are_one_fetch(self, made):
        several = [ask(made, 0, 2) for _ in range(20)]
        assert len(made.held.asked) == 1
        made.held.answer()
        for asked in several:
            assert asked.found == {number: block(number) for number in (0, 1, 2)}
        counters = made.blocks.counters
        assert (counters.fetches, counters.fetched_bytes) == (1, 3 * BLOCK)
        assert (counters.cache_misses, counters.joined, counters.cache_hits) == (3, 57, 0)
        ask(made, 0, 2)
        assert counters.cache_hits == 3

    def test_overlapping_reads_fetch_the_rest_only(self, made):
        ask(made, 0, 2)
        asked = ask(made, 1, 4)
        assert [(at - made.extent.data_at, size) for _, at, size in made.held.requests] == [
            (0, 3 * BLOCK),
            (3 * BLOCK, 2 * BLOCK),
        ]
        made.held.answer(1)
        assert set(asked.found) == {3, 4}
        made.held.answer()
        assert set(asked.found) == {1, 2, 3, 4}

    def test_cache_that_holds_nothing_still_answers(self, made):
        made.blocks = Blocks(made.held, 0)
        for _ in range(2):
            asked = ask(made, 0, 6)
            made.held.answer_all()
            assert b"".join(asked.found[number] for number in range(7)) == DATA
        assert made.blocks.counters.fetches == 4
        assert made.blocks.cache.size_bytes == 0


class TestIndex:
    def test_offsets_at_which_messages_end(self, made):
        found = []
        made.blocks.ends(made.extent).then(found.append)
        made.blocks.ends(made.extent).then(found.append)
        assert made.held.requests == [(made.extent.pack, made.extent.lengths_at, 8)]
        made.held.answer()
        made.blocks.ends(made.extent).then(found.append)
        assert found == [array("Q", [40, 100])] * 3
        assert made.held.asked == []

    def test_offsets_count_from_the_start_of_the_stream(self, made):
        number = made.catalog.find_name("b/s").number
        made.log.append(number, b"xyz")
        made.flush()
        found = []
        made.blocks.ends(made.extents(number)[1]).then(found.append)
        made.held.answer()
        assert found == [array("Q", [103])]

    def test_damaged_index_is_not_believed(self, made):
        found = []
        made.blocks.ends(made.extent).then(found.append)
        made.held.answer(outcome=bytes(8))
        [error] = found
        assert isinstance(error, PackCorruptError)
        assert made.extent.pack in error.message
        assert "message index" in error.message


class TestPrefetch:
    def test_it_is_there_when_somebody_asks(self, made):
        made.blocks.prefetch(made.extent, 0, 3)
        made.held.answer()
        assert set(ask(made, 0, 3).found) == {0, 1, 2, 3}
        assert made.held.asked == []

    def test_who_asks_meanwhile_joins_it(self, made):
        made.blocks.prefetch(made.extent, 0, 3)
        asked = ask(made, 1, 1)
        assert len(made.held.asked) == 1
        made.held.answer()
        assert asked.found == {1: block(1)}

    def test_it_fetches_nothing_twice(self, made):
        ask(made, 1, 1)
        made.held.answer()
        ask(made, 3, 3)
        made.blocks.prefetch(made.extent, 0, 5)
        made.blocks.prefetch(made.extent, 0, 5)
        assert [at - made.extent.data_at for _, at, _ in made.held.requests] == [
            3 * BLOCK,
            0,
            2 * BLOCK,
            4 * BLOCK,
        ]

    def test_failed_one_hurts_nobody(self, made):
        made.blocks.prefetch(made.extent, 0, 3)
        made.held.answer(outcome=StoreError("no"))
        asked = ask(made, 0, 3)
        assert asked.found == {}
        made.held.answer()
        assert set(asked.found) == {0, 1, 2, 3}


class TestErrors:
    @pytest.mark.parametrize("error", [StoreError("no"), ObjectMissingError("gone")])
    def test_they_reach_all_who_wait_and_are_not_kept(self, made, error):
        several = [ask(made, 0, 2) for _ in range(3)]
        made.held.answer(outcome=error)
        for asked in several:
            assert asked.found == dict.fromkeys((0, 1, 2), error)
        again = ask(made, 0, 2)
        made.held.answer()
        assert again.found == {number: block(number) for number in (0, 1, 2)}
        assert made.blocks.counters.fetch_failures == 1

    def test_damaged_block_fails_alone(self, made):
        good = made.memory.read(made.extent.pack, made.extent.data_at, 3 * BLOCK)
        bad = bytearray(good)
        bad[BLOCK + 3] ^= 1
        asked = ask(made, 0, 2)
        made.held.answer(outcome=bytes(bad))
        assert (asked.found[0], asked.found[2]) == (block(0), block(2))
        assert isinstance(asked.found[1], PackCorruptError)
        assert made.extent.pack in asked.found[1].message
        assert len(made.blocks.cache) == 2
        again = ask(made, 1, 1)
        made.held.answer()
        assert again.found == {1: block(1)}

    @pytest.mark.parametrize("size", [0, 1, BLOCK, 3 * BLOCK - 1])
    def test_answer_that_is_too_short_is_damage(self, made, size):
        asked = ask(made, 0, 2)
        data = made.memory.read(made.extent.pack, made.extent.data_at, size)
        made.held.answer(outcome=data)
        for number in range(3):
            if (number + 1) * BLOCK <= size:
                assert asked.found[number] == block(number)
            else:
                assert isinstance(asked.found[number], PackCorruptError)

    def test_block_of_another_pack_is_damage(self, made):
        asked = ask(made, 0, 0)
        made.held.answer(outcome=made.memory.read(made.other.pack, made.other.data_at, BLOCK))
        assert isinstance(asked.found[0], PackCorruptError)


class TestDefects:
    def test_reader_that_cannot_even_ask_tells_those_who_wait(self, made):
        def broken(*_):
            raise RuntimeError("can't start new thread")

        made.held.read = broken
        asked = ask(made, 0, 0)
        assert isinstance(asked.found[0], StoreError)
        del made.held.read
        again = ask(made, 0, 0)
        made.held.answer_all()
        assert again.found[0] == block(0)

    def test_one_who_fails_does_not_keep_the_others_waiting(self, made):
        def fail(part):
            raise AssertionError("a defect")

        [part] = made.blocks.blocks(made.extent, 0, 0)
        part.then(fail)
        asked = ask(made, 0, 0)
        made.held.answer_all()
        assert asked.found[0] == block(0)

    def test_requests_at_one_time_are_limited(self, made, monkeypatch):
        monkeypatch.setattr(blocks_module, "REQUESTS_MAX", 1)
        first, second = ask(made, 0, 0), ask(made, 0, 0, made.other)
        assert len(made.held.asked) == 1
        made.held.answer()
        assert first.found
        assert not second.found
        made.held.answer()
        assert second.found
