"""Digest authentication (RFC 7616), for servers behind something that asks for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

import httpx

# Where a challenge begins: a scheme, behind a comma unless it is the first, that is no parameter.
_SCHEME: Final = re.compile(r"(?:^|,)\s*([A-Za-z][A-Za-z0-9-]*)(?=\s+[^\s=]|\s*(?:,|$))")
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')


class Digest:
    """The answers to one server's challenges."""

    def __init__(self, username: str, password: str) -> None:
        self._credentials = (username, password)
        self._auth: httpx.DigestAuth | None = None
        # The answer to the last challenge, which the request that met with it is sent with.
        self._first: tuple[str, str, str] | None = None

    def authorization(self, method: str, url: str) -> str | None:
        """The header for a request; None before the first challenge."""
        if self._auth is None:
            return None
        first, self._first = self._first, None
        if first is not None and first[:2] == (method, url):
            return first[2]
        flow = self._auth.auth_flow(httpx.Request(method, url))
        header = next(flow).headers.get("Authorization")
        flow.close()
        return None if header is None else str(header)

    def take_challenge(self, method: str, url: str, headers: Mapping[str, str]) -> str | None:
        """The header that answers the challenge of a 401; None if there is none to be answered."""
        for challenge in _challenges(headers.get("www-authenticate", "")):
            # A new one each time: what cannot be answered must not disturb what could be.
            auth = httpx.DigestAuth(*self._credentials)
            header = _answer(auth, challenge, method, url)
            if header is not None:
                self._auth, self._first = auth, (method, url, header)
                return header
        return None


def _challenges(text: str) -> Iterator[str]:
    """The digest challenges of a header, which may hold others, too."""
    # Commas and words inside quotes mean nothing.
    blank = _QUOTED.sub(lambda quoted: "_" * len(quoted[0]), text)
    starts = [found.start(1) for found in _SCHEME.finditer(blank)]
    for start, end in pairwise([*starts, len(text)]):
        challenge = text[start:end].strip().rstrip(",")
        if challenge[:7].lower() == "digest ":
            yield "Digest " + challenge[7:]


def _answer(auth: httpx.DigestAuth, challenge: str, method: str, url: str) -> str | None:
    flow = auth.auth_flow(httpx.Request(method, url))
    asked = next(flow)
    answer = httpx.Response(401, headers={"www-authenticate": challenge}, request=asked)
    try:
        return str(flow.send(answer).headers["Authorization"])
    except (StopIteration, httpx.ProtocolError, KeyError, ValueError, NotImplementedError):
        # Not well-formed, or an algorithm or protection that is not known here.
        return None
    finally:
        flow.close()
