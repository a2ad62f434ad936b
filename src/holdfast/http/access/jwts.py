"""JSON Web Tokens: signatures checked by PyJWT, claims by us.

The algorithm belongs to the key, not to the token: a token that claims HS256 is never checked with
a public key, whose bytes everybody knows. Symmetric keys in a key set are skipped for the same
reason, as is everything else that is not an RSA or Ed25519 key for signatures.

PyJWT would read the machine's clock for `exp` and `nbf`; here they are checked against the server's
clock. A token for another audience (`aud`) is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWTError
from jwt.algorithms import HMACAlgorithm, OKPAlgorithm, RSAAlgorithm

from holdfast.errors import SettingsError, UnauthorizedError
from holdfast.http.access.scopes import Identity, Scope, known_scopes

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.settings import AccessSettings

KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2048
RSA_BITS_MAX: Final = 8192
# Keys tried for a token without a key id; more would make bad tokens expensive.
CANDIDATES_MAX: Final = 8
SUBJECT_CHARS_MAX: Final = 255
# Later than any date, and within what a float represents exactly.
_TIME_S_MAX: Final = 1e12
_ALGORITHMS: Final = ("HS256", "RS256", "EdDSA")
_decode = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key, and the only algorithm it is used with."""

    kid: str | None
    algorithm: Literal["RS256", "EdDSA"]
    public: RSAPublicKey | Ed25519PublicKey


PublicKeys = tuple[PublicKey, ...]


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


def parse_jwks(content: bytes) -> PublicKeys:
    """The usable keys of a JSON Web Key Set; raises ValueError.

    A set may be empty, after its only key was withdrawn. Errors quote nothing of the set, because
    it may contain private keys by mistake.
    """
    try:
        found = msgspec.json.decode(content, type=_KeySet).keys
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ValueError("it is not a JSON Web Key Set") from None
    if len(found) > KEYS_MAX:
        raise ValueError(f"it holds more than {KEYS_MAX} keys")
    keys = tuple(key for key in map(_usable_key, found) if key is not None)
    if found and not keys:
        raise ValueError("it holds no RSA key (2048 bits or more) and no Ed25519 key")
    return keys


def _usable_key(jwk: dict[str, Any]) -> PublicKey | None:
    kid = jwk.get("kid")
    if not isinstance(kid, str | None) or jwk.get("use", "sig") != "sig":
        return None
    operations = jwk.get("key_ops")
    if operations is not None and not (isinstance(operations, list) and "verify" in operations):
        return None
    try:
        match jwk.get("kty"), jwk.get("alg"):
            case "RSA", (None | "RS256"):
                return _rsa_key(kid, jwk)
            case "OKP", (None | "EdDSA" | "Ed25519"):
                return _ed25519_key(kid, jwk)
    except (PyJWTError, ValueError, TypeError, KeyError):
        pass
    return None


def _rsa_key(kid: str | None, jwk: dict[str, Any]) -> PublicKey | None:
    # Only the public members are used, so that a private key is never built.
    public = RSAAlgorithm.from_jwk({"kty": "RSA", "n": jwk["n"], "e": jwk["e"]})
    if isinstance(public, RSAPublicKey) and RSA_BITS_MIN <= public.key_size <= RSA_BITS_MAX:
        return PublicKey(kid, "RS256", public)
    return None


def _ed25519_key(kid: str | None, jwk: dict[str, Any]) -> PublicKey | None:
    public = OKPAlgorithm.from_jwk({"kty": "OKP", "crv": jwk["crv"], "x": jwk["x"]})
    return PublicKey(kid, "EdDSA", public) if isinstance(public, Ed25519PublicKey) else None


class JwtVerifier:
    """Verifies JWTs."""

    def __init__(self, access: AccessSettings, on_unknown_key: Callable[[], None]) -> None:
        self._access = access
        self._on_unknown_key = on_unknown_key
        self._jws = jwt.PyJWS(algorithms=_ALGORITHMS)
        self._secret = access.jwt_secret.encode()
        self.keys: PublicKeys = ()
        if self._secret:
            try:
                HMACAlgorithm(HMACAlgorithm.SHA256).prepare_key(self._secret)
            except jwt.InvalidKeyError:
                raise SettingsError(
                    "access.jwt_secret looks like a public key, which is not a secret."
                ) from None

    def verify(self, token: bytes, now_s: float) -> Identity:
        """The identity of a JWT; raises UnauthorizedError."""
        payload = self._signed_payload(token)
        try:
            claims = _decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise UnauthorizedError("The token's claims are not a JSON object.") from None
        self._check_parties(claims)
        return Identity(_name(claims), _scopes(claims), self._check_times(claims, now_s))

    def _signed_payload(self, token: bytes) -> bytes:
        """The payload, after its signature was verified with one of the candidate keys."""
        try:
            header = self._jws.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError):
            raise UnauthorizedError("The token is malformed.") from None
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in _ALGORITHMS:
            raise UnauthorizedError("The token is signed with none of HS256, RS256 and EdDSA.")
        for key in self._candidates(algorithm, kid):
            try:
                payload = self._jws.decode(token, key, algorithms=[algorithm])
            except (jwt.PyJWTError, ValueError, TypeError):
                continue
            assert isinstance(payload, bytes)
            return payload
        raise UnauthorizedError("The token's signature is not valid.")

    def _candidates(self, algorithm: str, kid: str | None) -> list[Any]:
        """The keys that may have signed the token, by its algorithm and key id."""
        if algorithm == "HS256":
            found: list[Any] = [self._secret] if self._secret else []
        else:
            able = [key for key in self.keys if key.algorithm == algorithm]
            named = able if kid is None else [key for key in able if key.kid == kid]
            if not named:
                self._on_unknown_key()
                # A key without an id may have signed it.
                named = [key for key in able if key.kid is None]
            found = [key.public for key in named]
        if not found:
            raise UnauthorizedError("The token is signed with a key that is not known here.")
        if len(found) > CANDIDATES_MAX:
            raise UnauthorizedError("The token does not say which key it is signed with (kid).")
        return found

    def _check_times(self, claims: dict[str, Any], now_s: float) -> float | None:
        """When the token expires, leeway included; raises unless it is valid now."""
        leeway_s = self._access.leeway_s
        ends_s, begins_s = _time(claims, "exp"), _time(claims, "nbf")
        if begins_s is not None and now_s < begins_s - leeway_s:
            raise UnauthorizedError("The token is not valid yet.")
        if ends_s is None:
            if self._access.exp_required:
                raise UnauthorizedError("The token never expires (no exp), which is not allowed.")
            return None
        if now_s >= ends_s + leeway_s:
            raise UnauthorizedError("The token has expired.")
        return ends_s + leeway_s

    def _check_parties(self, claims: dict[str, Any]) -> None:
        audience = claims.get("aud")
        named = audience if isinstance(audience, list) else [audience]
        if self._access.audience and self._access.audience not in named:
            raise UnauthorizedError("The token is for another audience (aud).")
        if audience is not None and not self._access.audience:
            # RFC 7519, 4.1.3: a recipient that is not named must reject it.
            raise UnauthorizedError("The token is for an audience (aud), and this server is none.")
        if self._access.issuer and claims.get("iss") != self._access.issuer:
            raise UnauthorizedError("The token is from another issuer (iss).")


def _time(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0 <= value <= _TIME_S_MAX:
        raise UnauthorizedError(f"The token's {name} is not a time.")
    return float(value)


def _name(claims: dict[str, Any]) -> str:
    """The token's subject. Names of other tokens contain no colon, so the two never clash."""
    subject = claims.get("sub", "")
    if not isinstance(subject, str) or len(subject) > SUBJECT_CHARS_MAX:
        raise UnauthorizedError("The token's sub is not text, or too long.")
    if not subject.isprintable():
        raise UnauthorizedError("The token's sub contains control characters.")
    return f"jwt:{subject}"


def _scopes(claims: dict[str, Any]) -> tuple[Scope, ...]:
    """The scopes in `scope`, separated by spaces, and in the list `scopes`."""
    text, several = claims.get("scope"), claims.get("scopes")
    words = text.split(" ") if isinstance(text, str) else []
    return known_scopes([*words, *(several if isinstance(several, list) else [])])
