"""What the proxy counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily

from holdfast.engine.counters import Histogram
from holdfast.http.metrics import counter, gauge, histogram
from holdfast.protocol.frames import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from holdfast.proxy.admission import Admission
    from holdfast.proxy.response import Response

_ENDS = (Outcome.COMPLETE, Outcome.ABORTED, Outcome.FAILED)


class ProxyCounters:
    """Totals since start."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._ended = dict.fromkeys(_ENDS, 0)
        self._bytes = 0
        self.header_us = Histogram()
        self.first_frame_us = Histogram()

    def ended(self, response: Response) -> None:
        """Count a response; one whose stream went away was aborted with it."""
        self._ended[response.outcome or Outcome.ABORTED] += 1
        self._bytes += response.body_bytes

    def metrics(self) -> Iterator[Metric]:
        """Everything, in Prometheus' form."""
        yield gauge(
            "holdfast_proxy_upstreams",
            "Upstreams that were called and are not done.",
            self._admission.under_way,
        )
        responses = CounterMetricFamily(
            "holdfast_proxy_responses", "Responses that have ended.", labels=["outcome"]
        )
        for outcome, count in self._ended.items():
            responses.add_metric([outcome.value], count)
        yield responses
        yield counter("holdfast_proxy_bytes", "Bytes of bodies recorded.", self._bytes)
        yield counter(
            "holdfast_proxy_refusals",
            "Requests refused since too many upstreams were under way.",
            self._admission.refusals,
        )
        yield histogram(
            "holdfast_proxy_header_seconds",
            "From a request to the head of the upstream's answer.",
            self.header_us,
            1e-6,
        )
        yield histogram(
            "holdfast_proxy_first_frame_seconds",
            "From a request until the first Data frame is durable.",
            self.first_frame_us,
            1e-6,
        )
