"""The metrics of the storage: flush, merge, garbage, cold reads, memory and back-pressure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.http.metric_families import counter, gauge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from holdfast.engine.shard import Shard
    from holdfast.engine.tier import Tier
    from holdfast.storage.cold import ColdReader


def storage_metrics(shard: Shard) -> Iterator[Metric]:
    """Every family, or none where nothing is ever flushed."""
    if shard.tier is None or shard.cold is None:
        return
    yield from _memory(shard, shard.tier)
    yield from _work(shard.tier)
    yield from _cold_reads(shard.cold)


def _memory(shard: Shard, tier: Tier) -> Iterator[Metric]:
    state = shard.state
    yield gauge("holdfast_hot_bytes", "Message bytes that are not in packs.", tier.hot_bytes)
    yield gauge("holdfast_hot_cost_bytes", "What they cost in memory.", tier.cost_bytes)
    yield gauge("holdfast_streams_in_memory", "Streams in memory.", len(state.by_number))
    yield counter("holdfast_rehydrations", "Streams brought back into memory.", state.loads)
    yield counter("holdfast_evictions", "Idle streams that left memory.", tier.evictions)
    yield gauge(
        "holdfast_write_backpressure",
        "1 while appends are refused for want of memory.",
        int(bool(shard.full)),
    )
    yield counter(
        "holdfast_write_backpressure_refusals",
        "Writes refused for want of memory.",
        shard.refusals,
    )


def _work(tier: Tier) -> Iterator[Metric]:
    done = tier.worker.counters
    yield gauge("holdfast_flush_in_progress", "1 while a flush is under way.", int(tier.flushing))
    yield gauge("holdfast_flushed_position", "Position that packs cover.", tier.flushed)
    yield counter("holdfast_flushes", "Flushes carried out.", done.flushes)
    yield counter("holdfast_flush_seconds", "Time spent in flushes.", done.flush_us * 1e-6)
    yield counter("holdfast_flush_retries", "Flushes that failed and were repeated.", tier.retries)
    yield counter("holdfast_flush_bytes", "Message bytes flushed.", done.data_bytes)
    yield counter("holdfast_packs_written", "Packs written by flush and merge.", done.packs)
    yield counter("holdfast_pack_bytes", "Bytes of the packs written.", done.pack_bytes)
    yield counter("holdfast_merges", "Merges of packs.", done.merges)
    yield counter("holdfast_merge_seconds", "Time spent in merges.", done.merge_us * 1e-6)
    yield counter("holdfast_merge_bytes", "Bytes of merged packs.", done.merged_bytes)
    yield counter("holdfast_merge_failures", "Merges that failed.", done.merge_failures)
    yield counter("holdfast_pack_swaps", "Swaps asked for from outside.", done.swaps)
    yield counter("holdfast_objects_removed", "Objects collected.", done.objects_removed)
    yield counter("holdfast_objects_removed_bytes", "Their bytes.", done.removed_bytes)
    yield counter(
        "holdfast_storage_restarts", "Deaths of the storage process.", tier.worker.restarts
    )


def _cold_reads(cold: ColdReader) -> Iterator[Metric]:
    counters, cache = cold.blocks.counters, cold.blocks.cache
    yield counter("holdfast_cold_reads", "Reads from packs.", counters.reads)
    yield counter("holdfast_cold_read_bytes", "Message bytes they gave.", counters.read_bytes)
    yield counter("holdfast_cold_fetches", "Requests to the object store.", counters.fetches)
    yield counter("holdfast_cold_fetch_bytes", "Bytes they brought.", counters.fetched_bytes)
    yield counter("holdfast_cold_fetch_failures", "Requests that failed.", counters.fetch_failures)
    yield counter(
        "holdfast_cold_fetches_shared",
        "Reads that waited for a request of another.",
        counters.joined,
    )
    yield gauge("holdfast_block_cache_bytes", "Bytes in the block cache.", cache.size_bytes)
    yield counter("holdfast_block_cache_hits", "Blocks found there.", counters.cache_hits)
    yield counter("holdfast_block_cache_misses", "Blocks not found.", counters.cache_misses)
