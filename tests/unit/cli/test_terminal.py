"""What commands write: numbers with units, bars, and the two log formats."""

import json
import logging
import sys

import pytest

from holdfast.cli.terminal import (
    JsonFormatter,
    TextFormatter,
    as_bytes,
    as_count,
    as_duration,
    as_latency,
    as_rate,
    as_share,
    printable,
    set_up_logging,
)
from holdfast.cli.top.screen import ASCII_BARS, BARS, POINTS_MAX, WINDOW_S, History, bars
from holdfast.settings import LogSettings


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1024**2 - 1, "1.00 MiB"),
        (15.7 * 1024**2, "15.7 MiB"),
        (256 * 1024**2, "256 MiB"),
        (3 * 1024**6, "3072 PiB"),
    ],
)
def test_bytes(value, text):
    assert as_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0/s"),
        (0.004, "0.1/s"),
        (9.96, "10.0/s"),
        (1234.4, "1,234/s"),
        (99_999, "99,999/s"),
        (1_234_567, "1.23 M/s"),
    ],
)
def test_rates(value, text):
    assert as_rate(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.000196, "196 µs"), (0.00393, "3.93 ms"), (0.25, "250 ms"), (2.5, "2.50 s")],
)
def test_latencies(seconds, text):
    assert as_latency(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.5, "0 s"),
        (61, "1 min 1 s"),
        (3600, "1 h 0 min"),
        (90_061, "1 d 1 h"),
    ],
)
def test_durations(seconds, text):
    assert as_duration(seconds) == text


def test_counts_and_shares():
    assert as_count(1_234_567) == "1,234,567"
    assert as_count(None) == "-"
    assert as_share(0.254) == "25 %"
    assert as_share(None) == "-"


def test_nothing_that_a_terminal_obeys_gets_through():
    assert printable("a\x1b[2Jb\nc\x9bd é") == "a?[2Jb?c?d é"


class TestBars:
    def test_they_go_from_zero_to_the_largest(self):
        assert bars([0.0, 5.0, 10.0]) == f"{BARS[0]}{BARS[4]}{BARS[7]}"

    def test_the_smallest_something_differs_from_nothing(self):
        assert bars([0.0, 0.001, 1000.0])[:2] == BARS[:2]

    def test_where_nothing_is_known_there_is_a_gap(self):
        assert bars([None, 1.0]) == f" {BARS[7]}"
        assert bars([]) == ""

    def test_all_zero_is_a_line(self):
        assert bars([0.0, 0.0]) == BARS[0] * 2

    def test_plain_terminals_have_bars_too(self):
        assert bars([0.0, 1.0], ascii_only=True) == f"{ASCII_BARS[0]}{ASCII_BARS[7]}"


class TestHistory:
    def test_the_latest_is_last_and_peaks_stay(self):
        history = History()
        for at_s, value in ((1000.0, 1.0), (1001.0, 9.0), (1002.0, 2.0), (1011.0, 3.0)):
            history.add(at_s, value)
        assert history.slots(12, 1011.0, 1.0)[-2:] == [9.0, 3.0]

    def test_what_is_older_than_the_window_is_not_shown(self):
        history = History()
        history.add(0.0, 5.0)
        assert history.slots(10, WINDOW_S * 2, 1.0) == [None] * 10

    def test_long_intervals_leave_no_gaps(self):
        history = History()
        for at in range(10):
            history.add(at * 60.0, float(at))
        assert history.slots(5, 9 * 60.0, 60.0) == [5.0, 6.0, 7.0, 8.0, 9.0]

    def test_no_value_is_a_gap(self):
        history = History()
        history.add(5.0, None)
        assert history.slots(3, 5.0, 1.0) == [None] * 3

    def test_it_does_not_grow_for_ever(self):
        history = History()
        for at in range(POINTS_MAX + 500):
            history.add(float(at), 1.0)
        assert len(history._points) == POINTS_MAX


def record(**extra):
    values = {"name": "holdfast.x", "levelno": 30, "levelname": "WARNING", "created": 0.5}
    return logging.makeLogRecord({**values, "msg": "%s left", "args": ("7 MiB",), **extra})


def test_text_log_lines():
    line = TextFormatter().format(record())
    assert line == "1970-01-01T00:00:00.500Z WARNING holdfast.x: 7 MiB left"


def test_json_log_lines_with_extra_values():
    assert json.loads(JsonFormatter().format(record(path="/srv"))) == {
        "time": "1970-01-01T00:00:00.500Z",
        "level": "warning",
        "logger": "holdfast.x",
        "message": "7 MiB left",
        "path": "/srv",
    }


def test_json_log_line_keeps_a_traceback_on_one_line():
    try:
        raise ValueError("no")  # noqa: TRY301
    except ValueError:
        line = JsonFormatter().format(record(exc_info=sys.exc_info()))
    assert "\n" not in line
    assert "ValueError: no" in json.loads(line)["exception"]


@pytest.fixture
def root_logger():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield root
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(capture=False)


def test_level_and_format_are_settings(root_logger, capsys):
    set_up_logging(LogSettings(level="warning", format="json"))
    logging.getLogger("holdfast.y").info("unheard")
    logging.getLogger("holdfast.y").error("heard")
    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["heard"]
