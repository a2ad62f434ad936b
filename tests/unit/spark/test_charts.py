"""Axes, marks and pages of the report."""

import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from holdfast.spark.jobs.charts import Axis, Histogram, Series, histogram, line, stacked_bars
from holdfast.spark.jobs.markup import node, text_of
from holdfast.spark.jobs.report_page import Section, Tile, legend, page, table
from holdfast.spark.jobs.scales import (
    bytes_text,
    count_text,
    nice_ticks,
    size_ticks,
    time_ticks,
    whole_text,
)

DAY_S = 86_400


@pytest.mark.parametrize(
    ("largest", "ticks"),
    [
        (0, [0, 1]),
        (1, [0, 1]),
        (3, [0, 1, 2, 3]),
        (7, [0, 2, 4, 6, 8]),
        (100, [0, 20, 40, 60, 80, 100]),
        (101, [0, 50, 100, 150]),
        (0.5, [0, 0.1, 0.2, 0.3, 0.4, 0.5]),
    ],
)
def test_ticks_are_round_and_reach_the_largest(largest, ticks):
    assert nice_ticks(largest) == pytest.approx(ticks)


def test_ticks_of_sizes_are_round_in_their_unit():
    mib = 1 << 20
    assert size_ticks(2.4 * mib) == [0, mib, 2 * mib, 3 * mib]
    assert size_ticks(0) == [0, 1]


@pytest.mark.parametrize(
    ("days", "count", "labels"),
    [
        (0.2, 6, ["1 Jan", "01:00", "02:00", "03:00", "04:00"]),
        (1, 6, ["1 Jan", "06:00", "12:00", "18:00", "2 Jan"]),
        (3, 6, ["1 Jan", "12:00", "2 Jan", "12:00", "3 Jan", "12:00", "4 Jan"]),
        (200, 6, ["Jan 2026", "Mar 2026", "May 2026", "Jul 2026"]),
        (2000, 6, ["2026", "2027", "2028", "2029", "2030", "2031"]),
    ],
)
def test_ticks_of_times(days, count, labels):
    start_s = 1_767_225_600
    found = time_ticks(start_s, start_s + int(days * DAY_S), count)
    assert [said for _, said in found] == labels


def test_texts():
    assert [bytes_text(each) for each in (0, 1023, 1024, 1536, 3 << 30)] == [
        *("0 B", "1023 B", "1 KiB", "1.5 KiB", "3 GiB")
    ]
    assert [count_text(each) for each in (0, 0.25, 7, 999, 1000, 1_234_567)] == [
        *("0", "0.25", "7", "999", "1 k", "1.2 M")
    ]
    assert [whole_text(each) for each in (1.5, 12, 1234.5)] == ["1.5", "12", "1,234"]


class Reader(HTMLParser):
    """Collects texts and tags, and complains of what is not closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_what_is_put_in_is_escaped():
    text = text_of(node("p", "<b>&", node("i", class_='">&'), "tail<\0"))
    assert text == '<p>&lt;b&gt;&amp;<i class="&quot;&gt;&amp;"></i>tail&lt;\ufffd</p>'


def test_bars_are_stacked_and_say_their_figures():
    series = [Series("a<b", [10, 0]), Series("rest", [30, 5], None)]
    drawn = stacked_bars([0, DAY_S], DAY_S, series, Axis("Bytes"), lambda start: f"day {start}")
    wide = Reader(text_of(drawn.find("svg")))
    bars = [attrs for tag, attrs in wide.tags if tag == "rect"]
    assert [each["class"] for each in bars] == ["s0", "rest", "rest"]
    first, second, _ = bars
    assert float(second["y"]) + float(second["height"]) == pytest.approx(float(first["y"]), abs=0.1)
    assert float(second["height"]) == pytest.approx(3 * float(first["height"]), abs=0.1)
    assert "day 0\na<b: 10\nall: 40" in wide.texts


def test_a_line_has_a_point_for_each_value():
    drawn = line([0, 60, 120], 60, [1, 3, 2], Axis("Messages"), str)
    wide = Reader(text_of(drawn.find("svg")))
    assert sum(tag == "circle" for tag, _ in wide.tags) == 3
    assert "60\n3 messages" in wide.texts


def test_a_line_of_one_point_and_of_nothing_but_zeros():
    for values in ([0], [5]):
        assert "NaN" not in text_of(line([0], 60, values, Axis("Messages"), str))


def test_a_histogram_has_a_bar_for_each_bin_and_labels_that_fit():
    bins = Histogram([2.0**each for each in range(15)], [1] * 14, bytes_text)
    drawn = histogram(bins, Axis("Streams"), "Size", "streams")
    for svg in drawn.findall("svg"):
        found = Reader(text_of(svg))
        assert sum(tag == "rect" for tag, _ in found.tags) == 14
        width = float(svg.get("viewBox").split()[2])
        below = [
            float(attrs["x"])
            for tag, attrs in found.tags
            if tag == "text" and attrs.get("text-anchor") == "middle" and "class" not in attrs
        ]
        assert all(0 < each < width for each in below)
        assert all(b - a > 50 for a, b in pairwise(below))


def test_the_page_is_whole_and_refers_to_nothing_outside():
    text = page(
        "<Title>",
        "a subtitle",
        [Tile("Messages", "12", "note")],
        [Section("One & two", [table(["A"], [["<script>"]], ["word"]), legend([("x", 0)])])],
        "Made today.",
    )
    found = Reader(text)
    assert "<Title>" in found.texts
    assert "<script>" in found.texts
    assert "script" not in {tag for tag, _ in found.tags}
    assert not re.search(r"https?:|url\(|@import|src=|href=", text)
    assert ("section", {"id": "one-&-two"}) in found.tags
