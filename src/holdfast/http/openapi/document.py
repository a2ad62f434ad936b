"""The whole document, put together once."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.http.openapi import (
    buckets,
    failures,
    operators,
    packs,
    proxy,
    scans,
    snapshots,
    streams,
    subscriptions,
)
from holdfast.http.openapi.fields import PARAMETERS, headers
from holdfast.http.openapi.pieces import BEARER, SERVICE, SERVICE_IN_QUERY, SIGNED_URL, WAKE
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.http.openapi.pieces import Json

_HEADER_USED: Final = re.compile(r"#/components/headers/([A-Za-z-]+)")
_DESCRIPTION: Final = """\
Durable streams: create with PUT, append with POST, replay and tail with GET.

Every answer also has `Date`, `X-Content-Type-Options`, `Cross-Origin-Resource-Policy`,
`Access-Control-Allow-Origin` and `Access-Control-Expose-Headers`. A method that a path does not
take is answered with 405 `method_not_allowed` and `Allow`. Parameters of the query that are not
listed are ignored; repeated ones are refused."""
_SECURITY: Final[dict[str, Json]] = {
    BEARER: {
        "type": "http",
        "scheme": "bearer",
        "description": "A token or a JWT, where access control is on (docs/security.md). "
        "`x-scope` says which scope an operation needs.",
    },
    WAKE: {
        "type": "http",
        "scheme": "bearer",
        "description": "The token that came with a wake or a claim.",
    },
    SERVICE: {
        "type": "http",
        "scheme": "bearer",
        "description": "The proxy's secret, or, where access control is on, a token with the scope "
        "`write:_proxy` (docs/proxy.md).",
    },
    SERVICE_IN_QUERY: {
        "type": "apiKey",
        "in": "query",
        "name": "secret",
        "description": "The proxy's secret. URLs are often logged: prefer the header.",
    },
    SIGNED_URL: {
        "type": "apiKey",
        "in": "query",
        "name": "signature",
        "description": "Of a signed URL, together with `expires`: use a `Location` as it is.",
    },
}


@cache
def document() -> Json:
    """The document as plain data."""
    paths = (
        streams.PATHS
        | buckets.PATHS
        | snapshots.PATHS
        | scans.PATHS
        | subscriptions.PATHS
        | operators.PATHS
        | packs.PATHS
        | proxy.PATHS
    )
    schemas = (
        failures.SCHEMAS
        | streams.SCHEMAS
        | buckets.SCHEMAS
        | scans.SCHEMAS
        | subscriptions.SCHEMAS
        | operators.SCHEMAS
        | packs.SCHEMAS
    )
    used = set(_HEADER_USED.findall(msgspec.json.encode(paths).decode()))
    paths, responses = _share_failures(paths)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        # Where the document is, so that it holds under any prefix.
        "servers": [{"url": "."}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "responses": responses,
            "parameters": PARAMETERS,
            "headers": headers(used),
            "securitySchemes": _SECURITY,
        },
    }


def _share_failures(paths: dict[str, Json]) -> tuple[dict[str, Json], dict[str, Json]]:
    """The paths with references in place of answers that many operations have, and these."""
    names: dict[bytes, str] = {}
    shared: dict[str, Json] = {}

    def reference(status: str, response: Json) -> Json:
        if status < "400":
            return response
        key = msgspec.json.encode(response)
        if key not in names:
            alike = sum(name.startswith(f"Failure{status}") for name in shared)
            names[key] = f"Failure{status}-{alike + 1}"
            shared[names[key]] = response
        return {"$ref": f"#/components/responses/{names[key]}"}

    def operation(each: Json) -> Json:
        responses = each["responses"].items()
        return each | {"responses": {key: reference(key, value) for key, value in responses}}

    found = {
        path: {
            name: part if name == "parameters" else operation(part) for name, part in item.items()
        }
        for path, item in paths.items()
    }
    return found, dict(sorted(shared.items()))


@cache
def render() -> bytes:
    """The document as it is sent."""
    return msgspec.json.encode(document())
