"""What a step of a group measures: figures, some of them with a limit to keep."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from bench.scenario import Plan

MB = 1e6
GB = 1e9
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large everything is; the defaults are what the targets are about."""

    streams: int = 1_000_000
    gigabytes: float = 5.0
    stream_mib: int = 256
    hard_mib: int = 256
    """The server's own default of `hot_bytes_hard`, of which only a smaller trial makes less."""
    clients: int = 1000
    """Who bootstrap at once, each a stream of its own."""
    fork_mb: int = 1000
    feed_streams: int = 10_000
    feed_per_s: int = 20_000
    client_messages: int = 500_000
    client_mb: int = 500
    client_appends: int = 2000
    tails: int = 1000
    spark_mb: int = 1024
    spark_snapshots: int = 10_000
    spark_updates: int = 100
    """Of each of the streams that get a snapshot."""
    spark_streams: int = 100_000
    spark_rows: int = 2_000_000
    spark_planned: int = 1_000_000
    spark_tiny: int = 300_000
    proxy_requests: int = 300
    proxy_streams: int = 500
    proxy_idle: int = 5000

    @property
    def ingest_bytes(self) -> int:
        return int(self.gigabytes * GB)

    @property
    def small_appends_bytes(self) -> int:
        return int(self.ingest_bytes / 25)


FULL = Sizes()
TRIAL = Sizes(
    2000,
    0.05,
    8,
    32,
    clients=50,
    fork_mb=32,
    feed_streams=200,
    feed_per_s=2000,
    client_messages=20_000,
    client_mb=20,
    client_appends=100,
    tails=50,
    spark_mb=16,
    spark_snapshots=200,
    spark_updates=20,
    spark_streams=2000,
    spark_rows=20_000,
    spark_planned=30_000,
    spark_tiny=10_000,
    proxy_requests=30,
    proxy_streams=20,
    proxy_idle=100,
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value in the unit it is shown in, and the bound it has to keep, if any."""

    text: str
    value: float
    form: str = "{:,.0f}"
    at_most: float | None = None
    at_least: float | None = None

    @property
    def measured(self) -> str:
        return self.form.format(self.value)

    @property
    def to_reach(self) -> str:
        if self.at_most is not None:
            return f"≤ {_bound(self.form, self.at_most)}"
        if self.at_least is not None:
            return f"≥ {_bound(self.form, self.at_least)}"
        return "reported"

    @property
    def reached(self) -> str:
        if self.at_most is None and self.at_least is None:
            return ""
        kept = (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )
        return "yes" if kept else "no"


def _bound(form: str, value: float) -> str:
    """A bound in the unit of the measured value, without decimals it does not have."""
    return re.sub(r"\{.*\}", f"{value:g}", form)


@dataclass(frozen=True, slots=True)
class Measured:
    """What one step found. `orphans_s` is CPU time of processes that nobody could wait for."""

    figures: list[Figure]
    orphans_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """One part of a group, with servers and data of its own."""

    key: str
    note: str
    run: Callable[[Plan, Sizes], Measured]
