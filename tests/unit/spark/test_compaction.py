"""Which packs are rewritten together."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.format.packs import PackInfo
from holdfast.spark.compaction import CompactionLimits, plan_groups

LIMITS = CompactionLimits(target_bytes=1000, dead_share=0.5, min_packs=2, messages_max=1000)


def pack(after, through, size=10, dead=0, messages=1, rows=1, has_delta=True):
    name = f"packs/{after}-{through}{'' if has_delta else 'c'}"
    return PackInfo(
        name, size + 500, size, dead, messages, rows, has_delta, after, through, "0", 0, []
    )


def planned(packs, unreadable=(), **limits):
    groups = plan_groups(packs, LIMITS._replace(**limits), unreadable)
    return [[(each.after, each.through) for each in group.packs] for group in groups]


def test_neighbours_become_one():
    assert planned([pack(0, 3), pack(3, 4), pack(4, 9)]) == [[(0, 3), (3, 4), (4, 9)]]


def test_nothing_to_do():
    assert planned([]) == planned([pack(0, 3)]) == []


def test_packs_that_are_no_neighbours_stay_apart():
    assert planned([pack(0, 3), pack(3, 4), pack(5, 6), pack(6, 7)]) == [
        [(0, 3), (3, 4)],
        [(5, 6), (6, 7)],
    ]


def test_up_to_the_size():
    packs = [pack(at, at + 1, 400) for at in range(5)]
    assert planned(packs) == [[(0, 1), (1, 2)], [(2, 3), (3, 4)]]


def test_what_is_dead_does_not_count():
    packs = [pack(at, at + 1, 400, 300) for at in range(5)]
    assert planned(packs) == [[(at, at + 1) for at in range(5)]]


def test_a_pack_of_half_the_size_is_left_alone():
    packs = [pack(0, 1, 500), pack(1, 2), pack(2, 3), pack(3, 4, 700), pack(4, 5)]
    assert planned(packs) == [[(1, 2), (2, 3)]]


@pytest.mark.parametrize(("field", "limit"), [("messages", "messages_max"), ("rows", "rows_max")])
def test_memory_is_bounded(field, limit):
    packs = [pack(at, at + 1, **{field: 40}) for at in range(5)]
    assert planned(packs, **{limit: 100}) == [[(0, 1), (1, 2)], [(2, 3), (3, 4)]]


def test_number_of_packs_is_bounded():
    packs = [pack(at, at + 1) for at in range(7)]
    assert [len(group) for group in planned(packs, packs_max=3)] == [3, 3]


def test_too_few_are_not_merged():
    packs = [pack(0, 1), pack(1, 2)]
    assert planned(packs, min_packs=3) == []


def test_a_pack_that_is_dead_in_part_by_itself():
    packs = [pack(0, 1, 2000, 1000), pack(1, 2, 2000, 999), pack(5, 6, 10, 10)]
    assert planned(packs) == [[(0, 1)], [(5, 6)]]


def test_packs_without_a_delta_stay_by_themselves():
    """What is dead as a whole is left to the server."""
    large = [
        pack(0, 1, 2000, 1500, has_delta=False),
        pack(0, 1, 2000, 10, has_delta=False),
        pack(1, 2, 2000, 2000, has_delta=False),
    ]
    mains = [pack(0, 1), pack(1, 2)]
    packs = sorted([*large, *mains], key=lambda each: (each.after, each.through))
    companion, merged = plan_groups(packs, LIMITS)
    assert companion.packs == (large[0],)
    assert not companion.has_delta
    assert not companion.companions
    assert merged.packs == tuple(mains)
    # The merged pack names all of them: they belong to its range.
    assert merged.companions == {each.name for each in large}


def test_companions_of_another_range_are_not_named():
    packs = [pack(0, 1), pack(1, 2), pack(3, 4, has_delta=False), pack(3, 4)]
    (group,) = plan_groups(packs, LIMITS)
    assert group.companions == frozenset()


def test_what_cannot_be_read_is_left_alone():
    packs = [pack(at, at + 1, 10, 10) for at in range(5)]
    packs.append(pack(4, 5, 2000, 1500, has_delta=False))
    unreadable = {packs[2].name, packs[5].name}
    assert planned(packs, unreadable) == [[(0, 1), (1, 2)], [(3, 4), (4, 5)]]


def test_the_most_work_first():
    packs = [pack(0, 1), pack(1, 2), pack(3, 4, 100), pack(4, 5, 100)]
    assert planned(packs) == [[(3, 4), (4, 5)], [(0, 1), (1, 2)]]


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3), st.integers(0, 1500), st.floats(0, 1), st.booleans(), st.booleans()
        ),
        max_size=30,
    ),
    st.integers(2, 5),
)
def test_any_packs(drawn, min_packs):
    """Groups keep the rules, have nothing in common, and once they are done nothing is left."""
    packs, at = [], 0
    for number, (length, size, dead, has_delta, gap) in enumerate(drawn):
        at += 5 if gap else 0
        made = pack(at, at + length, size, int(size * dead), has_delta=has_delta)
        packs.append(msgspec.structs.replace(made, name=f"packs/{number}"))
        at += length if has_delta else 0
    limits = LIMITS._replace(min_packs=min_packs)
    groups = plan_groups(packs, limits)
    names = [name for group in groups for name in group.names]
    assert len(set(names)) == len(names)
    left = {each.name: each for each in packs if each.name not in names}
    for group in groups:
        assert all(one.through == other.after for one, other in pairwise(group.packs))
        assert len({each.has_delta for each in group.packs}) == 1
        assert len(group.packs) == 1 or group.live_bytes <= limits.target_bytes
        assert len(group.packs) == 1 or len(group.packs) >= min_packs
        first, last = group.packs[0], group.packs[-1]
        merged = pack(first.after, last.through, group.live_bytes, has_delta=group.has_delta)
        left[first.name] = merged
    after = sorted(left.values(), key=lambda each: (each.after, each.through))
    again = plan_groups(after, limits)
    assert sum(len(group.packs) for group in again) <= sum(len(group.packs) for group in groups)
    assert not any(group.dead_bytes for group in again if len(group.packs) == 1)
