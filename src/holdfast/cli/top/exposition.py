"""A page of metrics in Prometheus' text format, and what is looked up in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise

from prometheus_client.parser import text_string_to_metric_families

from holdfast.errors import BadAnswerError

__all__ = ["Exposition", "Labels", "parse_exposition", "quantile"]

Labels = Mapping[str, str]


class Exposition:
    """Every sample of a page, by name."""

    def __init__(self, samples: Mapping[str, list[tuple[Labels, float]]]) -> None:
        self._samples = samples

    @property
    def names(self) -> frozenset[str]:
        """The names of all samples."""
        return frozenset(self._samples)

    def value(self, name: str) -> float | None:
        """A metric's only sample, or the sum of them; None if the page does not have it."""
        return self.total(name, lambda _: True)

    def total(self, name: str, where: Callable[[Labels], bool]) -> float | None:
        """The sum of a metric's samples with such labels; None if the page has none at all."""
        if name not in self._samples:
            return None
        return sum(value for labels, value in self._samples[name] if where(labels))

    def buckets(self, histogram: str) -> dict[float, float]:
        """Cumulative counts of a histogram by upper bound; empty if the page does not have it."""
        found: defaultdict[float, float] = defaultdict(float)
        for labels, value in self._samples.get(f"{histogram}_bucket", ()):
            found[float(labels.get("le", "inf"))] += value
        return dict(found)


def parse_exposition(page: bytes) -> Exposition:
    """The samples of a page; BadAnswerError if it is something else."""
    samples: defaultdict[str, list[tuple[Labels, float]]] = defaultdict(list)
    try:
        for family in text_string_to_metric_families(page.decode()):
            if family.type == "counter" and not family.samples:
                # One with labels, of which none has come up yet.
                samples[f"{family.name}_total"] = []
            for sample in family.samples:
                samples[sample.name].append((sample.labels, sample.value))
    # The parser raises whatever its string handling happens to: IndexError, KeyError and more.
    except Exception:  # noqa: BLE001
        raise BadAnswerError("What is at /metrics is not in Prometheus' text format.") from None
    return Exposition(samples)


def quantile(share: float, before: Mapping[float, float], after: Mapping[float, float]) -> float:
    """Estimate a quantile of what a histogram counted between two pages; NaN if that is nothing.

    Within a bucket values are taken to lie evenly, as Prometheus does. What is above the last
    bound counts as that bound.
    """
    counted = [(bound, after[bound] - before.get(bound, 0.0)) for bound in sorted(after)]
    total = counted[-1][1] if counted else 0.0
    if total <= 0:
        return float("nan")
    rank = share * total
    for (low, below), (high, up_to) in pairwise([(0.0, 0.0), *counted]):
        if up_to >= rank:
            inside = up_to - below
            if high == float("inf") or inside <= 0:
                return low
            return low + (high - low) * (rank - below) / inside
    return counted[-1][0]
