"""What the proxy counts."""

import httpx

from tests.proxy.proxying import PATH, Proxy, ended, id_of
from tests.storage_stats import until


def counted(client: httpx.Client) -> dict[str, float]:
    """What is counted of the proxy, without the buckets of histograms."""
    prefix = "holdfast_proxy_"
    lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith(prefix)]
    samples = (line.removeprefix(prefix).split() for line in lines if "_bucket{" not in line)
    return {name: float(value) for name, value in samples}


def outcomes(client: httpx.Client) -> list[float]:
    """How many responses are complete, aborted and failed."""
    samples = counted(client)
    names = ("complete", "aborted", "failed")
    return [samples[f'responses_total{{outcome="{name}"}}'] for name in names]


def test_everything_is_counted(start_server, client_of, upstream) -> None:
    server = start_server()
    client = client_of(server)
    proxy = Proxy(client)
    assert set(counted(client).values()) == {0}
    location = proxy.created(upstream.url("/bytes", count=5000, encoding="gzip"))
    proxy.frames(location)
    until(lambda: outcomes(client) == [1, 0, 0])
    samples = counted(client)
    assert samples["bytes_total"] == 5000
    assert samples["header_seconds_count"] == samples["first_frame_seconds_count"] == 1
    assert 0 < samples["header_seconds_sum"] <= samples["first_frame_seconds_sum"] < 20

    # Under way, and aborted: a call that has no answer yet is no response.
    for _ in range(2):
        proxy.appended(location, upstream.url("/bytes", count=20, piece=10, gate=1))
    samples = counted(client)
    assert samples["upstreams"] == 2
    assert samples["header_seconds_count"] == 3
    proxy.abort(location, response=2)
    until(lambda: counted(client)["upstreams"] == 1)
    assert outcomes(client) == [1, 1, 0]
    proxy.abort(location)
    assert outcomes(client) == [1, 2, 0]

    # An empty body has no first frame, and what was recorded of a broken one counts.
    proxy.appended(location, upstream.url("/fixed", status=204))
    proxy.appended(location, upstream.url("/bytes", count=30, piece=10, after=2, end="cut"))
    proxy.frames(location, ended(4, 5))
    until(lambda: outcomes(client) == [2, 2, 1])
    samples = counted(client)
    assert samples["header_seconds_count"] == 5
    assert samples["first_frame_seconds_count"] in {1, 2}
    assert samples["bytes_total"] in {5000, 5010, 5020}

    # Refusals of upstreams are no responses; those whose stream goes away were aborted with it.
    assert proxy.create(upstream.url("/error")).status_code == 502
    assert counted(client)["header_seconds_count"] == 5
    proxy.appended(location, upstream.url("/bytes", count=20, piece=10, gate=1))
    client.delete(f"{PATH}/{id_of(location)}", headers=proxy.service)
    until(lambda: outcomes(client) == [2, 3, 1])
    until(lambda: counted(client)["upstreams"] == 0)
    assert counted(client)["refusals_total"] == 0

    # What a crash cuts off has failed, as the next server sees it.
    proxy.created(upstream.url("/bytes", count=20, piece=10, gate=1))
    server.kill()
    client = client_of(start_server())
    until(lambda: outcomes(client) == [0, 0, 1])
