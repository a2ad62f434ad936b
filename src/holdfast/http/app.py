"""The application: all routes, and what their handlers share. It knows no sockets."""

from __future__ import annotations

import asyncio
import logging
import math
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import (
    BucketNotFoundError,
    HoldfastError,
    OverloadedError,
    UnavailableError,
)
from holdfast.http import batches, health, openapi, storage_routes, subscription_routes
from holdfast.http.access.gate import Gate, check_scope
from holdfast.http.access.revocable_reads import RevocableReads
from holdfast.http.access.scopes import Need
from holdfast.http.bodies import BodyBudget
from holdfast.http.buckets import (
    create_bucket,
    delete_bucket,
    get_bucket,
    list_buckets,
    list_streams,
)
from holdfast.http.changes import ChangeFeed, changes
from holdfast.http.exchange import parse_query
from holdfast.http.metrics import HttpCounters, MetricsPage
from holdfast.http.publishing import Batches
from holdfast.http.read import read
from holdfast.http.responses import respond_error, respond_in_pieces
from holdfast.http.routes import Resource, Route, Router, Tree
from holdfast.http.scan import scan, scan_pack, scan_ranges
from holdfast.http.scan_forks import inherited, scan_forks
from holdfast.http.scan_journal import records, scan_until
from holdfast.http.snapshot_batches import publish_snapshots
from holdfast.http.snapshots import (
    bootstrap,
    delete_snapshot,
    latest_snapshot,
    publish_snapshot,
    read_snapshot,
)
from holdfast.http.sse import EventEncoder
from holdfast.http.streams import append, create, delete, head, options
from holdfast.http.turns import Turns, Unsent
from holdfast.http.windows import Windows
from holdfast.storage.pending import run
from holdfast.storage.warm_catalog import CatalogWait

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from holdfast.clock import Clock
    from holdfast.engine.shard import Shard
    from holdfast.http.access.scopes import Identity
    from holdfast.http.exchange import Request, Slot
    from holdfast.http.mount import Mount
    from holdfast.http.routes import Match
    from holdfast.settings import Settings
    from holdfast.storage.snapshot_store import SnapshotStore
    from holdfast.subscriptions.service import Subscriptions

_log = logging.getLogger(__name__)
_EXPOSED: Final = (
    "ETag, Location, Retry-After, Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, "
    "Stream-Closed, Stream-TTL, Stream-Expires-At, Stream-SSE-Data-Encoding, "
    "Stream-Snapshot-Offset, Stream-Earliest-Offset, Stream-Start-Offset, "
    "Stream-Message-Lengths, Changes-Earliest-Cursor, "
    "Producer-Epoch, Producer-Seq, Producer-Digest, Producer-Expected-Seq, Producer-Received-Seq"
)


class App:
    """What handlers share: shard, settings, clock, counters."""

    def __init__(
        self,
        shard: Shard,
        settings: Settings,
        clock: Clock,
        snapshots: SnapshotStore,
        subscriptions: Subscriptions,
        gate: Gate | None = None,
        mount: Mount | None = None,
    ) -> None:
        self.shard = shard
        self.snapshots = snapshots
        self.subscriptions = subscriptions
        self.gate = gate
        self.mount = mount
        self.feed = ChangeFeed(self)
        self.batches = Batches(shard, clock, settings.limits)
        self.live_reads = RevocableReads(clock, self._check_again)
        if gate is not None:
            gate.on_change(self.live_reads.check_all)
        # What takes a token to read must not be in shared caches.
        is_private = settings.access.is_on
        self.cache_scope = b"private" if is_private else settings.read.cache_scope.encode()
        # Keeps tasks from being garbage-collected before they are done.
        self._tasks: set[asyncio.Task[None]] = set()
        self.settings = settings
        self.clock = clock
        self.events = EventEncoder()
        self.counted_events = EventEncoder(says_lengths=True)
        self.windows = Windows(shard.reader)
        self.unsent = Unsent(clock, settings.http.unsent_bytes_max)
        self.turns = Turns(clock, self.unsent)
        self.counters = HttpCounters()
        self.bodies = BodyBudget(settings.http, has_access_control=settings.access.is_on)
        self.metrics = MetricsPage(
            self.counters, self.bodies, self.unsent, shard, subscriptions, mount
        )
        # Why the server cannot take requests yet; empty once it can.
        self.not_ready = "The server is recovering its log."
        self.draining = False
        self.started_ms = clock.now_ms()
        self._router = Router(TREE, mount)
        self._catalog = shard.catalog
        self.security_headers = (
            "X-Content-Type-Options: nosniff\r\n"
            "Cross-Origin-Resource-Policy: cross-origin\r\n"
            f"Access-Control-Allow-Origin: {settings.server.cors_origin}\r\n"
            f"Access-Control-Expose-Headers: {_EXPOSED}\r\n"
        ).encode()
        self.common_headers = self.head_end = b""
        self.update_date()

    def update_date(self) -> None:
        """Renew the headers that every native response carries; called once a second."""
        date = formatdate(self.clock.now_ms() / 1000, usegmt=True).encode()
        self.common_headers = b"Date: %b\r\n%b" % (date, self.security_headers)
        self.head_end = self.common_headers + b"\r\n"

    def handle(self, request: Request, slot: Slot) -> None:
        """Respond to a request, now or later; never raises."""
        try:
            route, match = self._router.find(request.method, request.path)
            slot.route = route.label
            if self.gate is not None and not request.admitted:
                self._admit(self.gate, request, route, match)
            if self.not_ready and route.needs_engine:
                raise UnavailableError(self.not_ready)  # noqa: TRY301 (one way out)
            # A preflight is about a path, whatever is there.
            if (match.bucketed or match.parameter) and route.needs_engine:
                self._prepare(request, match)
            catalog = self._catalog
            if catalog is not None and catalog.may_wait and route.waits:
                run(catalog.look_up(_Attempt(self, request, slot, route, match.name)), _ignore)
            else:
                route.handler(self, request, slot, match.name)
        except Exception as error:  # noqa: BLE001 (a defect in one handler must not end the server)
            _respond_failed(request, slot, error)

    def admit(self, request: Request, slot: Slot) -> None:
        """Raise unless the caller may send the body of this request.

        For bodies that are not complete yet: otherwise `handle` finds out the same.
        """
        route, match = self._router.find(request.method, request.path)
        slot.route = route.label
        if self.gate is not None:
            self._admit(self.gate, request, route, match)
        if self.not_ready and route.needs_engine:
            raise UnavailableError(self.not_ready)
        request.admitted = True

    def _admit(self, gate: Gate, request: Request, route: Route, match: Match) -> None:
        """Raise unless the gate admits the request."""
        if match.bucket:
            request.identity = gate.admit(request, route.need, match.bucket, match.stream_id)
            return
        bucket, stream_id = _subject(request, route, match)
        request.identity = gate.admit(
            request,
            route.need,
            bucket,
            stream_id,
            is_prefix=route.lists,
            somewhere=route.somewhere,
        )

    def _check_again(self, request: Request) -> Identity:
        """Raise unless a live read would still be admitted."""
        route, match = self._router.find(request.method, request.path)
        if not route.need:
            assert self.mount is not None, "only a mount admits readers by itself"
            return self.mount.check_reader(self, request)
        assert self.gate is not None, "without a gate nothing is withdrawn"
        bucket, stream_id = _subject(request, route, match)
        return self.gate.check(request, route.need, bucket, stream_id, is_prefix=route.lists)

    def check_may_read(self, request: Request, name: str) -> None:
        """Raise unless the request may read this other stream as well."""
        if request.identity is not None:
            bucket, _, stream_id = name.partition("/")
            check_scope(request.identity, Need.READ, bucket, stream_id)

    def _prepare(self, request: Request, match: Match) -> None:
        """Set what the path holds besides the name; its bucket has to exist."""
        request.parameter = match.parameter
        request.bucketed = match.bucketed
        if match.bucketed and not self.shard.has_bucket(match.name):
            raise BucketNotFoundError(match.name.partition("/")[0])

    def spawn(self, work: Coroutine[Any, Any, None], slot: Slot) -> None:
        """Run a handler that responds later; it is cancelled if the client disconnects."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        slot.on_gone = partial(_cancel, task)
        task.add_done_callback(partial(self._task_done, slot))

    def respond_streamed(
        self,
        request: Request,
        slot: Slot,
        headers: bytes,
        pieces: AsyncIterator[bytes],
        length: int | None = None,
    ) -> None:
        """Respond with a body that comes in pieces; HEAD gets the headers alone."""
        if request.method == b"HEAD":
            if length is not None:
                headers += b"Content-Length: %d\r\n" % length
            slot.respond(200, headers)
        else:
            self.spawn(respond_in_pieces(self.turns, slot, headers, pieces, length), slot)

    def _task_done(self, slot: Slot, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, HoldfastError):
            respond_error(slot, error)
        elif error is not None:
            _log.error("a request failed", exc_info=error)
            slot.abort()

    def begin_live(self, request: Request, slot: Slot) -> float:
        """Begin a live read; returns how long it may last: no longer than its token."""
        identity = request.identity
        if identity is None:
            return math.inf
        if self.gate is not None and self.gate.knows_tokens:
            self.live_reads.add(slot, request)
        if identity.expires_at_s is None:
            return math.inf
        return max(0.0, identity.expires_at_s - self.clock.now_ms() / 1000)

    def end_live_readers(self) -> None:
        """Send live readers a last control event, and accept no more of them."""
        self.draining = True
        self.shard.live.finish_all()
        self.feed.finish_all()

    def check_live_readers(self) -> None:
        """Raise if no more live readers are accepted."""
        if self.draining:
            raise UnavailableError("The server is shutting down.")
        if len(self.shard.live) + len(self.feed) >= self.settings.read.live_readers_max:
            raise OverloadedError("Too many live readers are connected.")

    def location(self, request: Request) -> bytes:
        """The absolute URL of the request's resource, as the client sees it."""
        public_url = self.settings.server.public_url
        if public_url:
            return public_url.encode() + request.prefix + request.path
        host = request.headers.get(b"host", b"localhost")
        return b"%b://%b%b%b" % (request.scheme, host, request.prefix, request.path)


def _respond_failed(request: Request, slot: Slot, error: Exception) -> None:
    """Respond to a request whose handler raised this."""
    if not isinstance(error, HoldfastError):
        _log.error("%r %r failed", request.method, request.path, exc_info=error)
        error = HoldfastError("The server failed; its log says why.")
    request.abandon_body(slot)
    respond_error(slot, error)


class _Attempt:
    """A handler's call, which is repeated when the catalog has to be read from the disk."""

    def __init__(self, app: App, request: Request, slot: Slot, route: Route, name: str) -> None:
        self._app = app
        self._request = request
        self._slot = slot
        self._route = route
        self._name = name
        self._gone = False

    def __call__(self) -> None:
        """Respond; raises only if the catalog is not ready."""
        if self._gone:
            return
        slot = self._slot
        slot.on_gone, slot.route = None, self._route.label
        try:
            self._route.handler(self._app, self._request, slot, self._name)
        except CatalogWait:
            # With another label than that of appends: none may overtake this one.
            slot.on_gone, slot.route = self._leave, "waiting"
            raise
        except Exception as error:  # noqa: BLE001 (a defect in one handler must not end the server)
            _respond_failed(self._request, slot, error)

    def _leave(self) -> None:
        self._gone = True


def _ignore(_: object) -> None:
    pass


def _subject(request: Request, route: Route, match: Match) -> tuple[str, str]:
    """The bucket and the stream, or the prefix of streams, that a request is about."""
    bucket, _, stream_id = match.name.partition("/")
    if route.lists:
        stream_id = parse_query(request.query).get("prefix", "")
    return bucket, stream_id


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


_OPTIONS: Final = Route(options, "options", needs_engine=False, need=Need.NOTHING)


TREE: Final = Tree(
    fixed=health.RESOURCES
    | storage_routes.RESOURCES
    | openapi.RESOURCES
    | batches.RESOURCES
    | {b"/cluster/buckets": Resource.reading(Route(list_buckets, "bucket", need=Need.READ))},
    stream=Resource(
        {
            b"POST": Route(append, "append", need=Need.WRITE, waits=True),
            b"GET": Route(read, "read", need=Need.READ, waits=True),
            b"PUT": Route(create, "create", need=Need.WRITE, waits=True),
            b"HEAD": Route(head, "head", need=Need.READ, waits=True),
            b"DELETE": Route(delete, "delete", need=Need.WRITE, waits=True),
            b"OPTIONS": _OPTIONS,
        }
    ),
    bucket=Resource(
        {
            b"PUT": Route(create_bucket, "bucket", need=Need.ADMIN),
            b"GET": Route(get_bucket, "bucket", need=Need.READ),
            b"HEAD": Route(get_bucket, "bucket", need=Need.READ),
            b"DELETE": Route(delete_bucket, "bucket", need=Need.ADMIN),
            b"OPTIONS": _OPTIONS,
        }
    ),
    of_bucket={
        b"": Resource.reading(
            Route(list_streams, "list", need=Need.READ, lists=True, waits=True), OPTIONS=_OPTIONS
        ),
        b"changes": Resource(
            {
                b"GET": Route(changes, "changes", need=Need.READ, lists=True, waits=True),
                b"OPTIONS": _OPTIONS,
            }
        ),
        b"scan": Resource.reading(
            Route(scan, "scan", need=Need.READ, lists=True), OPTIONS=_OPTIONS
        ),
        b"scan/ranges": Resource.reading(
            Route(scan_ranges, "scan", need=Need.READ, lists=True), OPTIONS=_OPTIONS
        ),
        b"scan/pack": Resource.reading(
            Route(scan_pack, "scan", need=Need.READ, lists=True), OPTIONS=_OPTIONS
        ),
        b"scan/until": Resource.reading(
            Route(scan_until, "scan", need=Need.READ, lists=True), OPTIONS=_OPTIONS
        ),
        b"snapshots": Resource(
            {
                b"POST": Route(publish_snapshots, "publish_snapshots", need=Need.WRITE, lists=True),
                b"OPTIONS": _OPTIONS,
            }
        ),
        b"scan/forks": Resource.reading(
            Route(scan_forks, "scan", need=Need.READ, lists=True), OPTIONS=_OPTIONS
        ),
        b"scan/inherited": Resource.reading(
            Route(inherited, "scan", need=Need.READ, lists=True), OPTIONS=_OPTIONS
        ),
        b"records": Resource.reading(
            Route(records, "scan", need=Need.READ, lists=True), OPTIONS=_OPTIONS
        ),
    },
    of_stream={
        b"snapshot": Resource.reading(
            Route(latest_snapshot, "snapshot", need=Need.READ, waits=True), OPTIONS=_OPTIONS
        ),
        b"bootstrap": Resource.reading(
            Route(bootstrap, "bootstrap", need=Need.READ, waits=True), OPTIONS=_OPTIONS
        ),
    },
    snapshot=Resource(
        {
            b"PUT": Route(publish_snapshot, "publish_snapshot", need=Need.WRITE, waits=True),
            b"GET": Route(read_snapshot, "snapshot", need=Need.READ, waits=True),
            b"HEAD": Route(read_snapshot, "snapshot", need=Need.READ, waits=True),
            b"DELETE": Route(delete_snapshot, "snapshot", need=Need.WRITE, waits=True),
            b"OPTIONS": _OPTIONS,
        }
    ),
    control=subscription_routes.resolve,
)
