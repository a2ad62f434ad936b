"""The server does what its OpenAPI document says, whatever it is asked."""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import requests
from hypothesis import HealthCheck, Phase, settings

from holdfast.http.openapi import document
from holdfast.proxy import OPENAPI
from tests.http.conftest import DEADLINE_S
from tests.http.described import World
from tests.http.described_exceptions import CHECKS, is_explained
from tests.http.described_proxy import SECRET, ProxyWorld
from tests.server_process import ServerProcess
from tests.thorough import THOROUGH
from tests.upstreams import Upstream

if TYPE_CHECKING:
    import schemathesis
    from schemathesis.schemas import BaseSchema

EXAMPLES = 10 if THOROUGH else 3
BRIEF_S = 0.02
METHODS = {"delete", "get", "head", "patch", "post", "put"} | ({"options"} if THOROUGH else set())
OPERATIONS = [
    (path, method.upper())
    for path, operations in document(OPENAPI)["paths"].items()
    for method in operations
    if method in METHODS
]


def strict() -> dict[str, Any]:
    """The document with answers that must not hold anything but what it names."""
    found = deepcopy(document(OPENAPI))
    _close(found["components"]["schemas"])
    # Where it is served from matters to clients, not here.
    return found | {"servers": [{"url": "/"}]}


def _close(part: Any) -> None:
    if isinstance(part, list):
        for each in part:
            _close(each)
    elif isinstance(part, dict):
        for each in part.values():
            _close(each)
        if part.get("type") == "object" and "properties" in part:
            part["additionalProperties"] = False


def load(world: World, **more: Any) -> "BaseSchema":
    """The document as schemathesis reads it, which takes a second to import."""
    import schemathesis
    from schemathesis.openapi import from_dict

    @schemathesis.deserializer("application/x-ndjson")
    def lines(_context: Any, response: schemathesis.Response) -> list[Any]:
        """What is one line each is one array in the document."""
        return [json.loads(line) for line in response.content.splitlines()]

    generation = {"database": "none", "deterministic": True, "max-examples": 100}
    config = {"seed": 1, "generation": generation, "checks": CHECKS} | more
    loaded = from_dict(strict(), config=schemathesis.Config.from_dict(config))

    @loaded.hook
    def filter_failure(
        _context: Any, failure: Any, case: schemathesis.Case, response: schemathesis.Response
    ) -> bool:
        return not is_explained(failure, case, response, world.has_granted(case))

    return loaded


@pytest.fixture(scope="module")
def schema(world: World) -> "BaseSchema":
    return load(world)


@pytest.fixture(scope="module")
def quick_server(
    tmp_path_factory: pytest.TempPathFactory, upstream: Upstream
) -> Iterator[ServerProcess]:
    """A server whose live reads are over at once, and whose proxy is on."""
    data_dir = tmp_path_factory.mktemp("described") / "data"
    settings = {
        "long_poll_timeout": BRIEF_S,
        "sse_lifetime": BRIEF_S,
        "proxy_secret": SECRET,
        "proxy_allowlist": upstream.base_url,
    }
    with ServerProcess(data_dir, **settings) as process:
        yield process


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream() as running:
        yield running


@pytest.fixture(scope="module")
def world(quick_server: ServerProcess, upstream: Upstream) -> Iterator[World]:
    with httpx.Client(base_url=quick_server.url, timeout=DEADLINE_S) as client:
        yield World(client, ProxyWorld(client, upstream))


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


def drawing(max_examples: int) -> settings:
    return settings(
        max_examples=max_examples,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.thorough
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_answers_are_as_described(
    path: str,
    method: str,
    schema: "BaseSchema",
    quick_server: ServerProcess,
    world: World,
    session: requests.Session,
) -> None:
    from schemathesis.generation.hypothesis.builder import (
        HypothesisTestConfig,
        HypothesisTestMode,
        create_test,
    )

    def check(case: "schemathesis.Case") -> None:
        world.prepare(case)
        case.call_and_validate(
            base_url=quick_server.url, session=session, timeout=DEADLINE_S, allow_redirects=False
        )

    # What its pytest plugin does, which would be loaded in every start of pytest.
    modes = [HypothesisTestMode.EXAMPLES, HypothesisTestMode.FUZZING]
    if THOROUGH:
        modes.append(HypothesisTestMode.COVERAGE)
    create_test(
        operation=schema[path][method],
        test_func=check,
        config=HypothesisTestConfig(project=schema.config, modes=modes, settings=drawing(EXAMPLES)),
    )()


@pytest.mark.slow
def test_sequences_are_as_described(world: World, quick_server: ServerProcess) -> None:
    """What a request leaves behind is there for the next one, until it is deleted."""
    from schemathesis.engine import Status, events, from_schema

    others = {name: {"enabled": False} for name in ("examples", "coverage", "fuzzing")}
    schema = load(world, **{"base-url": quick_server.url, "phases": others})
    steps, failures = 0, []
    for event in from_schema(schema).execute():
        assert not isinstance(event, events.NonFatalError | events.FatalError), event
        if isinstance(event, events.ScenarioFinished):
            steps += len(event.recorder.interactions)
            found = [each for checks in event.recorder.checks.values() for each in checks]
            failures += [each.failure_info for each in found if each.status == Status.FAILURE]
    assert steps > 100
    assert not failures


def test_the_document_is_served(client: httpx.Client, quick_server: ServerProcess) -> None:
    served = client.get("/openapi.json")
    assert served.status_code == 200
    assert served.headers["Content-Type"] == "application/json"
    assert served.json() == document(None), "the proxy is off"
    assert httpx.get(f"{quick_server.url}/openapi.json").json() == document(OPENAPI)
    head = client.head("/openapi.json")
    assert head.headers["Content-Length"] == str(len(served.content))
    assert head.content == b""
