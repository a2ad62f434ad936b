"""The OpenAPI document lists every route, every scope and every error code, and nothing else."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from openapi_spec_validator import validate

from holdfast.errors import error_classes
from holdfast.http import subscription_routes
from holdfast.http.access.scopes import Need
from holdfast.http.app import TREE
from holdfast.http.openapi import document, load, render, response_codes
from holdfast.http.read import LAST_MAX
from holdfast.http.routes import Resource, Route, Router
from holdfast.http.scan import PARTITION_BYTES_MAX, PARTITION_BYTES_MIN
from holdfast.http.storage_routes import DATA_BYTES_MAX, PACK_NAME_CHARACTERS_MAX
from holdfast.node.proxy import open_proxy
from holdfast.protocol.headers import STREAM_SEQ_BYTES_MAX, TTL_S_MAX
from holdfast.protocol.producer import ID_BYTES_MAX, NUMBER_MAX
from holdfast.proxy import OPENAPI
from holdfast.settings import load_settings
from tests.unit.engine.driver import Driver

CONTROL = "/v1/stream/__ds"
SUBSCRIPTION = f"{CONTROL}/subscriptions/{{subscription}}"
# Of tokens that are no service tokens: the handlers check them.
OF_WAKES = {f"{SUBSCRIPTION}/{action}" for action in ("callback", "ack", "release")}
PROXY = "/v1/proxy"
SERVICE = {"proxySecret", "proxySecretInQuery"}
OF_PROXY = {
    (PROXY, "post"): SERVICE,
    (f"{PROXY}/{{stream_id}}", "get"): {"signedUrl", *SERVICE},
    (f"{PROXY}/{{stream_id}}", "head"): SERVICE,
    (f"{PROXY}/{{stream_id}}", "delete"): SERVICE,
    (f"{PROXY}/{{stream_id}}", "patch"): {"signedUrl"},
}


def resources() -> Iterator[tuple[str, Resource]]:
    """Every resource of the server with its path as the document writes it."""
    for fixed, resource in TREE.fixed.items():
        yield fixed.decode(), resource
    yield "/v1/stream/{path}", TREE.stream
    yield "/{bucket}", TREE.bucket
    yield "/{bucket}/{stream}", TREE.stream
    for below, resource in TREE.of_bucket.items():
        yield f"/{{bucket}}/streams/{below.decode()}".rstrip("/"), resource
    for below, resource in TREE.of_stream.items():
        yield f"/{{bucket}}/{{stream}}/{below.decode()}", resource
    yield "/{bucket}/{stream}/snapshot/{offset}", TREE.snapshot
    yield f"{CONTROL}/jwks.json", subscription_routes._KEYS
    yield f"{CONTROL}/subscriptions", subscription_routes._ALL
    yield SUBSCRIPTION, subscription_routes._SUBSCRIPTION
    yield f"{SUBSCRIPTION}/streams/{{path}}", subscription_routes._STREAM
    for action, resource in subscription_routes._ACTIONS.items():
        yield f"{SUBSCRIPTION}/{action.decode()}", resource
    yield from proxy_resources()


def proxy_resources() -> Iterator[tuple[str, Resource]]:
    """The proxy's own resources, of one that is on."""
    engine = Driver()
    settings = load_settings(file=None, env={}, flags={"proxy_secret": "a secret of the proxy's"})
    proxy = open_proxy(engine.shard, settings, engine.clock)
    router = Router(TREE, proxy)
    for path in (PROXY, f"{PROXY}/{{stream_id}}"):
        match = proxy.match(path.encode(), router)
        assert match is not None
        yield path, match.resource


def routes() -> dict[tuple[str, str], Route]:
    return {
        (path, method.decode().lower()): route
        for path, resource in resources()
        for method, route in resource.routes.items()
    }


def operations() -> dict[tuple[str, str], Any]:
    return {
        (path, method): operation
        for path, item in document(OPENAPI)["paths"].items()
        for method, operation in item.items()
        if method != "parameters"
    }


def test_it_is_valid() -> None:
    validate(document(OPENAPI))


def test_every_route_is_in_it_and_nothing_else() -> None:
    assert set(operations()) == set(routes())


@pytest.mark.parametrize("path", [path for path, _ in resources() if path.startswith(CONTROL)])
def test_paths_of_subscriptions_lead_to_their_resources(path: str) -> None:
    raw = path.removeprefix(CONTROL).replace("{subscription}", "a").replace("{path}", "b/c")
    found = subscription_routes.resolve(raw.encode())
    assert found is not None
    assert found[0] is dict(resources())[path]


def test_it_says_what_each_route_needs() -> None:
    needs = {key: route.need for key, route in routes().items()}
    said = {
        key: Need[operation.get("x-scope", "nothing").upper()]
        for key, operation in operations().items()
    }
    assert said == needs


def test_it_says_which_token_each_route_takes() -> None:
    for (path, method), operation in operations().items():
        takes = {name for each in operation["security"] for name in each}
        if path in OF_WAKES and method == "post":
            assert takes == {"wake"}
        elif (path, method) in OF_PROXY:
            assert takes == OF_PROXY[path, method]
        else:
            assert takes == ({"bearer"} if "x-scope" in operation else set())


def test_every_error_code_that_can_be_answered_is_in_it() -> None:
    listed = document(OPENAPI)["components"]["schemas"]["ErrorCode"]["enum"]
    assert set(listed) == response_codes()
    in_use = set()
    for response in document(OPENAPI)["components"]["responses"].values():
        in_use |= set(re.findall(r"`(\w+)`", response["description"]))
    # The general forms of others, and what belongs to no operation.
    assert set(listed) - in_use == {"gone", "method_not_allowed"}


def test_every_operation_can_fail_as_any_request_can() -> None:
    wanted = {str(error_classes()[code].status) for code in load()["errors"]["always"]}
    for operation in operations().values():
        assert wanted <= set(operation["responses"])


def test_operations_have_names_of_their_own() -> None:
    names = [operation["operationId"] for operation in operations().values()]
    assert len(set(names)) == len(names)


def test_it_is_made_once() -> None:
    assert render(OPENAPI) is render(OPENAPI)


def test_it_names_nothing_that_is_not_there() -> None:
    references = set(re.findall(rb'"#/components/(\w+)/([^"]+)"', render(OPENAPI)))
    components = document(OPENAPI)["components"]
    assert {(kind.decode(), name.decode()) for kind, name in references} == {
        (kind, name)
        for kind in ("headers", "parameters", "responses", "schemas")
        for name in components[kind]
    }


def test_without_a_mount_it_has_no_paths_of_one() -> None:
    alone = document(None)
    assert not any(path.startswith(PROXY) for path in alone["paths"])
    assert set(alone["components"]["securitySchemes"]) == {"bearer", "wake"}
    validate(alone)


def test_limits_are_those_of_the_code() -> None:
    schemas = {
        name: parameter["schema"]
        for name, parameter in document(OPENAPI)["components"]["parameters"].items()
    }
    assert schemas["last_messages"]["maximum"] == LAST_MAX
    assert schemas["partition_bytes"]["minimum"] == PARTITION_BYTES_MIN
    assert schemas["partition_bytes"]["maximum"] == PARTITION_BYTES_MAX
    assert schemas["size"]["maximum"] == DATA_BYTES_MAX
    assert schemas["pack"]["maxLength"] == PACK_NAME_CHARACTERS_MAX
    assert schemas["Stream-TTL"]["maximum"] == TTL_S_MAX
    assert schemas["Stream-Seq"]["maxLength"] == STREAM_SEQ_BYTES_MAX
    assert schemas["Producer-Id"]["maxLength"] == ID_BYTES_MAX
    assert schemas["Producer-Seq"]["maximum"] == NUMBER_MAX
