"""Who may use the proxy and its streams: stream ids, signed URLs, and service authentication.

The id of a stream is random, or follows from a session's id; the UUID's version says which, so that
nothing has to be stored to know it.

The holder of a signed URL may read and abort its stream until the URL expires. Together with
service authentication it is good for appending to the stream, expired or not. The signature is
HMAC-SHA256 of `{stream-id}:{expires}` under the secret, in base64url without padding. There may be
several secrets, so that they can be replaced: all of them verify, the first one signs.

Service authentication is the proxy's secret, as `?secret=` or as a bearer token. Where the server
has access control, a token that may write to the bucket `_proxy` counts as well.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid5

from holdfast.errors import (
    ForbiddenError,
    InvalidSecretError,
    MissingSecretError,
    MissingSignatureError,
    SignatureExpiredError,
    SignatureInvalidError,
    UnauthorizedError,
)
from holdfast.http.access.gate import check_scope, client_of
from holdfast.http.access.scopes import Identity, Need
from holdfast.protocol.names import PROXY_BUCKET

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.clock import Clock
    from holdfast.http.app import App
    from holdfast.http.exchange import Request

# Fixed for all time: another one would lead sessions to other streams.
SESSIONS: Final = UUID("6c1d2f0a-7f4e-5b1c-9a53-0d6e8b7f2a41")
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-([0-9a-f])[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_EXPIRES_DIGITS_MAX: Final = 15
_BEARER: Final = b"bearer "


def new_stream_id(clock: Clock) -> str:
    """An id for a stream that belongs to no session."""
    return str(UUID(bytes=clock.random_bytes(16), version=4))


def session_stream_id(session_id: str) -> str:
    """The id of a session's stream; it does not reveal the session's id."""
    return str(uuid5(SESSIONS, session_id))


def is_of_session(stream_id: str) -> bool:
    """Whether connecting with a session's id leads to the stream."""
    match = _UUID.fullmatch(stream_id)
    return match is not None and match[1] == "5"


def name_of(stream_id: str) -> str:
    """The full name of a stream, with its bucket."""
    return f"{PROXY_BUCKET}/{stream_id}"


class UrlSigner:
    def __init__(self, secrets: Sequence[str], clock: Clock) -> None:
        self._secrets = [secret.encode() for secret in secrets]
        self._clock = clock

    def knows(self, secret: bytes) -> bool:
        """Whether this is one of the secrets, in time that says nothing about them."""
        known = False
        for each in self._secrets:
            known |= hmac.compare_digest(each, secret)
        return known

    def query(self, stream_id: str, ttl_s: float) -> str:
        """The query of a URL that is valid for this long from now."""
        expires = self._clock.now_ms() // 1000 + int(ttl_s)
        signature = _sign(self._secrets[0], stream_id, str(expires))
        return f"expires={expires}&signature={signature.decode()}"

    def check_signature(self, stream_id: str, expires: str, signature: str) -> None:
        """Raise unless the signature is ours, expired or not."""
        given = signature.encode()
        valid = False
        for secret in self._secrets:
            valid |= hmac.compare_digest(_sign(secret, stream_id, expires), given)
        if not valid or not (expires.isascii() and expires.isdigit()):
            raise SignatureInvalidError(
                "The URL's signature is not valid: use the URL exactly as it was given."
            )

    def check(self, stream_id: str, expires: str, signature: str) -> int:
        """Raise unless the URL is valid now; returns when it expires, in seconds since 1970."""
        self.check_signature(stream_id, expires, signature)
        until_s = int(expires) if len(expires) <= _EXPIRES_DIGITS_MAX else 0
        if self._clock.now_ms() >= until_s * 1000:
            raise SignatureExpiredError(
                "Pre-signed URL has expired",
                renewable=is_of_session(stream_id),
                stream_id=stream_id,
            )
        return until_s


def _sign(secret: bytes, stream_id: str, expires: str) -> bytes:
    mac = hmac.new(secret, f"{stream_id}:{expires}".encode(), hashlib.sha256)
    return urlsafe_b64encode(mac.digest()).rstrip(b"=")


class Authentication:
    """Checks the credentials of requests to the proxy, and says whose they are."""

    def __init__(self, signer: UrlSigner) -> None:
        self._signer = signer

    def service(self, app: App, request: Request, query: Mapping[str, str]) -> Identity:
        """Require service authentication; limits count against the identity's name."""
        secret, authorization = query.get("secret"), request.headers.get(b"authorization")
        if secret is None and authorization is None:
            raise MissingSecretError(
                "Service authentication is needed: the proxy's secret as Authorization: Bearer, "
                "or as ?secret=."
            )
        if secret is not None and self._signer.knows(secret.encode()):
            return Identity(client_of(request.peer), ())
        if authorization is not None:
            if authorization[: len(_BEARER)].lower() == _BEARER and self._signer.knows(
                authorization[len(_BEARER) :].strip(b" ")
            ):
                return Identity(client_of(request.peer), ())
            identity = self._token_identity(app, request)
            if identity is not None:
                return identity
        raise InvalidSecretError("The secret or token is not valid for this proxy.")

    def _token_identity(self, app: App, request: Request) -> Identity | None:
        """The holder of an access token that may use the proxy; None without a known token."""
        gate = app.gate
        if gate is None or not gate.knows_tokens:
            return None
        try:
            identity = gate.identify(request)
        except UnauthorizedError:
            return None
        check_scope(identity, Need.WRITE, PROXY_BUCKET, "")
        return identity

    def reader(
        self, app: App, request: Request, query: Mapping[str, str], stream_id: str
    ) -> Identity:
        """Require a signed URL of the stream, or service authentication."""
        if "expires" in query and "signature" in query:
            try:
                return self.signed(query, stream_id)
            except UnauthorizedError:
                with suppress(UnauthorizedError, ForbiddenError):
                    return self.service(app, request, query)
                raise
        if "secret" not in query and b"authorization" not in request.headers:
            raise MissingSignatureError(
                "A signed URL is needed, with expires and signature, or service authentication."
            )
        return self.service(app, request, query)

    def signed(self, query: Mapping[str, str], stream_id: str) -> Identity:
        """Require a signed URL of the stream; the identity is named after the stream."""
        expires, signature = query.get("expires"), query.get("signature")
        if expires is None or signature is None:
            raise MissingSignatureError(
                "A signed URL is needed, with expires and signature as they were given."
            )
        until_s = self._signer.check(stream_id, expires, signature)
        return Identity(f"signed URL of {stream_id}", (), expires_at_s=float(until_s))
