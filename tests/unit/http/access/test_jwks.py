"""Key sets: which keys are used, and what is passed over."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import HMACAlgorithm, RSAAlgorithm

from holdfast.http.access.jwts import KEYS_MAX, parse_jwks
from tests.unit.http.access.signing import ed25519_key, jwk, jwks, rsa_key

SYMMETRIC = HMACAlgorithm.to_jwk(b"x" * 40, as_dict=True)
PRIVATE = RSAAlgorithm.to_jwk(rsa_key(), as_dict=True)


def test_keys_are_bound_to_their_algorithm():
    keys = parse_jwks(jwks(jwk(rsa_key(), kid="a"), jwk(ed25519_key(), kid="b")))
    assert [(key.kid, key.algorithm) for key in keys] == [("a", "RS256"), ("b", "EdDSA")]


@pytest.mark.parametrize(
    "member",
    [
        jwk(rsa_key(), alg="RS256", use="sig", key_ops=["verify"]),
        jwk(ed25519_key(), alg="EdDSA"),
        jwk(ed25519_key(), alg="Ed25519", use="sig"),
        {name: value for name, value in PRIVATE.items() if name != "key_ops"},
    ],
)
def test_what_a_key_may_say_of_itself(member):
    (key,) = parse_jwks(jwks(member))
    assert not hasattr(key.public, "sign")


UNUSABLE = {
    "symmetric": SYMMETRIC,
    "symmetric, said to be RS256": SYMMETRIC | {"alg": "RS256"},
    "for encryption": jwk(rsa_key(), use="enc"),
    "for signing only": jwk(rsa_key(), key_ops=["sign"]),
    "key_ops no list": jwk(rsa_key(), key_ops="verify"),
    "RS512": jwk(rsa_key(), alg="RS512"),
    "HS256 on an RSA key": jwk(rsa_key(), alg="HS256"),
    "none": jwk(rsa_key(), alg="none"),
    "too short": jwk(rsa_key(bits=1024)),
    "kid no text": jwk(rsa_key(), kid=7),
    "elliptic curve": {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
    "X25519": {"kty": "OKP", "crv": "X25519", "x": "A" * 43},
    "no modulus": {"kty": "RSA", "e": "AQAB"},
    "modulus no text": {"kty": "RSA", "n": 5, "e": "AQAB"},
    "modulus no base64": {"kty": "RSA", "n": "!!", "e": "AQAB"},
    "no x": {"kty": "OKP", "crv": "Ed25519"},
    "short x": {"kty": "OKP", "crv": "Ed25519", "x": "AA"},
    "nothing": {},
}


@pytest.mark.parametrize("member", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_other_keys_are_passed_over(member):
    (key,) = parse_jwks(jwks(member, jwk(ed25519_key(), kid="good")))
    assert key.kid == "good"
    with pytest.raises(ValueError, match="holds no RSA key"):
        parse_jwks(jwks(member))


@pytest.mark.parametrize(
    "content", [b"", b"x", b"[]", b"{}", b'{"keys":{}}', b'{"keys":[1]}', b"\xff"]
)
def test_what_is_no_set_is_refused(content):
    with pytest.raises(ValueError, match="not a JSON Web Key Set"):
        parse_jwks(content)


def test_a_set_is_bounded():
    with pytest.raises(ValueError, match="more than"):
        parse_jwks(jwks(*[jwk(rsa_key())] * (KEYS_MAX + 1)))


def test_errors_repeat_nothing():
    broken = PRIVATE | {"alg": "RS512"}
    with pytest.raises(ValueError, match="holds no") as caught:
        parse_jwks(jwks(broken))
    assert PRIVATE["d"] not in str(caught.value)


@given(st.binary(max_size=100))
def test_any_bytes_are_refused(content):
    with pytest.raises(ValueError, match="it "):
        parse_jwks(content)
