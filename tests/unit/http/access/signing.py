"""Keys and JWTs for tests: good ones, and parts to forge bad ones from."""

import base64
import json
from functools import cache

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

SECRET = "correct horse battery staple, twice over"
NOW_S = 1_800_000_000


@cache
def rsa_key(number=0, bits=2048):
    return generate_private_key(65_537, bits)


@cache
def ed25519_key(number=0):
    return Ed25519PrivateKey.generate()


def jwk(key, **members):
    kind = OKPAlgorithm if isinstance(key, Ed25519PrivateKey) else RSAAlgorithm
    return kind.to_jwk(key.public_key(), as_dict=True) | members


def jwks(*keys):
    return json.dumps({"keys": list(keys)}).encode()


def public_pem(key):
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def claims(**changes):
    """The claims of a good token; None leaves one out."""
    all_of_them = {"sub": "app", "exp": NOW_S + 600, "scope": "read:demo"} | changes
    return {name: value for name, value in all_of_them.items() if value is not None}


def signed(key=SECRET, algorithm="HS256", headers=None, **changes):
    return jwt.encode(claims(**changes), key, algorithm, headers=headers).encode()


def segment(value):
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=")


def assembled(header, payload, signature=b""):
    return b".".join([segment(header), segment(payload), segment(signature)])
