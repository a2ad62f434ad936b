"""Rate limits: so many requests a second, and so many at once after a pause.

Token buckets in their shortest form: for each key one number, the time at which its allowance will
be whole again. A key whose time is past is as good as forgotten, so the table drops those first.
"""

from __future__ import annotations

import math
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final

KEYS_MAX: Final = 16_384
# How far a full table is emptied, so that the work of it is spread over many requests.
_KEPT_OF_FULL: Final = 0.75
_ADDRESSES_CACHED: Final = 4096


class RateLimit:
    """A limit on each of many keys: clients, or buckets."""

    def __init__(self, rate: float, burst: float = 0, keys_max: int = KEYS_MAX) -> None:
        assert rate > 0
        self.rate = rate
        self._interval_s = 1 / rate
        self._slack_s = max(1.0, burst or rate) / rate
        self._keys_max = keys_max
        # Key → when all of its allowance is back.
        self._whole_at_s: dict[str, float] = {}

    def take(self, key: str, now_s: float) -> float:
        """Take one request of the key's allowance; the seconds to wait if there is none, else 0."""
        whole_at_s = max(self._whole_at_s.get(key, now_s), now_s) + self._interval_s
        wait_s = whole_at_s - now_s - self._slack_s
        # A billionth of a second is no wait, but what is left of sums that do not come out even.
        if wait_s > 1e-9:
            return wait_s
        if key not in self._whole_at_s and len(self._whole_at_s) >= self._keys_max:
            self._make_room()
        self._whole_at_s[key] = whole_at_s
        return 0.0

    def wait_s(self, key: str, now_s: float) -> float:
        """The seconds to wait for the next request of the key, 0 if it need not; takes nothing."""
        return self._whole_at_s.get(key, now_s) + self._interval_s - now_s - self._slack_s

    def __len__(self) -> int:
        return len(self._whole_at_s)

    def _make_room(self) -> None:
        """Forget those that are whole again, or are nearest to it."""
        latest = sorted(self._whole_at_s.items(), key=lambda each: each[1])
        kept = int(self._keys_max * _KEPT_OF_FULL)
        self._whole_at_s = dict(latest[len(latest) - kept :])


def retry_after_s(wait_s: float) -> int:
    """The wait as `Retry-After` says it: in whole seconds, at least one."""
    return max(1, math.ceil(wait_s))


@lru_cache(_ADDRESSES_CACHED)
def client_of(peer: str) -> str:
    """What an address counts as: itself, or for IPv6 its /64, all of which one client may use.

    No token has such a name: they hold no blanks.
    """
    if ":" not in peer:
        return f"address {peer}"
    try:
        address = IPv6Address(peer.partition("%")[0])
    except ValueError:
        return f"address {peer}"
    if address.ipv4_mapped is not None:
        return f"address {address.ipv4_mapped}"
    return f"address {IPv6Address(int(address) >> 64 << 64)}/64"
