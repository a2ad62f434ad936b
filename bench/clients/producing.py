"""Small messages to one stream, as fast as a client can."""

from __future__ import annotations

from bench.clients.contest import Client, contestants, figures, take_turns, work
from bench.clients.work import MESSAGE_BYTES, Values
from bench.scenario import Plan
from bench.storage.figures import Measured, Sizes, Step
from bench.storage.node import UNLIMITED, node


def _run(plan: Plan, sizes: Sizes) -> Measured:
    with node("producer") as made:
        made.start(*UNLIMITED)

        def measure(client: Client, name: str) -> Values:
            values = work(
                client,
                "produce",
                url=made.running.url,
                name=f"bench/{name}",
                messages=sizes.client_messages,
            )
            if values["stored"] != sizes.client_messages:
                raise RuntimeError(f"{client.title} stored {values['stored']:.0f} messages")
            return {"per_s": values["stored"] / values["seconds"]}

        samples = take_turns(plan, contestants(plan), "producer", measure)
    what = f"{MESSAGE_BYTES} B JSON messages to one stream, per second"
    return Measured(figures(what, samples, "per_s", at_least=100_000))


STEP = Step(
    "producer",
    "One process writes to one stream, on disk when it is acknowledged; the time is from the "
    "first message to the last acknowledgement. Ours: one producer with its default limits, "
    "exactly once. PyPI's 0.1.0 has no producer: `append` with its automatic batching, 5,000 "
    "calls gathered at a time, as many as a batch of ours holds; nothing is repeated there if it "
    "fails.",
    _run,
)
