"""What the document is put together from: schemas, answers, operations, paths."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.http.access.scopes import Need
from holdfast.http.openapi.failures import ALWAYS, failures

if TYPE_CHECKING:
    from collections.abc import Iterable

Json = dict[str, Any]
JSON_TYPE: Final = "application/json"
NDJSON_TYPE: Final = "application/x-ndjson"
TEXT: Final[Json] = {"type": "string"}
NUMBER: Final[Json] = {"type": "integer", "minimum": 0}
FLAG: Final[Json] = {"type": "boolean"}
OFFSET: Final[Json] = {"type": "string", "pattern": "^[0-9]{20}$"}
BEARER: Final = "bearer"
WAKE: Final = "wake"
# Of the proxy: its secret in two places, and a signed URL.
SERVICE: Final = "proxySecret"
SERVICE_IN_QUERY: Final = "proxySecretInQuery"
SIGNED_URL: Final = "signedUrl"
_SCHEMAS: Final = "#/components/schemas/"


def schema(name: str) -> Json:
    """A reference to a schema."""
    return {"$ref": _SCHEMAS + name}


def parameter(name: str) -> Json:
    """A reference to a parameter."""
    return {"$ref": f"#/components/parameters/{name}"}


def nullable(kind: Json) -> Json:
    """The same, or null."""
    return {"anyOf": [kind, {"type": "null"}]}


def listed(kind: Json) -> Json:
    """An array of these."""
    return {"type": "array", "items": kind}


def record(description: str, /, **properties: Json) -> Json:
    """An object with these properties, all of which are always there."""
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "required": list(properties),
    }


def event(name: str, data: Json, **fields: Json) -> Json:
    """A Server-Sent Event, as an object of its fields."""
    return record("An event.", event={"const": name}, data=data, **fields)


def as_json(kind: Json) -> Json:
    """Text that is JSON."""
    return TEXT | {"contentMediaType": JSON_TYPE, "contentSchema": kind}


def derived(*types: type) -> dict[str, Json]:
    """The schemas of what the server decodes and encodes with msgspec, by name."""
    _, found = msgspec.json.schema_components(types, ref_template=_SCHEMAS + "{name}")
    text = msgspec.json.encode(found).decode()
    # Names without the underscore of what is private, and patterns as JSON Schema has them.
    text = text.replace(f'"{_SCHEMAS}_', f'"{_SCHEMAS}').replace(r"\\A", "^").replace(r"\\Z", "$")
    public: dict[str, Json] = msgspec.json.decode(re.sub(r'"title":"_', '"title":"', text))
    return {name.removeprefix("_"): each for name, each in public.items()}


def answer(
    description: str, headers: Iterable[str] = (), content: Json | None = None, needed: str = ""
) -> Json:
    """An answer; of its headers those named in `needed` are always there."""
    found: Json = {"description": description}
    always = set(needed.split())
    names = [*always, *(each for each in headers if each not in always)]
    if names:
        found["headers"] = {name: _header(name, name in always) for name in sorted(names)}
    if content is not None:
        found["content"] = content
    return found


def _header(name: str, always: bool) -> Json:
    return {"$ref": f"#/components/headers/{name}{'-Always' if always else ''}"}


def json_answer(description: str, kind: Json, headers: Iterable[str] = ()) -> Json:
    """An answer of JSON."""
    return answer(description, headers, {JSON_TYPE: {"schema": kind}})


def lines_answer(description: str, kind: Json) -> Json:
    """An answer of JSON, a line for each; the schema is that of an array of the lines."""
    return answer(description, (), {NDJSON_TYPE: {"schema": listed(kind)}})


def operation(
    identifier: str,
    summary: str,
    answers: dict[int, Json],
    *,
    tag: str,
    need: Need,
    errors: Iterable[str] = (),
    parameters: Iterable[Json] = (),
    body: Json | None = None,
    description: str = "",
    credentials: Iterable[str] = (),
) -> Json:
    """What one method of one path does; `errors` are the codes besides those of every request.

    `credentials` are those it takes, one of them, where they are not those of access control.
    """
    codes = [*ALWAYS, *errors]
    if need:
        codes += ["unauthorized", "forbidden"]
    found: Json = {
        "operationId": identifier,
        "summary": summary,
        "tags": [tag],
        "responses": {str(status): each for status, each in answers.items()} | failures(codes),
        "security": _security(need, credentials),
    }
    if need:
        found["x-scope"] = need.name.lower()
    if description:
        found["description"] = description
    if parameters:
        found["parameters"] = list(parameters)
    if body is not None:
        found["requestBody"] = body
    return found


def _security(need: Need, credentials: Iterable[str]) -> list[Json]:
    own: list[Json] = [{each: []} for each in credentials]
    if own:
        return own
    # Nothing is needed where access control is off.
    return [{BEARER: []}, {}] if need else []


def json_body(kind: Json) -> Json:
    """A body of JSON."""
    return {"required": True, "content": {JSON_TYPE: {"schema": kind}}}


def head_of(get: Json) -> Json:
    """HEAD where it answers as GET does, without the body."""
    responses = {
        status: {name: part for name, part in each.items() if name != "content"}
        for status, each in get["responses"].items()
    }
    identifier = re.sub("^(get|read|list)?(.)", _headed, get["operationId"])
    return get | {
        "operationId": identifier,
        "summary": get["summary"].rstrip(".") + ", without the body.",
        "responses": responses,
    }


def _headed(start: re.Match[str]) -> str:
    return "head" + start[2].upper()


def preflight(identifier: str, tag: str, errors: Iterable[str] = ()) -> Json:
    """OPTIONS, for browsers."""
    headers = ("Allow-Methods", "Allow-Headers", "Max-Age")
    needed = " ".join(f"Access-Control-{name}" for name in headers)
    return operation(
        identifier,
        "Answer a browser's preflight.",
        {204: answer("What a page of another origin may send.", needed=needed)},
        tag=tag,
        need=Need.NOTHING,
        errors=errors,
    )
