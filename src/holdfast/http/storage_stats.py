"""`GET /cluster/hot-cold-stats`: what is in memory, what is in packs, and how the flush does."""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from holdfast.engine.shard import Shard
    from holdfast.engine.stream import Stream
    from holdfast.engine.tier import Tier
    from holdfast.http.app import App
    from holdfast.storage.cold import ColdReader

_HOTTEST_MAX: Final = 20
# Of more streams than this only a sample is looked at, so that asking stays cheap.
_SAMPLE_STREAMS: Final = 20_000


def hot_cold_stats(app: App) -> dict[str, Any]:
    """The numbers, as `docs/http.md` lists them."""
    shard = app.shard
    tier, cold = shard.tier, shard.cold
    stats: dict[str, Any] = {"hot": _hot(shard, tier)}
    if tier is None or cold is None:
        return stats | {"cold": None, "flush": None, "backpressure": None, "cache": None}
    return stats | {
        "cold": _cold(shard),
        "flush": _flush(shard, tier),
        "backpressure": {
            "active": bool(shard.full),
            "reason": shard.full or None,
            "refused": shard.refusals,
        },
        "cache": _cache(cold, app.settings.storage.block_cache_bytes),
    }


def _hot(shard: Shard, tier: Tier | None) -> dict[str, Any]:
    state = shard.state
    changed = state.generation.streams if tier is None else tier.changed
    return {
        "bytes": state.stored_bytes if tier is None else tier.hot_bytes,
        "cost_bytes": None if tier is None else tier.cost_bytes,
        "soft_limit_bytes": None if tier is None else tier.soft_bytes,
        "hard_limit_bytes": None if tier is None else tier.hard_bytes,
        "streams_in_memory": len(state.by_number),
        "streams_changed": len(changed),
        "hottest": _hottest(changed),
    }


def _hottest(changed: list[Stream]) -> list[dict[str, Any]]:
    stride = max(1, len(changed) // _SAMPLE_STREAMS)
    hottest = nlargest(_HOTTEST_MAX, changed[::stride], key=_hot_bytes)
    return [
        {"stream": stream.meta.name, "hot_bytes": _hot_bytes(stream), "tail": stream.tail}
        for stream in hottest
        if not stream.gone and _hot_bytes(stream)
    ]


def _hot_bytes(stream: Stream) -> int:
    return stream.tail - stream.base


def _cold(shard: Shard) -> dict[str, Any]:
    assert shard.catalog is not None, "where there is a tier there is a catalog"
    totals = shard.catalog.totals()
    return {
        "bytes": totals.stored_bytes,
        "streams": totals.streams,
        "packs": totals.packs,
        "pack_bytes": totals.pack_bytes,
        "dead_bytes": totals.dead_bytes,
        "retired_packs": totals.retired_packs,
    }


def _flush(shard: Shard, tier: Tier) -> dict[str, Any]:
    log = shard.log.stats()
    return {
        "position": shard.position,
        "flushed_position": tier.flushed,
        "backlog_log_bytes": log.size_bytes,
        "backlog_segments": log.segments,
        "in_progress": tier.flushing,
        "trouble": tier.trouble or None,
        "retries": tier.retries,
        "process_restarts": tier.worker.restarts,
    }


def _cache(cold: ColdReader, limit_bytes: int) -> dict[str, Any]:
    blocks = cold.blocks
    return {
        "bytes": blocks.cache.size_bytes,
        "limit_bytes": limit_bytes,
        "blocks": len(blocks.cache),
        "hits": blocks.counters.cache_hits,
        "misses": blocks.counters.cache_misses,
    }
