"""The tree of resources: every path, every method, its handler, and what it takes to be let in."""

from __future__ import annotations

from typing import Final

from holdfast.http import health, pack_routes, storage_routes, subscription_routes
from holdfast.http.access.scopes import Need
from holdfast.http.append import append
from holdfast.http.bootstrap import bootstrap
from holdfast.http.buckets import create_bucket, delete_bucket, get_bucket, list_streams
from holdfast.http.changes import changes
from holdfast.http.create import create
from holdfast.http.openapi import serving
from holdfast.http.read import read
from holdfast.http.routes import Resource, Route, Tree
from holdfast.http.scan import scan, scan_ranges
from holdfast.http.scan_records import records
from holdfast.http.scan_until import scan_until
from holdfast.http.snapshots import (
    delete_snapshot,
    latest_snapshot,
    publish_snapshot,
    read_snapshot,
)
from holdfast.http.stream_info import delete, head, options

_OPTIONS: Final = Route(options, "options", needs_engine=False, need=Need.NOTHING)

STREAM: Final = Resource(
    {
        b"POST": Route(append, "append", need=Need.WRITE),
        b"GET": Route(read, "read", need=Need.READ),
        b"PUT": Route(create, "create", need=Need.WRITE),
        b"HEAD": Route(head, "head", need=Need.READ),
        b"DELETE": Route(delete, "delete", need=Need.WRITE),
        b"OPTIONS": _OPTIONS,
    }
)
BUCKET: Final = Resource(
    {
        b"PUT": Route(create_bucket, "bucket", need=Need.ADMIN),
        b"GET": Route(get_bucket, "bucket", need=Need.READ),
        b"HEAD": Route(get_bucket, "bucket", need=Need.READ),
        b"DELETE": Route(delete_bucket, "bucket", need=Need.ADMIN),
        b"OPTIONS": _OPTIONS,
    }
)
SNAPSHOT: Final = Resource(
    {
        b"PUT": Route(publish_snapshot, "publish_snapshot", need=Need.WRITE),
        b"GET": Route(read_snapshot, "snapshot", need=Need.READ),
        b"HEAD": Route(read_snapshot, "snapshot", need=Need.READ),
        b"DELETE": Route(delete_snapshot, "snapshot", need=Need.WRITE),
        b"OPTIONS": _OPTIONS,
    }
)


def _reading(route: Route) -> Resource:
    return Resource({b"GET": route, b"HEAD": route, b"OPTIONS": _OPTIONS})


TREE: Final = Tree(
    health.RESOURCES | storage_routes.RESOURCES | pack_routes.RESOURCES | serving.RESOURCES,
    STREAM,
    BUCKET,
    {
        b"": _reading(Route(list_streams, "list", need=Need.READ, lists=True)),
        b"changes": Resource(
            {
                b"GET": Route(changes, "changes", need=Need.READ, lists=True),
                b"OPTIONS": _OPTIONS,
            }
        ),
        b"scan": _reading(Route(scan, "scan", need=Need.READ, lists=True)),
        b"scan/ranges": _reading(Route(scan_ranges, "scan", need=Need.READ, lists=True)),
        b"scan/until": _reading(Route(scan_until, "scan", need=Need.READ, lists=True)),
        b"records": _reading(Route(records, "scan", need=Need.READ, lists=True)),
    },
    {
        b"snapshot": _reading(Route(latest_snapshot, "snapshot", need=Need.READ)),
        b"bootstrap": _reading(Route(bootstrap, "bootstrap", need=Need.READ)),
    },
    SNAPSHOT,
    subscription_routes.resolve,
)
