"""Signed URLs: whoever has one may read and abort its stream until it expires.

With service authentication as well it is good for appending to the stream, expired or not.

The signature is HMAC-SHA256 of `{stream-id}:{expires}` under the secret, in base64url without
padding. There may be several secrets, so that they can be replaced: all of them verify, the first
one signs.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Final

from holdfast.errors import SignatureExpiredError, SignatureInvalidError
from holdfast.proxy.stream_ids import is_of_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.clock import Clock

_DIGITS_MAX: Final = 15


class Signer:
    """Signs URLs, and tells whose signature is good."""

    def __init__(self, secrets: Sequence[str], clock: Clock) -> None:
        self._secrets = [secret.encode() for secret in secrets]
        self._clock = clock

    def knows(self, secret: bytes) -> bool:
        """Whether this is one of the secrets; how long that takes says nothing about them."""
        found = False
        for each in self._secrets:
            found |= hmac.compare_digest(each, secret)
        return found

    def query(self, stream_id: str, ttl_s: float) -> str:
        """The query of a URL that is good for so long from now on."""
        expires = self._clock.now_ms() // 1000 + int(ttl_s)
        signature = _sign(self._secrets[0], stream_id, str(expires))
        return f"expires={expires}&signature={signature.decode()}"

    def check_signature(self, stream_id: str, expires: str, signature: str) -> None:
        """Raise unless the signature is ours; whether it has expired is not asked."""
        given = signature.encode()
        found = False
        for secret in self._secrets:
            found |= hmac.compare_digest(_sign(secret, stream_id, expires), given)
        if not found or not (expires.isascii() and expires.isdigit()):
            raise SignatureInvalidError("The URL's signature is not good: use it as it was given.")

    def check(self, stream_id: str, expires: str, signature: str) -> int:
        """Raise unless the URL is good now; else until when, in seconds since the epoch."""
        self.check_signature(stream_id, expires, signature)
        until_s = int(expires) if len(expires) <= _DIGITS_MAX else 0
        if self._clock.now_ms() >= until_s * 1000:
            renewable = is_of_session(stream_id)
            raise SignatureExpiredError(
                "Pre-signed URL has expired"
                + (": connect with the Session-Id for another." if renewable else "."),
                renewable=renewable,
                stream_id=stream_id,
            )
        return until_s


def _sign(secret: bytes, stream_id: str, expires: str) -> bytes:
    mac = hmac.new(secret, f"{stream_id}:{expires}".encode(), hashlib.sha256)
    return urlsafe_b64encode(mac.digest()).rstrip(b"=")
