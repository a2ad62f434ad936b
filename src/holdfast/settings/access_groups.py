"""Settings of access control, rate limits and quotas; see docs/security.md."""

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from msgspec import Meta

from holdfast.settings.declare import CountOrNone, setting

# HMAC with SHA-256 is as strong as its key up to this length (RFC 7518, 3.2).
SECRET_BYTES_MIN = 32
_LOOPBACK_HOSTS = {"127.0.0.1", "::1", "localhost"}


def _clean_secret(text: str) -> str:
    if text and len(text.encode()) < SECRET_BYTES_MIN:
        raise ValueError(f"expected at least {SECRET_BYTES_MIN} bytes; try `openssl rand -hex 32`")
    return text


def _clean_jwks_url(text: str) -> str:
    """Accept `https`, or `http` to this machine: whoever can change the keys can forge tokens."""
    if not text:
        return text
    try:
        url = urlsplit(text)
        host, _ = url.hostname, url.port
    except ValueError:  # a port that is none
        host = None
    if not host or not re.fullmatch(r"https?://[^\s@#]+", text, re.ASCII):
        raise ValueError("expected https://HOST/PATH, without user and fragment")
    if url.scheme != "https" and host not in _LOOPBACK_HOSTS:
        raise ValueError("expected https; http is for 127.0.0.1, [::1] and localhost only")
    return text


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Who may do what. Access control is on as soon as there is a source of tokens or keys.

    The sources are `tokens_file`, `tokens`, `jwt_secret`, `jwks_file` and `jwks_url`; any number of
    them can be used together. [security.md](security.md) says more.
    """

    prefix: ClassVar[str] = "access_"

    tokens_file: str = setting(
        "",
        "TOML file with bearer tokens, as printed by `holdfast token create`. "
        "It is read again when it changes.",
    )
    tokens: tuple[str, ...] = setting(
        (),
        "Bearer tokens without a file: `NAME SHA256 SCOPE …` each. "
        "As a flag or variable, separated by commas.",
        secret=True,
    )
    jwt_secret: str = setting(
        "",
        "Secret of JWTs signed with HS256, at least 32 bytes.",
        clean=_clean_secret,
        secret=True,
    )
    jwks_file: str = setting(
        "",
        "JSON file with the public keys (JWKS) of JWTs signed with RS256 or EdDSA. "
        "It is read again when it changes.",
    )
    jwks_url: str = setting(
        "",
        "URL of such keys, `https`. They are fetched at start and at every `jwks_refresh`.",
        clean=_clean_jwks_url,
    )
    jwks_refresh_s: Annotated[float, Meta(ge=10, le=86_400)] = setting(
        300.0, "Time between two fetches of `jwks_url`."
    )
    audience: str = setting(
        "", "What `aud` of a JWT must contain. Empty: JWTs with an `aud` are refused."
    )
    issuer: str = setting("", "What `iss` of a JWT must be. Empty: anything.")
    leeway_s: Annotated[float, Meta(ge=0, le=600)] = setting(
        30.0, "How far the clocks of issuer and server may differ, for `exp` and `nbf`."
    )
    exp_required: bool = setting(True, "Whether a JWT without `exp` is refused.")

    @property
    def is_on(self) -> bool:
        """Whether requests need a token."""
        return bool(self.tokens_file or self.tokens or self.takes_jwts)

    @property
    def takes_jwts(self) -> bool:
        """Whether there is a source of keys for JWTs."""
        return bool(self.jwt_secret or self.jwks_file or self.jwks_url)

    def check(self) -> None:
        """Refuse claims to check where no JWT is taken: the wish for a check must not be lost."""
        if (self.audience or self.issuer) and not self.takes_jwts:
            raise ValueError(
                "audience and issuer are about JWTs, for which there is no key; "
                "set jwt_secret, jwks_file or jwks_url"
            )


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """How much one client may ask, and one bucket may hold. 0 is no limit.

    A client is a token's name, or without access control an address (of IPv6, the /64 it is in).
    """

    prefix: ClassVar[str] = ""

    client_rate: CountOrNone = setting(
        0, "Requests a second from one client; more are answered with 429."
    )
    client_burst: CountOrNone = setting(
        0, "Requests of one client at once, after a pause. 0: as many as in a second."
    )
    bucket_rate: CountOrNone = setting(
        0, "Requests a second for one bucket; more are answered with 429."
    )
    bucket_burst: CountOrNone = setting(
        0, "Requests for one bucket at once, after a pause. 0: as many as in a second."
    )
    bucket_bytes_max: CountOrNone = setting(
        0, "Bytes in one bucket; appends beyond are answered with 403 `quota_exceeded`."
    )
    bucket_streams_max: CountOrNone = setting(
        0, "Streams in one bucket; more are answered with 403 `quota_exceeded`."
    )
