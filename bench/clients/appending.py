"""How long one append takes, seen from the application."""

from __future__ import annotations

from bench.clients.contest import Client, contestants, figures, take_turns, work
from bench.clients.work import MESSAGE_BYTES, Values
from bench.scenario import Plan
from bench.storage.figures import Measured, Sizes, Step
from bench.storage.node import UNLIMITED, node


def _run(plan: Plan, sizes: Sizes) -> Measured:
    with node("appending") as made:
        made.start(*UNLIMITED)

        def measure(client: Client, name: str) -> Values:
            return work(
                client,
                "append",
                url=made.running.url,
                name=f"bench/{name}",
                messages=sizes.client_appends,
            )

        samples = take_turns(plan, contestants(plan), "append", measure)
    what = f"one {MESSAGE_BYTES} B append after the other"
    return Measured(
        [
            figure
            for metric, name in (("p50_ms", "p50"), ("p99_ms", "p99"))
            for figure in figures(
                f"{what}, {name}", samples, metric, "{:.2f} ms", less_is_better=True
            )
        ]
    )


STEP = Step(
    "appending",
    "`append` of one message at a time over one connection, on disk when it is answered.",
    _run,
)
