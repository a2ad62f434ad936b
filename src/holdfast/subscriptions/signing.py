"""Signatures of webhooks: Ed25519 over `<timestamp>.<body>`, and the public keys to check them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from holdfast.subscriptions.keys import unpadded

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.subscriptions.keys import KeyStore

_encode = msgspec.json.Encoder().encode


class SigningKey:
    """A private key, and the name it is published under."""

    __slots__ = ("_private", "kid", "public")

    def __init__(self, seed: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = unpadded(self._private.public_key().public_bytes_raw())
        self.kid = f"ds_{_thumbprint(self.public)}"

    @property
    def jwk(self) -> dict[str, str]:
        """The public key as a JSON Web Key."""
        return {
            "kty": "OKP",
            "crv": "Ed25519",
            "kid": self.kid,
            "use": "sig",
            "alg": "EdDSA",
            "x": self.public,
        }

    def sign(self, data: bytes) -> bytes:
        """The signature of some bytes."""
        return self._private.sign(data)


class Signer:
    """Signs webhooks with the first key, and publishes all of them."""

    def __init__(self, keys: KeyStore, clock: Clock) -> None:
        self._store = keys
        self._clock = clock
        self._keys: list[SigningKey] = []

    @property
    def kid(self) -> str:
        """The id of the key that signs now."""
        return self._loaded()[0].kid

    def signature(self, body: bytes) -> str:
        """The value of `Webhook-Signature` for a body that is sent now."""
        key = self._loaded()[0]
        timestamp = self._clock.now_ms() // 1000
        signature = key.sign(b"%d.%b" % (timestamp, body))
        return f"t={timestamp},kid={key.kid},ed25519={unpadded(signature)}"

    def jwks(self) -> bytes:
        """The public keys as a JSON Web Key Set."""
        return _encode({"keys": [key.jwk for key in self._loaded()]})

    def _loaded(self) -> list[SigningKey]:
        if not self._keys:
            self._keys = [SigningKey(seed) for seed in self._store.keys().signing]
        return self._keys


def _thumbprint(public: str) -> str:
    """RFC 7638: the hash of the required members, in the order of their names."""
    members = f'{{"crv":"Ed25519","kty":"OKP","x":"{public}"}}'
    return unpadded(hashlib.sha256(members.encode()).digest())
