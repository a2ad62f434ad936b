"""For operators and jobs: health, metrics, the storage, and this document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.http.access.scopes import Need
from holdfast.http.openapi.pieces import (
    FLAG,
    NUMBER,
    TEXT,
    answer,
    derived,
    head_of,
    json_answer,
    json_body,
    listed,
    nullable,
    operation,
    record,
    schema,
)
from holdfast.http.storage_routes import PinRequest, SwapRequest

if TYPE_CHECKING:
    from holdfast.http.openapi.pieces import Json

_HEALTH: Final = "health"
_STORAGE: Final = "storage"
_STORED: Final = ("catalog_damaged", "store_unavailable", "object_missing", "pack_corrupt")

SCHEMAS: Final[dict[str, Json]] = derived(SwapRequest, PinRequest) | {
    "Health": record("All is well.", status={"enum": ["ok", "ready"]}),
    "ClusterStatus": record(
        "The server and where its log stands.",
        mode={"const": "single"},
        version=TEXT,
        state={"enum": ["recovering", "draining", "ready"]},
        durability={"enum": ["fsync", "memory"]},
        started_at_ms=NUMBER,
        shards=listed(
            record(
                "A shard.",
                shard=NUMBER,
                role={"const": "owner"},
                last_position=NUMBER,
                stalled=FLAG,
                streams=NUMBER,
            )
        ),
    ),
    "HotColdStats": record(
        "What is in memory and what is in packs; docs/http.md explains the fields.",
        hot=record(
            "Not in packs.",
            bytes=NUMBER,
            cost_bytes=nullable(NUMBER),
            soft_limit_bytes=nullable(NUMBER),
            hard_limit_bytes=nullable(NUMBER),
            streams_in_memory=NUMBER,
            streams_changed=NUMBER,
            hottest=listed(record("A stream.", stream=TEXT, hot_bytes=NUMBER, tail=NUMBER)),
        ),
        cold=nullable(
            record(
                "In packs.",
                bytes=NUMBER,
                streams=NUMBER,
                packs=NUMBER,
                pack_bytes=NUMBER,
                dead_bytes=NUMBER,
                retired_packs=NUMBER,
            )
        ),
        flush=nullable(
            record(
                "How the flush does.",
                position=NUMBER,
                flushed_position=NUMBER,
                backlog_log_bytes=NUMBER,
                backlog_segments=NUMBER,
                in_progress=FLAG,
                trouble=nullable(TEXT),
                retries=NUMBER,
                process_restarts=NUMBER,
            )
        ),
        backpressure=nullable(
            record(
                "Whether writes are refused.", active=FLAG, reason=nullable(TEXT), refused=NUMBER
            )
        ),
        cache=nullable(
            record(
                "Of blocks read from packs.",
                bytes=NUMBER,
                limit_bytes=NUMBER,
                blocks=NUMBER,
                hits=NUMBER,
                misses=NUMBER,
            )
        ),
    ),
}


def _look(identifier: str, summary: str, found: Json, *, tag: str, need: Need) -> Json:
    get = operation(identifier, summary, {200: found}, tag=tag, need=need)
    return {"get": get, "head": head_of(get)}


def _health(identifier: str, summary: str) -> Json:
    found = json_answer("Yes.", schema("Health"))
    return _look(identifier, summary, found, tag=_HEALTH, need=Need.NOTHING)


def _order(
    identifier: str, summary: str, errors: tuple[str, ...] = (), body: Json | None = None
) -> Json:
    return {
        "post": operation(
            identifier,
            summary,
            {204: answer("Done.")},
            tag=_STORAGE,
            need=Need.ADMIN,
            errors=("not_found", *_STORED, *errors),
            body=body,
            description="404 on a server without packs.",
        )
    }


_PROMETHEUS: Final = answer("Every count, for Prometheus.", (), {"text/plain": {"schema": TEXT}})

PATHS: Final[dict[str, Json]] = {
    "/healthz": _health("getHealth", "Whether the process lives."),
    "/readyz/local": _health("getReadiness", "Whether this server takes requests."),
    "/readyz/cluster": _health("getClusterReadiness", "On a single node the same."),
    "/cluster/status": _look(
        "getClusterStatus",
        "The server and where its log stands.",
        json_answer("The status.", schema("ClusterStatus")),
        tag=_HEALTH,
        need=Need.READ,
    ),
    "/metrics": _look("getMetrics", "Every count.", _PROMETHEUS, tag=_HEALTH, need=Need.READ),
    "/openapi.json": _look(
        "getOpenApi",
        "This document.",
        json_answer("The document.", {"type": "object"}),
        tag=_HEALTH,
        need=Need.NOTHING,
    ),
    "/cluster/hot-cold-stats": _look(
        "getHotColdStats",
        "What is in memory and what is in packs.",
        json_answer("The numbers.", schema("HotColdStats")),
        tag=_STORAGE,
        need=Need.READ,
    ),
    "/cluster/flush": _order("flush", "Flush what is durable now."),
    "/cluster/swap-packs": _order(
        "swapPacks",
        "Replace packs by others that hold the same bytes.",
        ("swap_refused",),
        json_body(schema("SwapRequest")),
    ),
    "/cluster/pin-packs": _order(
        "pinPacks",
        "Keep the objects of everything in use now, for a while.",
        (),
        json_body(schema("PinRequest")),
    ),
    "/cluster/collect-garbage": _order("collectGarbage", "Remove the objects that are due now."),
}
