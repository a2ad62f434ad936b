"""What the upstream suite asks of clients, in scenarios of our own."""

from tests.conformance.client.scenarios import (
    closing,
    faults,
    live,
    numbering,
    producers,
    reading,
    sse,
    writing,
)

ALL = [
    *reading.SCENARIOS,
    *live.SCENARIOS,
    *sse.SCENARIOS,
    *writing.SCENARIOS,
    *closing.SCENARIOS,
    *numbering.SCENARIOS,
    *producers.SCENARIOS,
    *faults.SCENARIOS,
]
