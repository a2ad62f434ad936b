"""Public keys of JWTs: a JSON Web Key Set becomes keys, each bound to its algorithm.

The algorithm belongs to the key, not to the token that claims it: a token that says HS256 never
meets a public key, whose bytes everybody knows. Symmetric keys in a set are left out for the same
reason, and so is whatever else is not an RSA or Ed25519 key for signatures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWTError
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2048
RSA_BITS_MAX: Final = 8192


@dataclass(frozen=True, slots=True)
class Key:
    """A public key, and the one algorithm it is for."""

    kid: str | None
    algorithm: Literal["RS256", "EdDSA"]
    public: RSAPublicKey | Ed25519PublicKey


Keys = tuple[Key, ...]


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


def parse_jwks(content: bytes) -> Keys:
    """The keys of a set that can be used here, or ValueError if it is none.

    A set may be empty: whoever withdraws a key may have no other. Errors repeat nothing of the set:
    somebody may have put private keys into it.
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


def _usable_key(jwk: dict[str, Any]) -> Key | None:
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


def _rsa_key(kid: str | None, jwk: dict[str, Any]) -> Key | None:
    # Only the public members are looked at, so that a private key is not even built.
    public = RSAAlgorithm.from_jwk({"kty": "RSA", "n": jwk["n"], "e": jwk["e"]})
    if isinstance(public, RSAPublicKey) and RSA_BITS_MIN <= public.key_size <= RSA_BITS_MAX:
        return Key(kid, "RS256", public)
    return None


def _ed25519_key(kid: str | None, jwk: dict[str, Any]) -> Key | None:
    public = OKPAlgorithm.from_jwk({"kty": "OKP", "crv": jwk["crv"], "x": jwk["x"]})
    return Key(kid, "EdDSA", public) if isinstance(public, Ed25519PublicKey) else None
