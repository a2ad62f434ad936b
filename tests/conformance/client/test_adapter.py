"""The adapter, and the client behind it, in everything that the upstream suite asks of clients."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.conformance.client import scenarios, upstream_cases
from tests.conformance.client.driver import AdapterProcess
from tests.conformance.client.fault_front import FaultFront
from tests.conformance.client.steps import Run, Scenario
from tests.server_process import ServerProcess

Adapters = tuple[AdapterProcess, AdapterProcess]


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultFront]:
    data_dir: Path = tmp_path_factory.mktemp("server") / "data"
    with ServerProcess(data_dir) as server:
        with FaultFront(server.port) as front:
            yield front


@pytest.fixture(scope="module")
def streams_url(front: FaultFront) -> str:
    return f"http://127.0.0.1:{front.port}/v1/stream"


@pytest.fixture(scope="module")
def adapters(streams_url: str) -> Iterator[Adapters]:
    with AdapterProcess(streams_url) as one, AdapterProcess(streams_url) as other:
        yield one, other


@pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda scenario: scenario.shows)
def test_scenario(
    scenario: Scenario, adapters: Adapters, front: FaultFront, streams_url: str
) -> None:
    run = Run(*adapters, front, streams_url)
    for step in scenario.steps:
        step(run)


def test_no_upstream_case_is_forgotten() -> None:
    covered = {case for scenario in scenarios.ALL for case in scenario.covers.split()}
    cases = {case for suite in upstream_cases.CASES.values() for case in suite.split()}
    assert covered == cases | set(upstream_cases.EARLIER.split())


def test_names_of_scenarios_are_their_own() -> None:
    names = [scenario.shows for scenario in scenarios.ALL]
    assert len(set(names)) == len(names)


def test_adapter_says_what_the_client_can_do(adapters: Adapters) -> None:
    told = adapters[0].initialized
    assert told["clientName"] == "holdfast"
    assert set(told["features"].values()) == {True}


def test_every_line_has_one_result_until_shutdown(streams_url: str) -> None:
    with AdapterProcess(streams_url) as adapter:
        for line in ("", "no json", "[]", '{"type": "juggle"}', '{"type": "shutdown"}'):
            adapter.send_line(line)
        kinds = [adapter.result().get("errorCode") for _ in range(4)]
        assert kinds == ["NOT_SUPPORTED", "NOT_SUPPORTED", "NOT_SUPPORTED", None]
        assert adapter.wait() == 0


def test_init_starts_anew(streams_url: str) -> None:
    path = f"/{uuid4().hex}"
    with AdapterProcess(streams_url) as adapter:
        adapter.call({"type": "set-dynamic-header", "name": "X-N", "valueType": "counter"})
        adapter.call({"type": "init", "serverUrl": streams_url + "/", "timeoutMs": 5000})
        assert adapter.call({"type": "create", "path": path})["success"]
        assert "headersSent" not in adapter.call({"type": "read", "path": path})


def test_benchmarks_do_what_they_measure(adapters: Adapters) -> None:
    adapter, path = adapters[0], f"/{uuid4().hex}"

    def measured(**operation: Any) -> dict[str, Any]:
        command = {"type": "benchmark", "iterationId": "i", "operation": operation}
        result = adapter.call(command)
        assert result["success"], result
        assert result["iterationId"] == "i"
        assert int(result["durationNs"]) > 0
        metrics: dict[str, Any] = result["metrics"]
        return metrics

    assert measured(op="create", path=path, contentType="text/plain") == {}
    assert measured(op="append", path=path, size=100)["bytesTransferred"] == 100
    assert measured(op="read", path=path)["bytesTransferred"] == 100
    for live in ("long-poll", "sse"):
        trip = measured(op="roundtrip", path=f"{path}-{live}", size=10, live=live)
        assert trip["bytesTransferred"] == 20
    written = measured(
        op="throughput_append", path=f"{path}-many", count=500, size=10, concurrency=5
    )
    assert written["messagesProcessed"] == 500
    assert measured(op="read", path=f"{path}-many")["bytesTransferred"] == 5000
    items = [str(n) for n in range(50)]
    adapter.call({"type": "create", "path": f"{path}-json", "contentType": "application/json"})
    appending = {"type": "idempotent-append-batch", "path": f"{path}-json", "producerId": "p"}
    adapter.call(appending | {"items": items})
    read = measured(op="throughput_read", path=f"{path}-json", expectedCount=50)
    assert read["messagesProcessed"] == 50
