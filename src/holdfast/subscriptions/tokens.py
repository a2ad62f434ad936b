"""Tokens of wakes: who was given a wake can act on it, and on no other.

A token is `payload.signature`, both base64url: JSON with the subscription's id and incarnation, the
generation and the expiry, and its HMAC-SHA256. Nothing is stored of it. The generation ends it long
before its expiry does, which is there for tokens that are found in old logs.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import WakeTokenExpiredError, WakeTokenInvalidError
from holdfast.subscriptions.keys import from_unpadded, unpadded

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.subscriptions.keys import KeyStore
    from holdfast.subscriptions.model import Subscription

TOKEN_LIFETIME_MS: Final = 7 * 24 * 3600 * 1000


class _Payload(msgspec.Struct):
    sub: str
    inc: int
    gen: int
    exp: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Payload).decode


class Tokens:
    """Makes and checks the tokens of wakes."""

    def __init__(self, keys: KeyStore, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock

    def make(self, state: Subscription) -> str:
        """A token for the present wake."""
        expires_s = (self._clock.now_ms() + TOKEN_LIFETIME_MS) // 1000
        payload = _encode(_Payload(state.id, state.incarnation, state.generation, expires_s))
        return f"{unpadded(payload)}.{unpadded(self._sign(payload))}"

    def generation(self, token: str, state: Subscription) -> int:
        """The generation that a token was made for; raises if it is none of this subscription."""
        payload = self._checked(token)
        if payload.sub != state.id or payload.inc != state.incarnation:
            raise WakeTokenInvalidError("The token was made for another subscription.")
        if payload.exp * 1000 < self._clock.now_ms():
            raise WakeTokenExpiredError("The token has expired.")
        return payload.gen

    def _checked(self, token: str) -> _Payload:
        first, _, second = token.partition(".")
        try:
            payload, signature = from_unpadded(first), from_unpadded(second)
            if hmac.compare_digest(signature, self._sign(payload)):
                return _decode(payload)
        except (ValueError, msgspec.DecodeError):
            pass
        raise WakeTokenInvalidError("The token is none that this server has made.")

    def _sign(self, payload: bytes) -> bytes:
        return hmac.digest(self._keys.keys().token, payload, "sha256")
