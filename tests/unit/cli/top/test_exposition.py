"""Prometheus pages, and quantiles of what histograms counted in between."""

import math

import pytest

from holdfast.cli.top.measure import parse_exposition, quantile
from holdfast.errors import BadAnswerError

INF = math.inf


def test_samples_are_found_by_name_and_labels():
    page = parse_exposition(b'a_total{status="200"} 3\na_total{status="500"} 4\nb 1.5\n')
    assert page.total("a_total") == 7
    assert page.total("a_total", lambda labels: labels["status"] == "500") == 4
    assert page.total("a_total", lambda labels: labels["status"] == "404") == 0
    assert page.total("b") == 1.5
    assert page.total("c") is None


def test_a_counter_whose_labels_have_not_come_up_yet_is_zero():
    page = parse_exposition(b"# HELP a_total Answers.\n# TYPE a_total counter\n# TYPE b gauge\n")
    assert page.total("a_total") == 0
    assert page.total("b") is None


def test_an_empty_page_has_nothing():
    page = parse_exposition(b"")
    assert page.names == frozenset()
    assert page.buckets("x") == {}


@pytest.mark.parametrize(
    "body", [b"<!doctype html>\n<html><body>hi there</body></html>", b"\xff\xfe", b'{"a": 1}']
)
def test_another_page_is_refused_in_one_sentence(body):
    with pytest.raises(BadAnswerError, match="not in Prometheus' text format"):
        parse_exposition(body)


class TestQuantile:
    def test_only_what_was_counted_in_between_matters(self):
        before = {1.0: 1000, 2.0: 1000, INF: 1000}
        after = {1.0: 1000, 2.0: 1010, INF: 1010}
        assert quantile(0.5, before, after) == pytest.approx(1.5)
        assert quantile(1.0, before, after) == pytest.approx(2.0)

    def test_values_lie_evenly_from_zero_in_the_first_bucket(self):
        assert quantile(0.25, {}, {4.0: 8, INF: 8}) == pytest.approx(1.0)

    def test_what_is_above_the_last_bound_counts_as_that_bound(self):
        assert quantile(0.99, {}, {1.0: 0, 2.0: 1, INF: 100}) == 2.0

    def test_empty_buckets_are_passed_over(self):
        assert quantile(0.5, {}, {1.0: 0, 2.0: 0, 4.0: 2, INF: 2}) == pytest.approx(3.0)

    @pytest.mark.parametrize("after", [{}, {1.0: 0, INF: 0}, {1.0: 5, INF: 5}])
    def test_nothing_counted_is_no_number(self, after):
        assert math.isnan(quantile(0.5, after, after))
