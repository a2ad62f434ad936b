"""What is recorded, how it is added up, and the document that it becomes."""

import json

import pytest

from holdfast.cli.bench.messages import Delivered, ProgressReport
from holdfast.cli.bench.result import Latencies, LatencyCounts, Measurement, Recorder, to_json
from holdfast.cli.bench.run import Cleanup
from holdfast.testing import FakeClock

KEYS = [
    "version",
    "scenario",
    "url",
    "started_at_ms",
    "parameters",
    "interrupted",
    "elapsed_s",
    "operations",
    "operations_per_s",
    "bytes",
    "megabytes_per_s",
    "warmup_operations",
    "unsent_operations",
    "latency_ms",
    "latency_histogram",
    "errors",
    "error_examples",
    "series",
    "fanout",
    "cleanup",
]


def counted(*values_us):
    counts = LatencyCounts()
    for value_us in values_us:
        # Half a microsecond more, or the float would be one less.
        counts.add((value_us + 0.5) / 1_000_000)
    return counts


def encoded(*values_us):
    latencies = Latencies()
    latencies.record(counted(*values_us))
    return latencies.encode()


def progress(second, until_s, values_us, **more):
    given = {"warmup_operations": 0, "errors": {}, "examples": {}, **more}
    count = len(values_us)
    return ProgressReport(
        second=second,
        until_s=until_s,
        operations=count,
        size_bytes=count * 100,
        latency=encoded(*values_us),
        **given,
    )


def result_of(measurement, **more):
    given = {
        "scenario": "append",
        "url": "http://127.0.0.1:1",
        "started_at_ms": 7,
        "parameters": {"streams": 1},
        "interrupted": False,
        "unsent": 0,
        "delivered": [],
        "cleanup": Cleanup(1, 0),
    }
    return measurement.result(**given | more)


def delivered(**more):
    counts = dict.fromkeys(["lost", "duplicated", "reordered", "replayed", "reconnects"], 0)
    given = {"appends": 2, "append_latency": encoded(1000), "deliveries": 10, **counts}
    return Delivered(**given | more)


class TestLatencies:
    def test_merged_is_what_one_would_have_recorded(self):
        merged = Latencies()
        merged.add(encoded(*range(1, 1000)))
        merged.add(encoded(*range(1000, 2000)))
        assert merged.count == 1999
        assert merged.summary() == pytest.approx(
            {
                "min": 0.001,
                "mean": 1.0,
                "p50": 1.0,
                "p90": 1.8,
                "p99": 1.98,
                "p99_9": 1.998,
                "max": 1.999,
            },
            rel=0.002,
        )

    def test_extremes_are_kept_within_an_hour(self):
        latencies = Latencies()
        latencies.record(counted(-5, 0, 10**12))
        assert latencies.count == 3
        assert latencies.summary()["max"] == pytest.approx(3_600_000, rel=0.001)

    def test_what_is_counted_together_is_recorded_together(self):
        """However many latencies there are, a report has few of them to record."""
        counts = counted(*range(100_000, 200_000, 7))
        assert sum(counts.by_us.values()) == len(range(100_000, 200_000, 7))
        assert len(counts.by_us) < 2048
        latencies = Latencies()
        latencies.record(counts)
        assert latencies.at_ms(50) == pytest.approx(150, rel=0.002)

    def test_nothing_recorded_is_null(self):
        assert set(Latencies().summary().values()) == {None}


class TestRecorder:
    def test_latency_counts_from_when_it_was_due(self):
        clock = FakeClock()
        recorder = Recorder(clock)
        recorder.measure(0.0, 10.0)
        clock.advance(0.25)
        recorder.succeeded(0.05, 100)
        report = recorder.report()
        merged = Latencies()
        merged.add(report.latency)
        assert (report.operations, report.size_bytes) == (1, 100)
        assert merged.at_ms(50) == pytest.approx(200, rel=0.001)

    def test_warm_up_is_counted_and_not_measured(self):
        clock = FakeClock()
        recorder = Recorder(clock)
        recorder.measure(1.0, 2.0)
        clock.advance(1.5)
        recorder.succeeded(0.9, 100)
        recorder.failed("timeout")
        report = recorder.report()
        assert (report.operations, report.warmup_operations) == (0, 1)
        assert report.errors == {"timeout": 1}

    def test_a_report_takes_everything_out(self):
        recorder = Recorder(FakeClock())
        recorder.measure(0.0, 1.0)
        recorder.succeeded(0.0, 1)
        recorder.failed("http_503", b"  full\n disk")
        recorder.failed("http_503", b"other")
        first, second = recorder.report(), recorder.report()
        assert first.examples == {"http_503": "full disk"}
        assert (second.second, second.operations, second.errors) == (1, 0, {})

    def test_the_time_after_the_end_counts_as_long_as_answers_come(self):
        clock = FakeClock()
        recorder = Recorder(clock)
        recorder.measure(1.0, 2.0)
        clock.advance(2.5)
        recorder.succeeded(1.9, 1)
        clock.advance(10)
        assert recorder.report().until_s == pytest.approx(1.5)


class TestMeasurement:
    def test_processes_are_added_up_second_by_second(self):
        measurement = Measurement()
        measurement.add(progress(0, 1.0, [1000] * 10))
        measurement.add(progress(0, 1.01, [3000] * 30, errors={"timeout": 2}))
        measurement.add(progress(1, 2.0, [1000] * 5, errors={"timeout": 1, "http_503": 1}))
        result = result_of(measurement)
        assert (result.operations, result.bytes, result.elapsed_s) == (45, 4500, 2.0)
        assert result.operations_per_s == 22.5
        assert result.errors == {"http_503": 1, "timeout": 3}
        assert result.failed
        assert [(s.second, s.operations, s.errors) for s in result.series] == [
            (0, 40, 2),
            (1, 5, 2),
        ]
        assert sum(s.length_s for s in result.series) == pytest.approx(result.elapsed_s)
        assert result.series[0].p50_ms == pytest.approx(3.0, rel=0.001)

    def test_no_time_at_all_is_no_rate(self):
        measurement = Measurement()
        measurement.add(progress(0, 0.0, []))
        result = result_of(measurement)
        assert result.operations_per_s == 0
        assert result.series[0].p99_ms is None
        assert not result.failed

    @pytest.mark.parametrize("fault", ["lost", "duplicated", "reordered"])
    def test_a_fan_out_that_is_not_exact_has_failed(self, fault):
        good = result_of(Measurement(), delivered=[delivered(), delivered(replayed=1)])
        assert (good.fanout.appends, good.fanout.deliveries, good.failed) == (4, 20, False)
        bad = result_of(Measurement(), delivered=[delivered(), delivered(**{fault: 1})])
        assert bad.failed

    def test_the_document_has_the_documented_keys(self):
        measurement = Measurement()
        measurement.add(progress(0, 1.0, [1000]))
        document = json.loads(to_json(result_of(measurement, delivered=[delivered()])))
        assert list(document) == KEYS
        assert document["version"] == 1
        assert list(document["latency_ms"]) == ["min", "mean", "p50", "p90", "p99", "p99_9", "max"]
        assert list(document["series"][0]) == [
            "second",
            "length_s",
            "operations",
            "bytes",
            "errors",
            "p50_ms",
            "p99_ms",
        ]
        assert list(document["fanout"]) == [
            "appends",
            "append_latency_ms",
            "deliveries",
            "lost",
            "duplicated",
            "reordered",
            "replayed",
            "reconnects",
        ]
        assert document["cleanup"] == {"streams_deleted": 1, "streams_left": 0}
