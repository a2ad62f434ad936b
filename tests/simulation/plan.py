"""What a seed decides before a run begins: sizes, and how much of everything goes wrong.

Everything is made so small that a few hundred requests go through many flushes, evictions, merges
and collections. Each run leaves some kinds of trouble out, so that others get further.
"""

from contextlib import contextmanager
from random import Random
from typing import NamedTuple

from holdfast.engine import lifetimes, stream, tier
from holdfast.format import pack_builder, packs
from holdfast.objects import pack_merge, pack_reader
from holdfast.storage import (
    blocks,
    cold,
    flush,
    garbage,
    merge,
)


class Plan(NamedTuple):
    steps: int
    names: int
    # Streams that may be forked, and how often something is asked for that concerns several.
    kin: int
    related_share: float
    # The shard.
    batch_bytes_max: int
    pending_bytes_max: int
    commit_timeout_s: float
    ttl_is_fixed: bool
    soft_bytes: int
    hard_bytes: int
    flush_age_s: float
    streams_cached_max: int
    # The log.
    segment_bytes: int
    ballast_bytes: int
    zero_ahead_bytes: int
    # Storage.
    merge_packs: int
    grace_s: float
    collect_s: float
    cache_bytes: int
    # How often, as a share of the steps.
    crash_rate: float
    log_trouble_rate: float
    store_trouble_rate: float
    cold_trouble_rate: float
    worker_kill_rate: float
    # How often a failpoint that is passed kills the storage process, or the whole node.
    failpoint_rate: float
    node_failpoint_rate: float
    pause_rate: float
    write_share: float
    constants: tuple


def make_plan(seed):
    random = Random(seed)

    def rate(most):
        return random.choice([0.0, most / 4, most])

    soft_bytes = random.choice([2000, 4000, 8000])
    return Plan(
        steps=random.choice([200, 400, 600]),
        names=random.choice([2, 5, 9]),
        kin=random.choice([0, 3, 6, 9]),
        related_share=random.choice([0.0, 0.1, 0.3, 0.4]),
        batch_bytes_max=random.choice([200, 1000, 1 << 20]),
        pending_bytes_max=random.choice([3000, 1 << 20, 1 << 20]),
        commit_timeout_s=random.choice([0.3, 2.0]),
        ttl_is_fixed=random.random() < 0.2,
        soft_bytes=soft_bytes,
        hard_bytes=int(soft_bytes * random.choice([1.2, 2, 4])),
        flush_age_s=random.choice([2.0, 20.0]),
        streams_cached_max=random.choice([0, 1, 3, 1000]),
        segment_bytes=random.choice([600, 4096, 1 << 20]),
        ballast_bytes=random.choice([0, 600]),
        zero_ahead_bytes=random.choice([0, 0, 512]),
        merge_packs=random.choice([2, 3, 4]),
        grace_s=random.choice([3.0, 10.0]),
        collect_s=random.choice([2.0, 9.0]),
        cache_bytes=random.choice([0, 500, 1 << 20]),
        crash_rate=rate(0.04),
        log_trouble_rate=rate(0.06),
        store_trouble_rate=rate(0.06),
        cold_trouble_rate=rate(0.06),
        worker_kill_rate=rate(0.03),
        failpoint_rate=rate(0.1),
        node_failpoint_rate=rate(0.03),
        pause_rate=random.choice([0.0, 0.02, 0.1]),
        write_share=random.choice([0.5, 0.65, 0.8]),
        constants=make_constants(random),
    )


def make_constants(random):
    """(modules, name, value) of the sizes that are fixed in the code."""
    block_bytes = random.choice([16, 100, packs.BLOCK_BYTES])
    extent_bytes = random.choice([150, 1000, packs.EXTENT_BYTES_MAX])
    extent_messages = random.choice([3, packs.EXTENT_MESSAGES_MAX])
    tier_bytes = random.choice([(2000, 8000, 40_000), (1 << 20, 8 << 20)])
    small = random.choice([1, 3, 500])
    return (
        ((packs, pack_builder, cold, blocks), "BLOCK_BYTES", block_bytes),
        ((blocks,), "_REQUEST_BLOCKS_MAX", random.choice([1, 4])),
        ((packs, pack_builder, pack_merge), "EXTENT_BYTES_MAX", extent_bytes),
        ((packs, pack_builder), "EXTENT_MESSAGES_MAX", extent_messages),
        ((cold,), "EXTENTS_MAX", random.choice([2, 8, 64])),
        ((cold,), "_EXTENTS_AT_FIRST", random.choice([1, 3])),
        ((cold,), "_RECENT_MAX", random.choice([0, 1, 256])),
        ((cold,), "READ_AHEAD_BYTES", random.choice([0, 300, 4 << 20])),
        ((flush,), "RANGE_BYTES_MAX", random.choice([2000, 8000, 1 << 20])),
        ((flush,), "OWN_PACK_BYTES", random.choice([200, 1500, 1 << 20])),
        ((pack_merge,), "_PART_BYTES", random.choice([50, 1000, 1 << 20])),
        ((merge,), "_TIER_BYTES", tier_bytes),
        ((merge,), "_DEAD_BYTES_MIN", random.choice([1, 500])),
        ((merge,), "MESSAGES_MAX", random.choice([20, 4_000_000])),
        ((pack_reader,), "_READ_BYTES", random.choice([64, 8 << 20])),
        ((pack_reader,), "_TAIL_BYTES", random.choice([200, 256 << 10])),
        ((garbage,), "SWEEP_OBJECTS_MAX", random.choice([2, 10_000])),
        ((tier,), "_STREAMS_PER_ROUND", small),
        ((lifetimes,), "_SWEEP_STREAMS_MAX", random.choice([1, 3, 500])),
        ((stream,), "WAKES_PER_ROUND", random.choice([1, 32])),
    )


@contextmanager
def in_force(plan):
    """Put the plan's constants into the modules, for as long as the run takes."""
    before = []
    try:
        for modules, name, value in plan.constants:
            for module in modules:
                before.append((module, name, getattr(module, name)))
                setattr(module, name, value)
        yield
    finally:
        for module, name, value in reversed(before):
            setattr(module, name, value)
