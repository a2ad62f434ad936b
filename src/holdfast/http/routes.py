"""Routing: from a method and a path to a handler.

There are fixed paths such as `/metrics`, the flat surface `/v1/stream/{path}`, below which `__ds`
is for subscriptions, and the bucketed surface `/{bucket}/{stream}/…`. Every path leads to a
resource and a name: `bucket/id` for a stream, `bucket/` for a bucket, empty for fixed paths. The
rest of the path is the parameter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import (
    InvalidBucketError,
    InvalidStreamIdError,
    MethodNotAllowedError,
    NotFoundError,
)
from holdfast.http.access.scopes import Need
from holdfast.protocol.headers import parse_offset
from holdfast.protocol.names import (
    SUBSCRIPTIONS,
    check_bucket_id,
    check_stream_id,
    decode_path,
    decode_segment,
    parse_flat_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot
    from holdfast.http.mount import Mount

    Handler = Callable[[App, Request, Slot, str], None]

STREAM_PREFIX: Final = b"/v1/stream/"
CONTROL_PREFIX: Final = STREAM_PREFIX + SUBSCRIPTIONS.encode()
_CACHE_ENTRIES_MAX: Final = 65_536
_CACHED_PATH_BYTES_MAX: Final = 256


class Route(NamedTuple):
    """A handler, its label in the metrics, and the permission it needs.

    With `lists` the handler goes over many streams, and the request's prefix has to be permitted.
    With `waits` it may be called again when a look-up in the catalog had to wait for the disk, so
    it changes nothing before its last look-up. With `somewhere` the permission for any stream will
    do, and the handler checks which streams the request is about.
    """

    handler: Handler
    label: str
    needs_engine: bool = True
    need: Need = Need.ADMIN
    lists: bool = False
    waits: bool = False
    somewhere: bool = False


class Resource(NamedTuple):
    """Routes by method."""

    routes: Mapping[bytes, Route]

    @classmethod
    def reading(cls, route: Route, **others: Route) -> Resource:
        """GET and HEAD with the same route, and other methods."""
        named = {method.encode(): other for method, other in others.items()}
        return cls({b"GET": route, b"HEAD": route, **named})

    @property
    def allowed(self) -> str:
        """The value of `Allow`."""
        return ", ".join(sorted(method.decode() for method in self.routes))


class Match(NamedTuple):
    """What a path leads to."""

    resource: Resource
    name: str = ""
    parameter: str = ""
    # Whether the bucket has to exist; on the flat surface it need not.
    bucketed: bool = False
    # The two parts of a stream's name, only set in remembered matches.
    bucket: str = ""
    stream_id: str = ""


class Tree(NamedTuple):
    """All resources of the server."""

    fixed: Mapping[bytes, Resource]
    stream: Resource
    bucket: Resource
    # Below `/{bucket}/streams` and `/{bucket}/{stream}`, by the rest of the path.
    of_bucket: Mapping[bytes, Resource]
    of_stream: Mapping[bytes, Resource]
    snapshot: Resource
    # Resolves paths below `/v1/stream/__ds` to a resource and its parameter.
    control: Callable[[bytes], tuple[Resource, str] | None]


class Router:
    """Finds routes, and remembers stream paths, since most come again."""

    def __init__(self, tree: Tree, mount: Mount | None = None) -> None:
        self._tree = tree
        self._mount = mount
        self._mounted = () if mount is None else mount.prefixes
        self._known: dict[bytes, Match] = {}

    def find(self, method: bytes, path: bytes) -> tuple[Route, Match]:
        """The route for a request; raises if there is none."""
        match = self._known.get(path)
        if match is None:
            if method == b"PUT" and path[1:] in _NO_BUCKETS:
                raise InvalidBucketError(f"The bucket id {path[1:].decode()!r} is reserved.")
            match = self._resolve(path)
        route = match.resource.routes.get(method)
        if route is None:
            if method == b"PUT" and match.resource is self._tree.of_bucket[b""]:
                raise InvalidStreamIdError("The stream id 'streams' is reserved.")
            raise MethodNotAllowedError(method.decode("latin-1"), match.resource.allowed)
        return route, match

    def _resolve(self, path: bytes) -> Match:
        if self._mount is not None and path.startswith(self._mounted):
            match = self._mount.match(path, self)
            if match is not None:
                return match
        return self.resolve(path)

    def resolve(self, path: bytes, *, reserved: str = "") -> Match:
        """What a path of the server itself leads to; `reserved` is a reserved bucket to allow."""
        tree = self._tree
        if path.startswith(STREAM_PREFIX):
            if path.startswith(CONTROL_PREFIX) and path[len(CONTROL_PREFIX) :][:1] in {b"", b"/"}:
                return self._control(path)
            name = parse_flat_path(path[11:], reserved=reserved)
            if reserved:
                return Match(tree.stream, name)
            return self._remember(path, Match(tree.stream, name))
        resource = tree.fixed.get(path)
        if resource is not None:
            return Match(resource)
        return self._bucketed(path, reserved)

    def _control(self, path: bytes) -> Match:
        found = self._tree.control(path[len(CONTROL_PREFIX) :])
        if found is None:
            raise NotFoundError("Nothing lives at this path below /v1/stream/__ds.")
        return Match(found[0], parameter=found[1])

    def _bucketed(self, path: bytes, reserved: str) -> Match:
        """`/{bucket}`, `/{bucket}/{stream}` and what is below them."""
        tree = self._tree
        decode_path(path)
        bucket, slash, rest = path[1:].partition(b"/")
        if not bucket or bucket in _NO_BUCKETS:
            raise NotFoundError("Nothing lives at this path. Streams are at /{bucket}/{stream}.")
        bucket_id = decode_segment(bucket)
        if not slash:
            # The handler refuses reserved ids: the error depends on the method.
            check_bucket_id(bucket_id, reserved=bucket_id)
            return Match(tree.bucket, f"{bucket_id}/")
        check_bucket_id(bucket_id, reserved=reserved)
        first, _, below = rest.partition(b"/")
        stream_id = decode_segment(first)
        if stream_id == "streams":
            resource = tree.of_bucket.get(below)
            if resource is None:
                raise NotFoundError("Nothing lives at this path below /{bucket}/streams.")
            return Match(resource, f"{bucket_id}/", bucketed=True)
        check_stream_id(bucket_id, stream_id)
        name = f"{bucket_id}/{stream_id}"
        if not below and not rest.endswith(b"/"):
            match = Match(tree.stream, name, bucketed=True)
            return match if reserved else self._remember(path, match)
        kind, slash, parameter = below.partition(b"/")
        if kind == b"snapshot" and slash:
            offset = decode_segment(parameter)
            parse_offset(offset)
            return Match(tree.snapshot, name, offset, bucketed=True)
        resource = tree.of_stream.get(below)
        if resource is None:
            raise NotFoundError("Nothing lives at this path below /{bucket}/{stream}.")
        match = Match(resource, name, bucketed=True)
        return match if reserved else self._remember(path, match)

    def _remember(self, path: bytes, match: Match) -> Match:
        bucket, _, stream_id = match.name.partition("/")
        match = match._replace(bucket=bucket, stream_id=stream_id)
        if len(path) <= _CACHED_PATH_BYTES_MAX:
            if len(self._known) >= _CACHE_ENTRIES_MAX:
                self._known.clear()
            self._known[path] = match
        return match


# First segments that are no buckets.
_NO_BUCKETS: Final = frozenset({b"cluster", b"healthz", b"readyz", b"metrics", b"v1"})
