"""Bearer tokens: how they are made, stored and recognised.

Only a token's SHA-256 is stored. A slow hash, as for passwords, would add nothing: a token is 256
random bits, which nobody finds by trying. Tokens are looked up by their digest, so the time a
comparison takes says nothing about a token.

A recognised token is remembered by the bytes of its header, so that a steady client costs one
look-up. This cache is emptied whenever tokens or keys change, and never holds refusals: guesses
would push good tokens out. Its look-up compares bytes only if their hashes agree, and these are
keyed by a secret of the process.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from base64 import urlsafe_b64encode
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from holdfast.errors import UnauthorizedError
from holdfast.http.access.scopes import Identity, parse_scopes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.clock import Clock
    from holdfast.http.access.jwts import JwtVerifier, PublicKeys

# Digest of a token → its holder.
Tokens = dict[bytes, Identity]

# Makes tokens that leaked into a repository or a log easy to find.
TOKEN_PREFIX: Final = "holdfast_"  # noqa: S105 (not a secret)
TOKEN_RANDOM_BYTES: Final = 32
TOKENS_MAX: Final = 100_000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
AUTHORIZATION_BYTES_MAX: Final = 8192
KNOWN_MAX: Final = 4096
_SCHEME: Final = b"bearer "


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    sha256: str
    scopes: list[str]
    # A time without a zone would mean another moment on another machine.
    expires_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    token: list[_Entry] = []


def new_token(clock: Clock) -> str:
    text = urlsafe_b64encode(clock.random_bytes(TOKEN_RANDOM_BYTES)).decode().rstrip("=")
    return TOKEN_PREFIX + text


def digest_of(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def parse_tokens_file(content: bytes) -> Tokens:
    """Parse a tokens file; raises ValueError that names the entry and what is wrong with it."""
    try:
        document = tomllib.loads(content.decode())
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise ValueError(f"it is not valid TOML: {error}") from None
    # msgspec's errors name keys and types, never values.
    entries = msgspec.convert(document, _File).token
    return _collect(_from_entry(at, entry) for at, entry in enumerate(entries, 1))


def parse_token_settings(texts: Iterable[str]) -> Tokens:
    """Parse tokens from the settings, `NAME SHA256 SCOPE …` each; raises ValueError."""
    return _collect(_from_setting(at, text) for at, text in enumerate(texts, 1))


def token_entry(name: str, token: str, scopes: Iterable[str], expires_at: datetime | None) -> str:
    """The entry of a token in a tokens file."""
    digest = digest_of(token.encode()).hex()
    lines = ["[[token]]", f'name = "{name}"', f'sha256 = "{digest}"']
    lines.append(f"scopes = [{', '.join(_quoted(scope) for scope in scopes)}]")
    if expires_at is not None:
        lines.append(f"expires_at = {expires_at.isoformat()}")
    return "\n".join(lines) + "\n"


def check_name(name: str) -> str:
    """Raise ValueError unless this is a valid name; the error omits it, as it may be a token."""
    if not _NAME.fullmatch(name) or name.startswith(TOKEN_PREFIX):
        raise ValueError(
            "a token's name is up to 64 letters, digits, _ . @ or -, "
            f"and does not start with {TOKEN_PREFIX}"
        )
    return name


def _from_entry(at: int, entry: _Entry) -> tuple[bytes, Identity]:
    expires_at_s = None if entry.expires_at is None else entry.expires_at.timestamp()
    return _checked(at, entry.sha256, entry.name, entry.scopes, expires_at_s)


def _from_setting(at: int, text: str) -> tuple[bytes, Identity]:
    parts = text.split()
    if len(parts) < 3:
        raise ValueError(f"token {at}: expected NAME SHA256 SCOPE …")
    name, digest, *scopes = parts
    return _checked(at, digest, name, scopes, None)


def _checked(
    at: int, digest: str, name: str, scopes: list[str], expires_at_s: float | None
) -> tuple[bytes, Identity]:
    """Errors give the number of the entry, not its digest or name, as these may be a token."""
    if not _DIGEST.fullmatch(digest):
        raise ValueError(
            f"token {at}: sha256 must be 64 hexadecimal digits; see `holdfast token create`"
        )
    try:
        identity = Identity(check_name(name), parse_scopes(scopes), expires_at_s)
    except ValueError as error:
        raise ValueError(f"token {at}: {error}") from None
    return bytes.fromhex(digest), identity


def _collect(entries: Iterable[tuple[bytes, Identity]]) -> Tokens:
    tokens: Tokens = {}
    names: set[str] = set()
    for digest, identity in entries:
        if digest in tokens or identity.name in names:
            raise ValueError(f"the token {identity.name!r} is listed twice")
        tokens[digest] = identity
        names.add(identity.name)
        if len(tokens) > TOKENS_MAX:
            raise ValueError(f"there are more than {TOKENS_MAX} tokens")
    return tokens


def _quoted(text: str) -> str:
    """A TOML string; scopes contain no control characters."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class Authenticator:
    """Identifies requests by the current tokens and keys."""

    def __init__(self, jwts: JwtVerifier | None = None) -> None:
        # Called when tokens or keys have changed.
        self.on_change: Callable[[], None] | None = None
        self._tokens: Tokens = {}
        self._jwts = jwts
        # Value of Authorization → identity.
        self.known: dict[bytes | None, Identity] = {}

    def use_tokens(self, tokens: Tokens) -> None:
        """Replace all tokens."""
        self._tokens = tokens
        self._changed()

    def use_keys(self, keys: PublicKeys) -> None:
        """Replace the keys of JWTs."""
        assert self._jwts is not None, "keys are for JWTs"
        self._jwts.keys = keys
        self._changed()

    def _changed(self) -> None:
        self.known.clear()
        if self.on_change is not None:
            self.on_change()

    def identify(self, authorization: bytes | None, now_s: float) -> Identity:
        """The holder of the token in an `Authorization` header; raises UnauthorizedError."""
        if authorization is None:
            raise UnauthorizedError("A token is needed: send Authorization: Bearer TOKEN.")
        if len(authorization) > AUTHORIZATION_BYTES_MAX:
            raise UnauthorizedError(f"The token is longer than {AUTHORIZATION_BYTES_MAX} bytes.")
        scheme, token = authorization[: len(_SCHEME)], authorization[len(_SCHEME) :].strip(b" ")
        if scheme.lower() != _SCHEME or not token:
            raise UnauthorizedError("Authorization is not of the form: Bearer TOKEN.")
        identity = self._find(token, now_s)
        if len(self.known) >= KNOWN_MAX:
            self.known.clear()
        self.known[authorization] = identity
        return identity

    def _find(self, token: bytes, now_s: float) -> Identity:
        identity = self._tokens.get(digest_of(token))
        if identity is not None:
            check_expiry(identity, now_s)
            return identity
        if self._jwts is not None and token.count(b".") == 2:
            return self._jwts.verify(token, now_s)
        raise UnauthorizedError("The token is not known here.")


def check_expiry(identity: Identity, now_s: float) -> None:
    """Raise UnauthorizedError if the identity has expired."""
    if identity.expires_at_s is not None and now_s >= identity.expires_at_s:
        raise UnauthorizedError("The token has expired.")
