"""How many upstreams may be called at one time, in all and for one client."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Admission:
    """Counts upstreams under way, and refuses those that would be too many."""

    def __init__(self, upstreams_max: int, client_upstreams_max: int) -> None:
        self._upstreams_max = upstreams_max
        self._client_upstreams_max = client_upstreams_max
        self._by_client: defaultdict[str, int] = defaultdict(int)
        self.under_way = 0
        self.refusals = 0

    @contextmanager
    def one(self, client: str) -> Iterator[None]:
        """Room for one upstream of a client while the block lasts, or OverloadedError."""
        if self.under_way >= self._upstreams_max:
            self.refusals += 1
            raise OverloadedError(
                f"{self._upstreams_max} responses of upstreams are under way already. "
                "Try again later."
            )
        if self._by_client[client] >= self._client_upstreams_max:
            self.refusals += 1
            raise OverloadedError(
                f"{self._client_upstreams_max} responses of upstreams are under way for this "
                "client already. Try again later."
            )
        self.under_way += 1
        self._by_client[client] += 1
        try:
            yield
        finally:
            self.under_way -= 1
            self._by_client[client] -= 1
            if not self._by_client[client]:
                del self._by_client[client]
