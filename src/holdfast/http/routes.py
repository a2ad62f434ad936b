"""Routes: which handler a method and a path lead to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import InvalidRequestError, MethodNotAllowedError, NotFoundError
from holdfast.protocol.names import parse_flat_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.http.app import App
    from holdfast.http.exchange import Request, Slot

    Handler = Callable[[App, Request, Slot, str], None]

STREAM_PREFIX: Final = b"/v1/stream/"
_CACHE_ENTRIES_MAX: Final = 65_536
_CACHED_PATH_BYTES_MAX: Final = 256


class Route(NamedTuple):
    """A handler, what it counts as in the metrics, and whether it works before recovery."""

    handler: Handler
    label: str
    needs_engine: bool = True


class Resource(NamedTuple):
    """The routes of one resource by method."""

    routes: Mapping[bytes, Route]

    @property
    def allowed(self) -> str:
        """The value of `Allow`."""
        return ", ".join(sorted(method.decode() for method in self.routes))


class Router:
    """Finds routes; the names behind stream paths are remembered, since most come again."""

    def __init__(self, streams: Resource, fixed: Mapping[bytes, Resource]) -> None:
        self._streams = streams
        self._fixed = fixed
        self._names: dict[bytes, str] = {}

    def find(self, method: bytes, path: bytes) -> tuple[Route, str]:
        """The route for a request, and the stream's name (empty for fixed paths)."""
        name = self._names.get(path)
        resource = self._streams
        if name is None:
            resource, name = self._resolve(path)
        route = resource.routes.get(method)
        if route is None:
            raise MethodNotAllowedError(method.decode("latin-1"), resource.allowed)
        return route, name

    def _resolve(self, path: bytes) -> tuple[Resource, str]:
        if path.startswith(STREAM_PREFIX):
            name = parse_flat_path(path[len(STREAM_PREFIX) :])
            if len(path) <= _CACHED_PATH_BYTES_MAX:
                if len(self._names) >= _CACHE_ENTRIES_MAX:
                    self._names.clear()
                self._names[path] = name
            return self._streams, name
        resource = self._fixed.get(path)
        if resource is None:
            if b"\0" in path or b"%00" in path:
                raise InvalidRequestError("The path holds a NUL character.")
            raise NotFoundError("Nothing lives at this path. Streams are at /v1/stream/{path}.")
        return resource, ""
