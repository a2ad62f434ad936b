"""The report's plots: axes, marks and tooltips."""

import re
from datetime import UTC, datetime
from html import unescape
from itertools import pairwise

import pytest

from holdfast.spark.jobs.report_plots import (
    Axis,
    HistogramBins,
    Series,
    bytes_text,
    count_text,
    histogram,
    line,
    seconds_text,
    stacked_bars,
)

DAY_S = 86_400
START_S = 1_767_225_600


def wide(plot):
    return plot.partition('class="wide"')[2].partition("</svg>")[0]


def labels(svg):
    """The texts of a plot, with where each of them is."""
    found = re.findall(r'<text style="[^"]*" x="([\d.-]+)" y="([\d.-]+)"[^>]*>([^<]*)<', svg)
    return [(unescape(text), float(x), float(y)) for x, y, text in found]


def tips(svg):
    return [unescape(each) for each in re.findall(r"<title>([^<]*)</title>", svg)]


def boxes(svg):
    """Colour, top, bottom of each bar that has a tooltip."""
    found = re.findall(r"</title>\s*<path d=\"([^\"]*)\"[^>]*style=\"fill: ([^;\"]*)", svg)
    made = []
    for path, colour in found:
        ups = [float(each) for each in re.findall(r"[ML] [\d.-]+ ([\d.-]+)", path)]
        made.append((colour, min(ups), max(ups)))
    return made


def bars(values, axis=None, step_s=DAY_S):
    starts = [START_S + at * step_s for at in range(len(values))]
    return stacked_bars(starts, step_s, [Series("a", values)], axis or Axis("N", count_text), str)


@pytest.mark.parametrize(
    ("largest", "ticks"),
    [
        (0, ["0", "1"]),
        (1, ["0", "1", "2"]),
        (3, ["0", "1", "2", "3", "4"]),
        (7, ["0", "2", "4", "6", "8"]),
        (101, ["0", "25", "50", "75", "100", "125"]),
        (2_400_000, ["0", "500 k", "1 M", "1.5 M", "2 M", "2.5 M"]),
    ],
)
def test_ticks_are_round_and_reach_the_largest(largest, ticks):
    found = [text for text, _, _ in labels(wide(bars([largest])))]
    assert found[2 : 2 + len(ticks)] == ticks


def test_ticks_of_sizes_are_round_in_their_unit():
    found = [text for text, _, _ in labels(wide(bars([2.8 * 2**20], Axis("N", bytes_text, 1024))))]
    assert found[2:-1] == ["0 B", "614 KiB", "1.2 MiB", "1.8 MiB", "2.4 MiB", "3 MiB"]


@pytest.mark.parametrize(
    ("days", "step_s", "said"),
    [
        (0.2, 60, ["1 Jan", "01:00", "02:00", "03:00", "04:00"]),
        (3, 900, ["01 Jan", "02 Jan", "03 Jan"]),
        (200, DAY_S, ["2026", "Feb 2026", "Mar 2026", "Jul 2026"]),
        (2000, 7 * DAY_S, ["2026", "2027", "2031"]),
    ],
)
def test_ticks_of_times(days, step_s, said):
    starts = list(range(START_S, START_S + int(days * DAY_S), step_s))
    drawn = wide(line(starts, step_s, [1] * len(starts), Axis("N", count_text), str))
    found = [text.lstrip("0") for text, _, _ in labels(drawn)]
    assert {each.lstrip("0") for each in said} <= set(found)


def test_bars_are_stacked_and_say_their_figures():
    series = [Series("a<b\0", [10, 0]), Series("others", [30, 5], "rest")]
    drawn = stacked_bars(
        [0, DAY_S], DAY_S, series, Axis("Bytes", count_text), lambda start: f"day {start}"
    )
    first, second, third = boxes(wide(drawn))
    assert [first[0], second[0], third[0]] == ["var(--s0)", "var(--rest)", "var(--rest)"]
    assert second[2] == pytest.approx(first[1], abs=0.1)
    assert second[2] - second[1] == pytest.approx(3 * (first[2] - first[1]), abs=0.1)
    assert tips(wide(drawn))[0] == "day 0\na<b\ufffd: 10\nall: 40"


def test_bars_are_named_by_day_or_by_month():
    assert labels(wide(bars([1])))[0][0] == "1 Jan"
    assert labels(wide(bars([1], step_s=28 * DAY_S)))[0][0] == "Jan 2026"


def test_a_line_says_the_figures_of_each_point():
    drawn = wide(line([0, 60, 120], 60, [1, 3, 2], Axis("Messages", count_text), str))
    assert tips(drawn) == ["0\n1 messages", "60\n3 messages", "120\n2 messages"]


def test_a_single_point_is_drawn_as_a_marker():
    for values in ([0], [5]):
        drawn = line([START_S], 60, values, Axis("Messages", count_text), str)
        assert "NaN" not in drawn
        marks = [each for each in re.findall(r"<use [^>]*>", drawn) if "stroke: var(--s0)" in each]
        assert len(marks) == 2
    many = line(list(range(0, 6000, 60)), 60, [1] * 100, Axis("Messages", count_text), str)
    assert "stroke: var(--s0)" not in "".join(re.findall(r"<use [^>]*>", many))


def test_a_histogram_has_a_bar_for_each_bin_and_labels_that_fit():
    bins = HistogramBins([2.0**each for each in range(15)], [1] * 14, bytes_text)
    drawn = histogram(bins, Axis("Streams", count_text), "Size", "streams")
    for svg in drawn.split("<svg ")[1:]:
        assert len(tips(svg)) == 14
        width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])
        below = [across for text, across, _ in labels(svg) if text.endswith("B")]
        assert all(0 < each < width for each in below)
        assert all(b - a > 50 for a, b in pairwise(below))
    assert tips(wide(drawn))[0] == "1 B to 2 B\n1 streams"


def test_the_same_figures_give_the_same_bytes():
    year = str(datetime.now(UTC).year)
    one, two = (bars([3, 4, 5]) for _ in range(2))
    assert one == two
    assert f"{year}-" not in one


def test_texts():
    assert [bytes_text(each) for each in (0, 1023, 1024, 1536, 3 << 30)] == [
        *("0 B", "1023 B", "1 KiB", "1.5 KiB", "3 GiB")
    ]
    assert [count_text(each) for each in (0, 0.25, 7, 999, 1000, 1_234_567)] == [
        *("0", "0.25", "7", "999", "1 k", "1.2 M")
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 ms"),
        (0.00097, "1.0 ms"),
        (0.0156, "16 ms"),
        (0.5, "500 ms"),
        (1, "1 s"),
        (2.34, "2.3 s"),
        (64, "64 s"),
        (256, "4.3 min"),
        (8192, "2.3 h"),
        (10_000_000, "2778 h"),
    ],
)
def test_times_are_short(value, text):
    assert seconds_text(value) == text
