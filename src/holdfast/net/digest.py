"""Digest authentication (RFC 7616), for servers behind something that asks for it."""

from __future__ import annotations

from collections.abc import Mapping

import httpx


class Digest:
    """The answers to one server's challenges."""

    def __init__(self, username: str, password: str) -> None:
        self._auth = httpx.DigestAuth(username, password)

    def authorization(self, method: str, url: str) -> str | None:
        """The header for a request; None before the first challenge."""
        flow = self._auth.auth_flow(httpx.Request(method, url))
        header = next(flow).headers.get("Authorization")
        flow.close()
        return None if header is None else str(header)

    def take_challenge(self, method: str, url: str, headers: Mapping[str, str]) -> str | None:
        """The header that answers the challenge of a 401; None if it holds no digest challenge."""
        flow = self._auth.auth_flow(httpx.Request(method, url))
        asked = next(flow)
        try:
            again = flow.send(httpx.Response(401, headers=dict(headers), request=asked))
            return str(again.headers["Authorization"])
        except (StopIteration, httpx.ProtocolError):
            return None
        finally:
            flow.close()
