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
SOURCE: Final = Path(__file__).with_name("openapi.yaml")
_SCHEMAS: Final = "#/components/schemas/"
# An upstream's own response may take the place of ours.
_UPSTREAM_ERROR: Final = "UPSTREAM_ERROR"


def _openapi(app: App, _request: Request, slot: Slot, _name: str) -> None:
    slot.respond(200, _HEADERS, render(None if app.mount is None else app.mount.openapi))


_ROUTE: Final = Route(_openapi, "openapi", needs_engine=False, need=Need.NOTHING)
RESOURCES: Final = {b"/openapi.json": Resource.reading(_ROUTE)}


@cache
def render(mounted: Path | None) -> bytes:
    """The document as it is sent."""
    return msgspec.json.encode(document(mounted))


@cache
def document(mounted: Path | None) -> Json:
    """The document; `mounted` is the file with the paths of a mount."""
    main = load(SOURCE)
    sources = [main] if mounted is None else [main, load(mounted)]
    components: dict[str, Json] = defaultdict(dict)
    paths: Json = {}
    for source in sources:
        paths |= {path: _path_item(item) for path, item in source["paths"].items()}
        for kind, named in source["components"].items():
            components[kind] |= named
    used = set(re.findall(r"#/components/headers/([A-Za-z-]+)", _text(paths)))
    paths, responses = _share_errors(paths)
    schemas = _generated_schemas() | _expand_schemas(components["schemas"])
    schemas["ErrorCode"]["enum"] = sorted(response_codes())
    parameters = {
        name: parameter | {"required": True} if parameter["in"] == "path" else parameter
        for name, parameter in components["parameters"].items()
    }
    return {
        "openapi": main["openapi"],
        "servers": main["servers"],
        "info": main["info"] | {"version": __version__},
        "paths": dict(sorted(paths.items())),
        "components": components
        | {
            "schemas": dict(sorted(schemas.items())),
            "parameters": parameters,
            "responses": responses,
            "headers": {name: _header(components["headers"], name) for name in sorted(used)},
        },
    }


@cache
def load(path: Path = SOURCE) -> Json:
    """A file in the short form."""
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
    from holdfast.format.packs import ScanPart  # noqa: PLC0415
    from holdfast.http.batches import BatchRequest  # noqa: PLC0415
    from holdfast.http.changes import ChangeEntry  # noqa: PLC0415
    from holdfast.http.scan import HotRange, Partition  # noqa: PLC0415
    from holdfast.http.storage_routes import PinRequest, SwapRequest  # noqa: PLC0415
    from holdfast.subscriptions.bodies import (  # noqa: PLC0415
        ClaimBody,
        CreateBody,
        StreamsBody,
        WakeBody,
    )

    types = (BatchRequest, ChangeEntry, Partition, ScanPart, HotRange, SwapRequest, PinRequest)
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


def _path_item(item: Json) -> Json:
    expanded: Json = {}
    for method, operation in item.items():
        if method == "parameters":
            expanded[method] = _parameters(operation)
        elif operation == "get":
            expanded[method] = _without_body(expanded["get"])
        elif method != "tag":
            expanded[method] = _operation(operation, item["tag"])
    return expanded


def _operation(operation: Json, tag: str) -> Json:
    errors = load()["errors"]
    if "preflight" in operation:
        operation = operation | load()["preflight"]
        operation["operationId"] = operation.pop("preflight")
    codes = list(errors["always"])
    for code in operation.get("errors", ()):
        codes += errors["groups"][code[1:]] if code.startswith("+") else [code]
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


def response_codes() -> set[str]:
    """The codes of all errors that a response can carry."""
    return error_classes().keys() - set(load()["errors"]["never"])


def _error_responses(codes: Iterable[str]) -> Json:
    """The responses with these codes, by status."""
    classes = error_classes()
    by_status: dict[int, list[str]] = defaultdict(list)
    for code in sorted(set(codes)):
        by_status[classes[code].status].append(code)
    return {str(status): _error_response(status, by_status[status]) for status in sorted(by_status)}


def _error_response(status: int, codes: list[str]) -> Json:
    errors = load()["errors"]
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
    headers = _header_refs(name for code in codes for name in errors["headers"].get(code, ()))
    if status in errors["status_headers"]:
        headers |= _header_refs([errors["status_headers"][status]], "-Always")
    response = {"description": f"{errors['reasons'][status]} Codes: {quoted}.", "content": content}
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
