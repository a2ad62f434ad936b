"""For jobs: which packs are in use, what is in them, and where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.http.access.scopes import Need
from holdfast.http.openapi.fields import parameters
from holdfast.http.openapi.pieces import (
    FLAG,
    NUMBER,
    OFFSET,
    TEXT,
    answer,
    head_of,
    json_answer,
    lines_answer,
    listed,
    operation,
    record,
    schema,
)
from holdfast.http.openapi.scans import SALT, SUM, SUMS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.http.openapi.pieces import Json

_TAG: Final = "storage"
# Where the proxy is on, and no access control guards its streams.
_OF_PACKS: Final = ("MISSING_SECRET", "INVALID_SECRET")

SCHEMAS: Final[dict[str, Json]] = {
    "Store": record(
        "The object store.",
        store=TEXT | {"format": "uri"},
        store_id=TEXT | {"description": "The id in its marker."},
        flushed=OFFSET | {"description": "Up to here everything is in packs."},
    ),
    "Pack": record(
        "A pack in use.",
        name=TEXT,
        size_bytes=NUMBER,
        data_bytes=NUMBER,
        dead_bytes=NUMBER,
        messages=NUMBER,
        rows=NUMBER,
        has_delta=FLAG,
        after=NUMBER,
        through=NUMBER,
        salt=SALT,
        created_ms=NUMBER,
        superseded=listed(TEXT)
        | {"description": "Packs that it has taken the place of and that may still be there."},
    ),
    "PackExtent": record(
        "A run of messages of one stream in a pack.",
        stream=NUMBER,
        start=NUMBER,
        length=NUMBER,
        data_at=NUMBER,
        message_at=NUMBER,
        messages=NUMBER,
        first_position=NUMBER,
        last_position=NUMBER,
        index_sum=SUM,
        sums=SUMS,
        needed_from=NUMBER | {"description": "Bytes of the stream before this offset are dead."},
        name=TEXT | {"description": "Bucket and id."},
        json=FLAG,
        tail=NUMBER,
    ),
}


def _look(
    identifier: str,
    summary: str,
    found: Json,
    *,
    errors: tuple[str, ...] = (),
    parameters: Iterable[Json] = (),
) -> Json:
    get = operation(
        identifier,
        summary,
        {200: found},
        tag=_TAG,
        need=Need.READ,
        errors=("not_found", "catalog_damaged", *errors),
        parameters=parameters,
        description="404 on a server without packs. Where the proxy is on and access control is "
        "off, packs take the proxy's secret.",
    )
    return {"get": get, "head": head_of(get)}


PATHS: Final[dict[str, Json]] = {
    "/cluster/store": _look(
        "getStore", "Where the packs are.", json_answer("The store.", schema("Store"))
    ),
    "/cluster/packs": _look(
        "listPacks",
        "The packs in use, in the order of the log.",
        lines_answer("A line for each pack.", schema("Pack")),
        errors=_OF_PACKS,
    ),
    "/cluster/packs/extents": _look(
        "listPackExtents",
        "What is in use of a pack.",
        lines_answer("A line for each extent.", schema("PackExtent")),
        errors=_OF_PACKS,
        parameters=parameters("pack"),
    ),
    "/cluster/packs/data": _look(
        "readPackData",
        "A part of a pack as it is.",
        answer("The bytes; fewer if the pack ends before.", (), {"application/octet-stream": {}}),
        errors=(*_OF_PACKS, "store_unavailable"),
        parameters=parameters("pack", "at", "size"),
    ),
}
