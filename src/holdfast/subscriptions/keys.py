"""Secret keys of subscriptions, and what is signed with them: webhooks and the tokens of wakes.

The keys are kept in `subscription-keys.json` in the data directory, readable by the server's user
alone, and are made when they are first needed. Without a data directory they last as long as the
process. To change the signing key put a new one in front and restart: the first one signs, all are
published, and an old one can go once nothing signed with it is in use.

A webhook is signed with Ed25519 over `<timestamp>.<body>`.

A token is `payload.signature`, both base64url: JSON with the subscription's id and incarnation, the
generation and the expiry, and its HMAC-SHA256. Tokens are not stored. A token is valid for one
generation; the much later expiry is for tokens that turn up in old logs.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from holdfast.errors import (
    HoldfastError,
    UnavailableError,
    WakeTokenExpiredError,
    WakeTokenInvalidError,
)
from holdfast.log.directory import write_file

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.clock import Clock
    from holdfast.subscriptions.machine import Subscription

KEYS_FILE: Final = "subscription-keys.json"
KEY_BYTES: Final = 32
_VERSION: Final = 1
_Key = Annotated[str, msgspec.Meta(min_length=43, max_length=44)]


class SubscriptionKeys(msgspec.Struct, frozen=True):
    token: bytes
    signing: tuple[bytes, ...]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    token_key: _Key
    # Ed25519 private keys (the seed), as in the `d` of a JWK.
    signing_keys: Annotated[list[_Key], msgspec.Meta(min_length=1, max_length=100)]


class KeyStore:
    """Reads the keys, or makes them the first time."""

    def __init__(self, path: Path | None, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._keys: SubscriptionKeys | None = None

    def keys(self) -> SubscriptionKeys:
        """The keys; the first call may read or write the file."""
        if self._keys is None:
            self._keys = self._load()
        return self._keys

    def _load(self) -> SubscriptionKeys:
        path = self._path
        if path is None:
            return self._make()
        try:
            return _read(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise UnavailableError(f"{path} cannot be read: {error.strerror}.") from error
        keys = self._make()
        try:
            _write(path, keys)
        except OSError as error:
            raise UnavailableError(f"{path} cannot be written: {error.strerror}.") from error
        return keys

    def _make(self) -> SubscriptionKeys:
        return SubscriptionKeys(
            self._clock.random_bytes(KEY_BYTES), (self._clock.random_bytes(KEY_BYTES),)
        )


def unpadded(data: bytes) -> str:
    """Base64url without padding, as in JSON Web Keys."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def from_unpadded(text: str) -> bytes:
    """Decode base64url without padding; raises ValueError."""
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _read(path: Path) -> SubscriptionKeys:
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
        keys = SubscriptionKeys(
            from_unpadded(file.token_key), tuple(from_unpadded(key) for key in file.signing_keys)
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise HoldfastError(
            f"{path} is damaged: {error}. Repair it, or move it away to have new keys made: "
            "tokens that workers hold, and webhooks under way, are then refused."
        ) from None
    if file.version != _VERSION or any(
        len(key) != KEY_BYTES for key in (keys.token, *keys.signing)
    ):
        raise HoldfastError(f"{path} has another version, or keys that are not {KEY_BYTES} bytes.")
    return keys


def _write(path: Path, keys: SubscriptionKeys) -> None:
    """Write the file atomically; it is never readable by others."""
    file = _File(_VERSION, unpadded(keys.token), [unpadded(key) for key in keys.signing])
    write_file(path, msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n")


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
        return {
            "kty": "OKP",
            "crv": "Ed25519",
            "kid": self.kid,
            "use": "sig",
            "alg": "EdDSA",
            "x": self.public,
        }

    def sign(self, data: bytes) -> bytes:
        return self._private.sign(data)


class WebhookSigner:
    """Signs webhooks with the first key, and publishes all of them."""

    def __init__(self, keys: KeyStore, clock: Clock) -> None:
        self._store = keys
        self._clock = clock
        self._keys: list[SigningKey] = []

    @property
    def kid(self) -> str:
        return self._loaded()[0].kid

    def signature(self, body: bytes) -> str:
        """The `Webhook-Signature` of a body that is sent now."""
        key = self._loaded()[0]
        timestamp = self._clock.now_ms() // 1000
        signature = key.sign(b"%d.%b" % (timestamp, body))
        return f"t={timestamp},kid={key.kid},ed25519={unpadded(signature)}"

    def jwks(self) -> bytes:
        return _encode({"keys": [key.jwk for key in self._loaded()]})

    def _loaded(self) -> list[SigningKey]:
        if not self._keys:
            self._keys = [SigningKey(seed) for seed in self._store.keys().signing]
        return self._keys


def _thumbprint(public: str) -> str:
    """RFC 7638: the hash of the required members, sorted by name."""
    members = f'{{"crv":"Ed25519","kty":"OKP","x":"{public}"}}'
    return unpadded(hashlib.sha256(members.encode()).digest())


TOKEN_LIFETIME_MS: Final = 7 * 24 * 3600 * 1000


class _Payload(msgspec.Struct):
    sub: str
    inc: int
    gen: int
    exp: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Payload).decode


class WakeTokens:
    """A token lets its holder act on one wake, and on no other."""

    def __init__(self, keys: KeyStore, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock

    def make(self, state: Subscription) -> str:
        expires_s = (self._clock.now_ms() + TOKEN_LIFETIME_MS) // 1000
        payload = _encode(_Payload(state.id, state.incarnation, state.generation, expires_s))
        return f"{unpadded(payload)}.{unpadded(self._sign(payload))}"

    def generation(self, token: str, state: Subscription) -> int:
        """The generation that a token is valid for; raises if it is for another subscription."""
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
        raise WakeTokenInvalidError("The token was not made by this server.")

    def _sign(self, payload: bytes) -> bytes:
        return hmac.digest(self._keys.keys().token, payload, "sha256")
