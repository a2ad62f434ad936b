"""Whose token a request carries.

A token that was recognised is remembered by the bytes of its header, so that a steady client costs
one look-up. What is remembered is forgotten whenever tokens or keys change, and is never a refusal:
guesses would push good tokens out. The look-up compares bytes only once their hashes agree, and
those are keyed by a secret of the process, so its time gives nothing away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors import UnauthorizedError
from holdfast.http.access.scopes import Identity
from holdfast.http.access.tokens import Tokens, digest_of

if TYPE_CHECKING:
    from holdfast.http.access.jwks import Keys
    from holdfast.http.access.jwts import JwtVerifier

AUTHORIZATION_BYTES_MAX: Final = 8192
KNOWN_MAX: Final = 4096
_SCHEME: Final = b"bearer "


class Authentication:
    """The tokens and keys in force."""

    def __init__(self, jwts: JwtVerifier | None = None) -> None:
        self._tokens: Tokens = {}
        self._jwts = jwts
        # Value of Authorization → identity.
        self.known: dict[bytes | None, Identity] = {}

    def use_tokens(self, tokens: Tokens) -> None:
        """From now on these tokens hold, and no others."""
        self._tokens = tokens
        self.known.clear()

    def use_keys(self, keys: Keys) -> None:
        """From now on JWTs are checked with these keys, and no others."""
        assert self._jwts is not None, "there are keys, so there is who uses them"
        self._jwts.keys = keys
        self.known.clear()

    def identify(self, authorization: bytes | None, now_s: float) -> Identity:
        """Whoever the header's token belongs to, or UnauthorizedError."""
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
    """Raise UnauthorizedError if the identity's time is over."""
    if identity.expires_at_s is not None and now_s >= identity.expires_at_s:
        raise UnauthorizedError("The token has expired.")
