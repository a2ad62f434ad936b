"""Samples of a server that never was."""

from holdfast.cli.top.measure import (
    Sample,
    ServerStatus,
    StorageStats,
    decode_lenient,
    parse_exposition,
)

STARTED_MS = 1_799_999_000_000
STATUS = ServerStatus("single", "1.2.3", "ready", "fsync", STARTED_MS)
STORAGE = b"""{
 "hot": {"bytes": 2048, "cost_bytes": 4096, "soft_limit_bytes": 8192, "hard_limit_bytes": 16384,
         "streams_in_memory": 5, "streams_changed": 2,
         "hottest": [{"stream": "demo/a", "hot_bytes": 1500, "tail": 9000},
                     {"stream": "_default/b", "hot_bytes": 548, "tail": 548}]},
 "cold": {"bytes": 7500, "streams": 3, "packs": 2, "pack_bytes": 6000, "dead_bytes": 0,
          "retired_packs": 0},
 "flush": {"position": 9, "flushed_position": 5, "backlog_log_bytes": 3000,
           "backlog_segments": 1, "in_progress": false, "trouble": null, "retries": 0,
           "process_restarts": 0},
 "backpressure": {"active": false, "reason": null, "refused": 0, "delayed_s": 0.0},
 "cache": {"bytes": 10, "limit_bytes": 100, "blocks": 1, "hits": 3, "misses": 1}
}"""


def storage(body=STORAGE):
    return decode_lenient(body, StorageStats)


def page(
    appends=0,
    refused=0,
    failed=0,
    looked=0,
    fast=0,
    slow=0,
    hits=0,
    misses=0,
    more="",
):
    """Metrics, of which the given ones grew."""
    return parse_exposition(
        f"""# TYPE holdfast_appends_total counter
holdfast_appends_total {appends}
holdfast_append_bytes_total {appends * 100}
holdfast_duplicate_appends_total 0
holdfast_http_requests_total{{route="append",status="204"}} {appends}
holdfast_http_requests_total{{route="append",status="409"}} {refused}
holdfast_http_requests_total{{route="read",status="503"}} {failed}
holdfast_http_requests_total{{route="metrics",status="200"}} {looked}
holdfast_http_requests_total{{route="metrics",status="401"}} {looked}
holdfast_http_connections 12
holdfast_live_readers 7
holdfast_streams 40
holdfast_stored_bytes 9548
holdfast_commits_total {fast + slow}
holdfast_commit_failures_total 0
holdfast_commit_stalled 0
# TYPE holdfast_commit_seconds histogram
holdfast_commit_seconds_bucket{{le="0.001"}} {fast}
holdfast_commit_seconds_bucket{{le="0.002"}} {fast}
holdfast_commit_seconds_bucket{{le="0.004"}} {fast + slow}
holdfast_commit_seconds_bucket{{le="+Inf"}} {fast + slow}
holdfast_commit_seconds_count {fast + slow}
holdfast_commit_seconds_sum 1
holdfast_block_cache_hits_total {hits}
holdfast_block_cache_misses_total {misses}
holdfast_cold_reads_total 0
holdfast_write_backpressure_refusals_total 0
holdfast_flush_bytes_total 0
{more}
""".encode()
    )


def sample(at_s=0.0, status=STATUS, stats=STORAGE, **grown):
    return Sample(
        1_800_000_000_000 + int(at_s * 1000),
        at_s,
        page(**grown),
        status,
        None if stats is None else storage(stats),
    )
