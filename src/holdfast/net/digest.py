"""Digest authentication (RFC 7616), for servers behind something that asks for it.

Supports MD5, SHA-256 and their `-sess` variants, SHA and SHA-512 for servers that are not so
strict, and `qop=auth` or none at all.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple
from urllib.request import parse_http_list, parse_keqv_list

from holdfast.clock import Clock, SystemClock
from holdfast.net.targets import sent_path

# Where a challenge begins: a scheme, behind a comma unless it is the first, that is no parameter.
_SCHEME: Final = re.compile(r"(?:^|,)\s*([A-Za-z][A-Za-z0-9-]*)(?=\s+[^\s=]|\s*(?:,|$))")
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_HASHES: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "MD5": hashlib.md5,
    "SHA": hashlib.sha1,
    "SHA-256": hashlib.sha256,
    "SHA-512": hashlib.sha512,
}
_UNQUOTED: Final = frozenset({"algorithm", "qop", "nc"})


class _Challenge(NamedTuple):
    realm: str
    nonce: str
    algorithm: str
    opaque: str
    has_qop: bool


class DigestCredentials:
    """A user and a password, and the last challenge of the server they are for."""

    def __init__(self, username: str, password: str, clock: Clock | None = None) -> None:
        self._username = username
        self._password = password
        self._clock = clock or SystemClock()
        self._challenge: _Challenge | None = None
        # How many headers were made for the challenge's nonce.
        self._nonce_count = 0
        # The client nonce of the first of them: with `-sess` it is part of the session's key.
        self._session_nonce = ""
        # The header for the request that was challenged: it is sent once more, with this.
        self._first: tuple[str, str, str] | None = None

    def authorization(self, method: str, url: str) -> str | None:
        """The `Authorization` header of a request; None before the first challenge."""
        if self._challenge is None:
            return None
        first, self._first = self._first, None
        if first is not None and first[:2] == (method, url):
            return first[2]
        return self._header(self._challenge, method, url)

    def take_challenge(self, method: str, url: str, headers: Mapping[str, str]) -> str | None:
        """The header that meets the challenge of a 401; None if no challenge there can be met."""
        for challenge in _challenges(headers.get("www-authenticate", "")):
            self._challenge, self._nonce_count, self._session_nonce = challenge, 0, ""
            header = self._header(challenge, method, url)
            self._first = (method, url, header)
            return header
        return None

    def _header(self, challenge: _Challenge, method: str, url: str) -> str:
        algorithm = challenge.algorithm.upper()
        hash_function = _HASHES[algorithm.removesuffix("-SESS")]

        def hashed(*parts: str) -> str:
            return str(hash_function(":".join(parts).encode()).hexdigest())

        self._nonce_count += 1
        nonce, count = challenge.nonce, f"{self._nonce_count:08x}"
        client_nonce = b64encode(self._clock.random_bytes(18)).decode()
        uri = sent_path(url).decode()
        secret = hashed(self._username, challenge.realm, self._password)
        if algorithm.endswith("-SESS"):
            client_nonce = self._session_nonce = self._session_nonce or client_nonce
            secret = hashed(secret, nonce, client_nonce)
        counted = (count, client_nonce, "auth") if challenge.has_qop else ()
        fields = {
            "username": self._username,
            "realm": challenge.realm,
            "nonce": nonce,
            "uri": uri,
            "response": hashed(secret, nonce, *counted, hashed(method, uri)),
            "algorithm": challenge.algorithm,
        }
        if challenge.opaque:
            fields["opaque"] = challenge.opaque
        if challenge.has_qop:
            fields |= {"qop": "auth", "nc": count, "cnonce": client_nonce}
        return "Digest " + ", ".join(
            f"{name}={value if name in _UNQUOTED else _quoted(value)}"
            for name, value in fields.items()
        )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _challenges(text: str) -> Iterator[_Challenge]:
    """The digest challenges of a header that can be met; it may hold others as well."""
    # Commas and words inside quotes mean nothing.
    blank = _QUOTED.sub(lambda quoted: "_" * len(quoted[0]), text)
    starts = [found.start(1) for found in _SCHEME.finditer(blank)]
    for start, end in pairwise([*starts, len(text)]):
        scheme, _, parameters = text[start:end].strip().rstrip(",").partition(" ")
        if scheme.lower() == "digest" and (challenge := _parse(parameters)) is not None:
            yield challenge


def _parse(parameters: str) -> _Challenge | None:
    """A challenge; None if it is malformed, or asks for something unknown."""
    try:
        pairs = parse_keqv_list(parse_http_list(parameters))
    except (ValueError, IndexError):
        return None
    fields = {name.lower(): value for name, value in pairs.items()}
    qop, algorithm = fields.get("qop"), fields.get("algorithm", "MD5")
    if (
        "realm" not in fields
        or "nonce" not in fields
        or algorithm.upper().removesuffix("-SESS") not in _HASHES
        or (qop is not None and "auth" not in re.split(r",\s*", qop))
    ):
        return None
    opaque = fields.get("opaque", "")
    return _Challenge(fields["realm"], fields["nonce"], algorithm, opaque, qop is not None)
