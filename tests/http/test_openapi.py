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
from tests.http.described_proxy import SECRET, ProxyWorld
from tests.server_process import ServerProcess
from tests.thorough import THOROUGH
from tests.upstreams import Upstream

if TYPE_CHECKING:
    import schemathesis
    from schemathesis.schemas import BaseSchema

EXAMPLES = 10 if THOROUGH else 3
BRIEF_S = 0.02
# test_cors.py has OPTIONS.
OPERATIONS = [
    (path, method.upper())
    for path, operations in document(OPENAPI)["paths"].items()
    for method in operations
    if method in {"delete", "get", "head", "patch", "post", "put"}
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


@pytest.fixture(scope="module")
def schema() -> "BaseSchema":
    """The document as schemathesis reads it, which takes a second to import."""
    import schemathesis
    from schemathesis.openapi import from_dict

    @schemathesis.deserializer("application/x-ndjson")
    def lines(_context: Any, response: schemathesis.Response) -> list[Any]:
        """What is one line each is one array in the document."""
        return [json.loads(line) for line in response.content.splitlines()]

    generation = {"database": "none", "deterministic": True}
    return from_dict(
        strict(), config=schemathesis.Config.from_dict({"seed": 1, "generation": generation})
    )


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
    from schemathesis.checks import not_a_server_error
    from schemathesis.generation.hypothesis.builder import (
        HypothesisTestConfig,
        HypothesisTestMode,
        create_test,
    )
    from schemathesis.specs.openapi import checks

    def check(case: "schemathesis.Case") -> None:
        world.prepare(case)
        case.call_and_validate(
            base_url=quick_server.url,
            session=session,
            checks=[
                not_a_server_error,
                checks.status_code_conformance,
                checks.content_type_conformance,
                checks.response_schema_conformance,
                checks.response_headers_conformance,
                checks.unsupported_method,
                checks.allow_header_conformance,
            ],
            timeout=DEADLINE_S,
            allow_redirects=False,
        )

    drawn = settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    # What its pytest plugin does, which would be loaded in every start of pytest.
    modes = [HypothesisTestMode.EXAMPLES, HypothesisTestMode.FUZZING]
    if THOROUGH:
        modes.append(HypothesisTestMode.COVERAGE)
    create_test(
        operation=schema[path][method],
        test_func=check,
        config=HypothesisTestConfig(project=schema.config, modes=modes, settings=drawn),
    )()


def test_the_document_is_served(client: httpx.Client) -> None:
    served = client.get("/openapi.json")
    assert served.status_code == 200
    assert served.headers["Content-Type"] == "application/json"
    assert served.json() == document(OPENAPI)
    head = client.head("/openapi.json")
    assert head.headers["Content-Length"] == str(len(served.content))
    assert head.content == b""
