"""Thousands of connections whose headers never end."""

import pytest

from tests.attack.flood import Flood
from tests.attack.probe import Probe, resident_bytes

CONNECTIONS = 2000
HEAD = b"GET /healthz HTTP/1.1\r\nHost: a\r\nAccept: " + b"x" * 20_000
# What a connection costs, its transport and parser included, and the bytes that it holds back.
CONNECTION_BYTES_MAX = 100_000


@pytest.mark.slow
def test_unfinished_heads_cost_little_and_time_out(start_server, stream_on) -> None:
    server = start_server(header_timeout=5, durability="memory")
    path = stream_on(server).url
    before = resident_bytes(server.pid)
    with Probe(server.port, path) as probe, Flood(server.port, CONNECTIONS) as flood:
        flood.send(HEAD, timeout_s=30)
        held = resident_bytes(server.pid) - before
        flood.read(timeout_s=30)
    assert held < CONNECTIONS * CONNECTION_BYTES_MAX
    assert set(flood.statuses()) == {408}
    assert all(each.ended for each in flood.connections)
    assert probe.waits.failures == []
    assert probe.waits.requests > 0
    assert probe.waits.worst_health_s < 2
    assert probe.waits.worst_append_s < 2
