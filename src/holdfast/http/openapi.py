"""GET /openapi.json: the OpenAPI 3.1 document, expanded from `openapi.yaml`.

The file explains its short form. Schemas of msgspec types are generated, and the responses with
errors are made from the error classes. `tests/http/test_openapi.py` checks the document against
the running server.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import error_classes
from holdfast.http.access.scopes import Need
from holdfast.http.routes import Resource, Route
from holdfast.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot

Json = dict[str, Any]
_HEADERS: Final = b"Content-Type: application/json\r\nCache-Control: public, max-age=300\r\n"
_SOURCE: Final = Path(__file__).with_name("openapi.yaml")
_SCHEMAS: Final = "#/components/schemas/"
# Codes of errors that occur at start, in clients or in jobs, and never in a response.
NEVER_IN_RESPONSES: Final = frozenset(
    {
        "bad_answer",
        "data_loss",
        "spark_failed",
        "invalid_settings",
        "data_directory_locked",
        "unknown_format",
        "log_corrupt",
        "outbound_failed",
        "target_refused",
    }
)
# Codes that any request can get.
ALWAYS: Final = (
    "invalid_request",
    "request_timeout",
    "payload_too_large",
    "rate_limited",
    "headers_too_large",
    "internal_error",
    "unavailable",
    "overloaded",
)
# An upstream's own response may take the place of ours.
_UPSTREAM_ERROR: Final = "UPSTREAM_ERROR"
_REASONS: Final = {
    400: "The request is malformed.",
    401: "No token, secret or signature, or one that is not good.",
    403: "Not allowed.",
    404: "It is not there.",
    405: "The resource does not take this method.",
    408: "The request did not arrive completely in time.",
    409: "The request contradicts the present state.",
    410: "It is gone for good.",
    412: "`If-Match` names another state.",
    413: "The body is too large.",
    429: "Too many requests.",
    431: "Request line and headers are too large.",
    500: "The server failed; its log says more.",
    502: "The upstream failed, or its response could not be stored.",
    503: "Not now.",
    504: "The upstream did not answer in time.",
}
_ERROR_HEADERS: Final = {
    "stream_closed": ("Stream-Closed", "Stream-Next-Offset"),
    "stale_producer_epoch": ("Producer-Epoch",),
    "producer_sequence_gap": ("Producer-Expected-Seq", "Producer-Received-Seq"),
    "method_not_allowed": ("Allow",),
    "offset_gone": ("Stream-Earliest-Offset",),
    "cursor_gone": ("Changes-Earliest-Cursor",),
    "STREAM_CLOSED": ("Stream-Closed", "Stream-Next-Offset"),
    _UPSTREAM_ERROR: ("Upstream-Status",),
}
_STATUS_HEADERS: Final = {
    401: "WWW-Authenticate",
    429: "Retry-After",
    503: "Retry-After",
}
_PREFLIGHT: Final[Json] = {
    "summary": "Answer a browser's preflight.",
    "responses": {
        204: {
            "description": "What a page of another origin may send.",
            "headers": [
                "Access-Control-Allow-Methods",
                "Access-Control-Allow-Headers",
                "Access-Control-Max-Age",
            ],
        }
    },
}


def _openapi(app: App, _request: Request, slot: Slot, _name: str) -> None:
    slot.respond(200, _HEADERS, render(None if app.mount is None else app.mount.openapi))


_ROUTE: Final = Route(_openapi, "openapi", needs_engine=False, need=Need.NOTHING)
RESOURCES: Final = {b"/openapi.json": Resource({b"GET": _ROUTE, b"HEAD": _ROUTE})}


@cache
def render(mounted: Path | None) -> bytes:
    """The document as it is sent."""
    return msgspec.json.encode(document(mounted))


@cache
def document(mounted: Path | None) -> Json:
    """The document; `mounted` is the file with the paths of a mount."""
    sources = [_load(_SOURCE), *([_load(mounted)] if mounted is not None else [])]
    main = sources[0]
    groups: dict[str, list[str]] = main.pop("error_groups")
    components: dict[str, Json] = defaultdict(dict)
    paths: Json = {}
    for source in sources:
        paths |= {path: _path_item(item, groups) for path, item in source["paths"].items()}
        for kind, named in source["components"].items():
            components[kind] |= named
    used = set(re.findall(r"#/components/headers/([A-Za-z-]+)", _text(paths)))
    paths, responses = _share_errors(paths)
    components["schemas"]["ErrorCode"]["enum"] = sorted(error_classes().keys() - NEVER_IN_RESPONSES)
    schemas = _generated_schemas() | _expand_schemas(components["schemas"])
    parameters = components["parameters"].values()
    for parameter in parameters:
        if parameter["in"] == "path":
            parameter["required"] = True
    return main | {
        "info": main["info"] | {"version": __version__},
        "paths": dict(sorted(paths.items())),
        "components": components
        | {
            "schemas": dict(sorted(schemas.items())),
            "responses": responses,
            "headers": {name: _header(components["headers"], name) for name in sorted(used)},
        },
    }


def _load(path: Path) -> Json:
    # Not at the top, because most servers never serve the document.
    import yaml  # noqa: PLC0415

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loaded: Json = yaml.load(path.read_text(), loader)  # noqa: S506 (a safe one)
    return loaded


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _header(headers: dict[str, Json], name: str) -> Json:
    plain = name.removesuffix("-Always")
    return headers[plain] | {"required": True} if name != plain else headers[plain]


# Schemas.


def _generated_schemas() -> Json:
    """The schemas of msgspec types, by name."""
    from holdfast.http.changes import ChangeEntry  # noqa: PLC0415
    from holdfast.http.scan import Partition  # noqa: PLC0415
    from holdfast.http.storage_routes import PinRequest, SwapRequest  # noqa: PLC0415
    from holdfast.subscriptions.bodies import (  # noqa: PLC0415
        ClaimBody,
        CreateBody,
        StreamsBody,
        WakeBody,
    )

    types = (ChangeEntry, Partition, SwapRequest, PinRequest)
    bodies = (CreateBody, StreamsBody, ClaimBody, WakeBody)
    template = _SCHEMAS + "{name}"
    _, schemas = msgspec.json.schema_components((*types, *bodies), ref_template=template)
    text = _text(schemas)
    # Private types lose their underscore, and patterns are written as JSON Schema has them.
    text = text.replace(f'"{_SCHEMAS}_', f'"{_SCHEMAS}').replace(r"\\A", "^").replace(r"\\Z", "$")
    public: Json = msgspec.json.decode(re.sub(r'"title":"_', '"title":"', text))
    return {name.removeprefix("_"): schema for name, schema in public.items()}


def _expand_schemas(value: Any) -> Any:
    """Replace schema names by references, and `required: all` by the properties' names."""
    if isinstance(value, list):
        return [_expand_schemas(each) for each in value]
    if not isinstance(value, dict):
        return value
    expanded = {key: _expand_schemas(each) for key, each in value.items()}
    if isinstance(value.get("$ref"), str) and not value["$ref"].startswith("#"):
        expanded["$ref"] = _SCHEMAS + value["$ref"]
    if value.get("required") == "all":
        expanded["required"] = list(value["properties"])
    return expanded


# Operations.


def _path_item(item: Json, groups: dict[str, list[str]]) -> Json:
    expanded: Json = {}
    for method, operation in item.items():
        if method == "parameters":
            expanded[method] = _parameters(operation)
        elif operation == "get":
            expanded[method] = _without_body(expanded["get"])
        elif method != "tag":
            expanded[method] = _operation(operation, item["tag"], groups)
    return expanded


def _operation(operation: Json, tag: str, groups: dict[str, list[str]]) -> Json:
    if "preflight" in operation:
        operation = operation | _PREFLIGHT
        operation["operationId"] = operation.pop("preflight")
    codes = list(ALWAYS)
    for code in operation.get("errors", ()):
        codes += groups[code[1:]] if code.startswith("+") else [code]
    has_scope = "x-scope" in operation
    if has_scope:
        codes += ["unauthorized", "forbidden"]
    expanded = {key: value for key, value in operation.items() if key != "errors"}
    expanded["tags"] = [tag]
    expanded["responses"] = {
        str(status): _response(response) for status, response in operation["responses"].items()
    } | _error_responses(codes)
    # Without access control no token is needed.
    expanded.setdefault("security", [{"bearer": []}, {}] if has_scope else [])
    if "parameters" in operation:
        expanded["parameters"] = _parameters(operation["parameters"])
    if "requestBody" in operation:
        expanded["requestBody"] = _with_content(operation["requestBody"])
    return expanded


def _parameters(names: list[str]) -> list[Json]:
    return [{"$ref": f"#/components/parameters/{name}"} for name in names]


def _response(response: Json) -> Json:
    expanded = _with_content(response)
    always, optional = response.get("headers", ()), expanded.pop("optional_headers", ())
    if always or optional:
        expanded["headers"] = _header_refs(optional) | _header_refs(always, "-Always")
    return expanded


def _header_refs(names: Iterable[str], suffix: str = "") -> Json:
    return {name: {"$ref": f"#/components/headers/{name}{suffix}"} for name in names}


def _with_content(body: Json) -> Json:
    """A response or request body with `json` and `lines` written out as its content."""
    expanded: Json = _expand_schemas(body)
    if "json" in expanded:
        expanded["content"] = {"application/json": {"schema": expanded.pop("json")}}
    elif "lines" in expanded:
        lines = {"type": "array", "items": expanded.pop("lines")}
        expanded["content"] = {"application/x-ndjson": {"schema": lines}}
    return expanded


def _without_body(get: Json) -> Json:
    """HEAD where it responds as GET does."""
    name = re.sub(
        "^(get|read|list)?(.)", lambda start: "head" + start[2].upper(), get["operationId"]
    )
    responses = {
        status: {key: part for key, part in response.items() if key != "content"}
        for status, response in get["responses"].items()
    }
    summary = get["summary"].rstrip(".") + ", without the body."
    return get | {"operationId": name, "summary": summary, "responses": responses}


# Errors.


def _error_responses(codes: Iterable[str]) -> Json:
    """The responses with these codes, by status."""
    classes = error_classes()
    by_status: dict[int, list[str]] = defaultdict(list)
    for code in sorted(set(codes)):
        by_status[classes[code].status].append(code)
    return {str(status): _error_response(status, by_status[status]) for status in sorted(by_status)}


def _error_response(status: int, codes: list[str]) -> Json:
    quoted = ", ".join(f"`{code}`" for code in codes)
    enum = {"properties": {"error": {"properties": {"code": {"enum": codes}}}}}
    schema: Json = {"allOf": [{"$ref": _SCHEMAS + "Error"}, enum]}
    content: Json = {"application/json": {"schema": schema}}
    if _UPSTREAM_ERROR in codes:
        told = {"description": "With `Upstream-Status`: what the upstream said, in its own type."}
        content = {
            "application/json": {"schema": {"anyOf": [schema, told]}},
            "*/*": {"schema": told},
        }
    headers = _header_refs(name for code in codes for name in _ERROR_HEADERS.get(code, ()))
    if status in _STATUS_HEADERS:
        headers |= _header_refs([_STATUS_HEADERS[status]], "-Always")
    response = {"description": f"{_REASONS[status]} Codes: {quoted}.", "content": content}
    return response | {"headers": headers} if headers else response


def _share_errors(paths: Json) -> tuple[Json, Json]:
    """The paths with references in place of their error responses, and these by name."""
    names: dict[str, str] = {}
    shared: Json = {}

    def reference(status: str, response: Json) -> Json:
        if status < "400":
            return response
        key = _text(response)
        if key not in names:
            alike = sum(name.startswith(f"Failure{status}") for name in shared)
            names[key] = f"Failure{status}-{alike + 1}"
            shared[names[key]] = response
        return {"$ref": f"#/components/responses/{names[key]}"}

    def shorten(operation: Json) -> Json:
        responses = operation["responses"].items()
        return operation | {
            "responses": {status: reference(status, response) for status, response in responses}
        }

    shortened = {
        path: {key: part if key == "parameters" else shorten(part) for key, part in item.items()}
        for path, item in paths.items()
    }
    return shortened, dict(sorted(shared.items()))
