"""Who may do what at the proxy: service authentication, and signed URLs.

Service authentication is the proxy's secret, as `?secret=` or as a bearer token. Where the server
has access control, a token that may write to the bucket `_proxy` counts as well.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from holdfast.errors import (
    ForbiddenError,
    InvalidSecretError,
    MissingSecretError,
    MissingSignatureError,
    UnauthorizedError,
)
from holdfast.http.access.gate import check_scope, client_of
from holdfast.http.access.scopes import Identity, Need
from holdfast.protocol.names import PROXY_BUCKET

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.http.app import App
    from holdfast.http.exchange import Request
    from holdfast.proxy.signing import Signer

_SCHEME: Final = b"bearer "


class Authentication:
    """Checks credentials of requests to the proxy."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def service(self, app: App, request: Request, query: Mapping[str, str]) -> Identity:
        """Raise unless a service asks; its name is what counts against limits."""
        secret, authorization = query.get("secret"), request.headers.get(b"authorization")
        if secret is None and authorization is None:
            raise MissingSecretError(
                "Service authentication is needed: the proxy's secret as Authorization: Bearer, "
                "or as ?secret=."
            )
        if secret is not None and self._signer.knows(secret.encode()):
            return Identity(client_of(request.peer), ())
        if authorization is not None:
            if authorization[: len(_SCHEME)].lower() == _SCHEME and self._signer.knows(
                authorization[len(_SCHEME) :].strip(b" ")
            ):
                return Identity(client_of(request.peer), ())
            identity = self._identity(app, request)
            if identity is not None:
                return identity
        raise InvalidSecretError("The secret or token is not good for this proxy.")

    def _identity(self, app: App, request: Request) -> Identity | None:
        """The holder of a token that allows to use the proxy."""
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
        """Raise unless the request may read the stream; who has a signed URL is named after it."""
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
        """Whoever has the stream's signed URL, until that expires; raises if this is none."""
        expires, signature = query.get("expires"), query.get("signature")
        if expires is None or signature is None:
            raise MissingSignatureError(
                "A signed URL is needed, with expires and signature as they were given."
            )
        until_s = self._signer.check(stream_id, expires, signature)
        return Identity(f"signed URL of {stream_id}", (), expires_at_s=float(until_s))
