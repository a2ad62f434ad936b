"""Two samples and what is made of them."""

import msgspec
import pytest

from holdfast.cli.top.measure import (
    Sample,
    ServerStatus,
    StorageStats,
    decode_lenient,
    measure,
    parse_exposition,
)
from tests.unit.cli.top.samples import STARTED_MS, STATUS, STORAGE, sample

URL = "http://server:1"
MEMORY_ONLY = b"""{"hot": {"bytes": 77, "cost_bytes": null, "soft_limit_bytes": null,
 "hard_limit_bytes": null, "streams_in_memory": 2, "hottest": []},
 "cold": null, "flush": null, "backpressure": null, "cache": null}"""


def between(before, after):
    return measure(URL, before, after)


class TestRates:
    def test_they_are_per_second(self):
        figures = between(sample(0, appends=100), sample(2, appends=300))
        assert figures.interval_s == 2
        assert figures.appends.per_s == 100
        assert figures.appends.bytes_per_s == 10_000
        assert not figures.restarted

    def test_one_sample_has_none(self):
        figures = between(None, sample(5, appends=100))
        assert figures.appends.per_s is None
        assert figures.commits.p50_s is None
        assert figures.interval_s is None
        assert figures.streams.total == 40

    def test_errors_are_told_apart_and_looking_is_left_out(self):
        figures = between(sample(0), sample(1, appends=5, refused=2, failed=3, looked=50))
        assert figures.requests.per_s == 10
        assert figures.requests.refused_per_s == 2
        assert figures.requests.failed_per_s == 3

    def test_latencies_are_those_of_the_interval(self):
        figures = between(sample(0, slow=10_000), sample(1, slow=10_000, fast=100))
        assert figures.commits.p50_s == pytest.approx(0.0005)
        assert figures.commits.p99_s == pytest.approx(0.00099)
        figures = between(sample(0, fast=10_000), sample(1, fast=10_000, slow=100))
        assert figures.commits.p50_s == pytest.approx(0.003)

    def test_no_commits_have_no_latency(self):
        assert between(sample(0, fast=5), sample(1, fast=5)).commits.p99_s is None

    def test_hit_rate_is_that_of_the_interval(self):
        before, after = sample(0, hits=90, misses=10), sample(1, hits=91, misses=13)
        figures = between(before, after)
        assert figures.cache.hit_rate == 0.25
        assert figures.cache.hit_rate_since_start == pytest.approx(91 / 104, abs=1e-4)
        assert between(after, sample(2, hits=91, misses=13)).cache.hit_rate is None

    def test_two_samples_of_the_same_moment_have_none(self):
        assert between(sample(1), sample(1, appends=5)).appends.per_s is None

    def test_streams_have_rates_from_their_tails(self):
        later = STORAGE.replace(b'"tail": 9000', b'"tail": 9500')
        figures = between(sample(0), sample(2, stats=later))
        assert [(each.stream, each.bytes_per_s) for each in figures.hottest] == [
            ("demo/a", 250),
            ("_default/b", 0),
        ]

    def test_a_stream_that_is_new_or_was_created_again_has_none(self):
        later = STORAGE.replace(b"demo/a", b"demo/c").replace(b'"tail": 548', b'"tail": 5')
        figures = between(sample(0), sample(1, stats=later))
        assert [each.bytes_per_s for each in figures.hottest] == [None, None]


class TestRestart:
    def test_another_time_of_start_is_one_even_if_counters_grew(self):
        status = msgspec.structs.replace(STATUS, started_at_ms=STARTED_MS + 60_000)
        figures = between(sample(0, appends=5), sample(1, appends=500, status=status))
        assert figures.restarted
        assert figures.appends.per_s is None
        assert figures.requests.per_s is None
        assert figures.commits.p50_s is None
        assert figures.hottest[0].bytes_per_s is None

    def test_without_such_a_time_a_counter_that_fell_is_one(self):
        figures = between(sample(0, status=None, appends=50), sample(1, status=None, appends=5))
        assert figures.restarted
        assert figures.appends.per_s is None

    def test_prometheus_own_time_of_start_counts_as_well(self):
        before = sample(0, status=None, more="process_start_time_seconds 1799999990")
        after = sample(1, status=None, appends=9, more="process_start_time_seconds 1799999999")
        assert between(before, after).restarted
        assert between(before, after).server.uptime_s == 2

    def test_the_next_interval_is_as_usual(self):
        status = msgspec.structs.replace(STATUS, started_at_ms=STARTED_MS + 60_000)
        after, later = sample(1, status=status), sample(2, appends=7, status=status)
        assert not between(after, later).restarted
        assert between(after, later).appends.per_s == 7

    def test_a_single_counter_that_fell_gives_no_negative_rate(self):
        assert between(sample(0, hits=9), sample(1, hits=1)).cache.hit_rate is None


class TestWhatIsThere:
    def test_everything(self):
        figures = between(sample(0), sample(1))
        assert figures.server.version == "1.2.3"
        assert figures.server.uptime_s == 1001
        assert figures.hot.bytes == 2048
        assert figures.hot.hard_limit_bytes == 16_384
        assert figures.cold.bytes == 7500
        assert figures.flush.backlog_bytes == 3000
        assert figures.backpressure.active is False
        assert figures.readers.live == 7
        assert figures.readers.connections == 12
        assert figures.missing == ()

    def test_memory_only_mode_has_hot_alone(self):
        figures = between(None, sample(0, stats=MEMORY_ONLY))
        assert figures.hot.bytes == 77
        assert figures.cold.bytes is None
        assert figures.flush.backlog_bytes is None
        assert figures.backpressure.active is None
        assert figures.missing == ()

    def test_without_stats_the_metrics_tell_what_they_know(self):
        more = """holdfast_hot_bytes 33
holdfast_hot_cost_bytes 44
holdfast_flush_in_progress 1
holdfast_log_bytes 55
holdfast_log_segments 2
holdfast_write_backpressure 1"""
        figures = between(None, sample(0, stats=None, more=more))
        assert figures.hot.bytes == 33
        assert figures.hot.cost_bytes == 44
        assert figures.flush.backlog_bytes == 55
        assert figures.flush.in_progress is True
        assert figures.backpressure.active is True
        assert figures.missing == ("/cluster/hot-cold-stats",)

    def test_another_server_has_next_to_nothing(self):
        other = Sample(1, 1.0, parse_exposition(b"other_requests_total 5\n"))
        figures = between(other, Sample(2, 2.0, parse_exposition(b"other_requests_total 9\n")))
        assert figures.appends.per_s is None
        assert figures.server == type(figures.server)()
        assert figures.missing == (
            "holdfast metrics",
            "/cluster/status",
            "/cluster/hot-cold-stats",
        )

    @pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"hot": 5}', b"\xff"])
    def test_an_answer_of_another_form_is_none(self, body):
        assert decode_lenient(body, StorageStats) is None

    def test_a_status_may_lack_anything(self):
        assert decode_lenient(b'{"mode": "cluster", "x": 1}', ServerStatus) == ServerStatus(
            "cluster"
        )

    def test_a_clock_behind_the_servers_gives_no_negative_uptime(self):
        status = msgspec.structs.replace(STATUS, started_at_ms=STARTED_MS * 2)
        assert between(None, sample(0, status=status)).server.uptime_s == 0


def test_json_has_the_documented_keys():
    document = msgspec.json.decode(msgspec.json.encode(between(sample(0), sample(1))))
    assert {name: sorted(value) for name, value in document.items() if isinstance(value, dict)} == {
        "server": ["durability", "mode", "state", "uptime_s", "version"],
        "streams": ["buckets", "in_memory", "stored_bytes", "total"],
        "appends": ["bytes_per_s", "duplicates_per_s", "per_s"],
        "requests": ["failed_per_s", "per_s", "refused_per_s"],
        "readers": ["connections", "live"],
        "commits": ["failures_per_s", "p50_s", "p99_s", "per_s", "stalled"],
        "hot": ["bytes", "cost_bytes", "hard_limit_bytes", "soft_limit_bytes"],
        "cold": ["bytes", "pack_bytes", "packs", "reads_per_s", "streams"],
        "flush": ["backlog_bytes", "backlog_segments", "bytes_per_s", "in_progress", "trouble"],
        "backpressure": ["active", "reason", "refused_per_s"],
        "cache": ["bytes", "hit_rate", "hit_rate_since_start", "limit_bytes"],
    }
    assert [name for name, value in document.items() if not isinstance(value, dict)] == [
        "at_ms",
        "url",
        "reachable",
        "unreachable_since_ms",
        "error",
        "restarted",
        "interval_s",
        "hottest",
        "missing",
    ]
    assert sorted(document["hottest"][0]) == ["bytes_per_s", "hot_bytes", "stream", "tail"]
