"""The secret keys of subscriptions: one for the tokens of wakes, and those that sign webhooks.

They are kept in `subscription-keys.json` in the data directory, readable by the server's user
alone, and made when they are first needed. Without a data directory they last as long as the
process does. To change the signing key put another one in front and restart: the first signs, all
are published, and an old one goes when nobody can hold anything signed with it any more.
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from holdfast.errors import HoldfastError, UnavailableError

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.clock import Clock

KEYS_FILE: Final = "subscription-keys.json"
KEY_BYTES: Final = 32
_VERSION: Final = 1
_MODE: Final = 0o600
_Key = Annotated[str, msgspec.Meta(min_length=43, max_length=44)]


class Keys(msgspec.Struct, frozen=True):
    """Secret keys, as bytes."""

    token: bytes
    signing: tuple[bytes, ...]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    token_key: _Key
    # Ed25519 private keys (the seed), as in the `d` of a JWK.
    signing_keys: Annotated[list[_Key], msgspec.Meta(min_length=1, max_length=100)]


class KeyStore:
    """Gives out the keys, and makes them the first time."""

    def __init__(self, path: Path | None, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._keys: Keys | None = None

    def keys(self) -> Keys:
        """The keys; the first call may read or write the file."""
        if self._keys is None:
            self._keys = self._load()
        return self._keys

    def _load(self) -> Keys:
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

    def _make(self) -> Keys:
        return Keys(self._clock.random_bytes(KEY_BYTES), (self._clock.random_bytes(KEY_BYTES),))


def unpadded(data: bytes) -> str:
    """Base64url as JSON Web Keys and tokens spell it."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def from_unpadded(text: str) -> bytes:
    """The bytes behind base64url; raises ValueError."""
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _read(path: Path) -> Keys:
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
        keys = Keys(
            from_unpadded(file.token_key), tuple(from_unpadded(key) for key in file.signing_keys)
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise HoldfastError(
            f"{path} is damaged: {error}. Mend it, or move it away to have new keys made: tokens "
            "that workers hold, and webhooks that are on their way, are refused then."
        ) from None
    if file.version != _VERSION or any(
        len(key) != KEY_BYTES for key in (keys.token, *keys.signing)
    ):
        raise HoldfastError(f"{path} has another version, or keys that are not {KEY_BYTES} bytes.")
    return keys


def _write(path: Path, keys: Keys) -> None:
    """Write the file whole or not at all; its mode is right before there is anything in it."""
    file = _File(_VERSION, unpadded(keys.token), [unpadded(key) for key in keys.signing])
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n")
        stream.flush()
        os.fsync(descriptor)
    temporary.rename(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
