"""A stampede: very many clients bootstrap at once, each a stream of its own."""

from __future__ import annotations

import statistics
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench.client import Client, Request, fill, send_all
from bench.load import Load, Sample, measure, warm_up
from bench.scenario import Plan, wait_for_quiet
from bench.storage.figures import MIB, Figure, Measured, Sizes, Step
from bench.storage.node import UNLIMITED, Node, node

KIB = 1024
MESSAGES = 200
MIDDLE = MESSAGES // 2
SNAPPED, PLAIN = "/stampede/s-", "/stampede/p-"
FILLING_CONNECTIONS = 4


@dataclass(frozen=True, slots=True)
class Case:
    """A size of snapshots, and where everything is read from."""

    name: str
    snapshot_kib: int
    cold: bool = False

    @property
    def body_bytes(self) -> int:
        """What a client wants: the snapshot and the messages since."""
        return (self.snapshot_kib + MESSAGES - MIDDLE) * KIB


CASES = (
    Case("snapshots of 16 KiB", 16),
    Case("snapshots of 100 KiB", 100),
    Case("snapshots of 100 KiB, from packs", 100, cold=True),
)


def _run(plan: Plan, sizes: Sizes) -> Measured:
    figures: list[Figure] = []
    with node("bootstrap") as made:
        made.start(*UNLIMITED)
        _fill(made, sizes.clients)
        for case in CASES:
            _publish(made, sizes.clients, case.snapshot_kib * KIB)
            if case.cold:
                made.flush()
            figures += _figures(plan, made, case, sizes.clients)
    return Measured(figures)


def _fill(made: Node, clients: int) -> None:
    made.send(Request("PUT", "/stampede"))
    paths = [f"{prefix}{number}" for prefix in (SNAPPED, PLAIN) for number in range(clients)]
    with ThreadPoolExecutor(FILLING_CONNECTIONS) as pool:
        list(pool.map(lambda path: fill(made.port, path, MESSAGES, KIB), paths))


def _publish(made: Node, clients: int, size_bytes: int) -> None:
    offset = f"{MIDDLE * KIB:020d}"
    paths = (f"{SNAPPED}{number}/snapshot/{offset}" for number in range(clients))
    send_all(made.port, [Request("PUT", path, b"s" * size_bytes) for path in paths])


def _figures(plan: Plan, made: Node, case: Case, clients: int) -> list[Figure]:
    samples: dict[str, list[Sample]] = defaultdict(list)
    loads = {
        "bootstrap": Load("get.lua", (SNAPPED, str(clients), "/bootstrap"), clients),
        "catch-up": Load("get.lua", (PLAIN, str(clients), _query(case)), clients),
    }
    answered = {name: _check(made, load, case) for name, load in loads.items()}
    for number in range(plan.rounds):
        turns = list(loads.items())
        for name, load in turns if number % 2 == 0 else reversed(turns):
            wait_for_quiet(plan.patience_s)
            warm_up(made.running, load)
            sample = measure(made.running, load, plan.seconds)
            samples[name].append(sample)
            plan.console.print(f"    {case.name}, {name}: {sample}", highlight=False)
            if sample.bytes_per_s < sample.per_s * answered[name] * 0.99:
                raise RuntimeError(
                    f"{name}: fewer bytes arrived than {answered[name]} per response"
                )
    return _summary(case, clients, samples)


def _query(case: Case) -> str:
    """As many bytes as a bootstrap gives, of a stream without a snapshot."""
    return f"?offset={MESSAGES * KIB - case.body_bytes:020d}"


def _check(made: Node, load: Load, case: Case) -> int:
    """Read one as the load will; how many bytes a response has."""
    prefix, _, suffix = load.arguments
    with Client(made.port) as client:
        body = client.send(Request("GET", f"{prefix}0{suffix}")).body
    if not case.body_bytes <= len(body) < case.body_bytes * 1.2:
        raise RuntimeError(f"{prefix}0{suffix} has {len(body)} B, not {case.body_bytes}")
    return len(body)


def _summary(case: Case, clients: int, samples: dict[str, list[Sample]]) -> list[Figure]:
    what = f"{clients:,} clients, {MESSAGES} × 1 KiB, {case.name}"
    rates = {
        name: statistics.median(sample.per_s for sample in found) for name, found in samples.items()
    }
    bootstraps = samples["bootstrap"]
    return [
        Figure(
            f"{what}: bootstrap / catch-up of the same bytes",
            rates["bootstrap"] / rates["catch-up"],
            "{:.2f}",
            at_least=0.8,
        ),
        Figure(f"{what}: bootstrap p50", _median(bootstraps, "p50_ms"), "{:,.0f} ms"),
        Figure(f"{what}: bootstrap p99", _median(bootstraps, "p99_ms"), "{:,.0f} ms"),
        Figure(f"{what}: bootstrap", rates["bootstrap"] * case.body_bytes / MIB, "{:,.0f} MiB/s"),
        Figure(f"{what}: catch-up", rates["catch-up"] * case.body_bytes / MIB, "{:,.0f} MiB/s"),
        Figure(f"{what}: failed", sum(each.failed for found in samples.values() for each in found)),
    ]


def _median(samples: list[Sample], name: str) -> float:
    return float(statistics.median(getattr(sample, name) for sample in samples))


STEP = Step(
    "bootstrap",
    f"Streams of {MESSAGES} appends of 1 KiB, half of them with a snapshot at the middle. All "
    "clients are connected at once and ask again and again, each time for the next stream. The "
    "catch-up reads as many bytes of the streams without a snapshot, in one response each; the two "
    "take turns. MiB/s are of snapshot and messages, without what is around them. Everything is "
    "in memory, with the hot limits raised, but for snapshots beyond `snapshot_cache_bytes`, which "
    "come from the store; then the same after a flush.",
    _run,
)
