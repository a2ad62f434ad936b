"""JWTs: good ones are taken, and every known way to forge one is refused."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import SettingsError, UnauthorizedError
from holdfast.http.access.jwts import CANDIDATES_MAX, JwtVerifier, parse_jwks
from holdfast.http.access.scopes import parse_scopes
from holdfast.settings import AccessSettings
from tests.thorough import for_each
from tests.unit.http.access.signing import (
    NOW_S,
    SECRET,
    assembled,
    claims,
    ed25519_key,
    jwk,
    jwks,
    public_pem,
    rsa_key,
    segment,
    signed,
)

KEYS = parse_jwks(jwks(jwk(rsa_key(), kid="rsa"), jwk(ed25519_key(), kid="ed")))


def verifier(*, keys=KEYS, jwt_secret=SECRET, asked=None, **settings):
    access = AccessSettings(jwt_secret=jwt_secret, **settings)
    made = JwtVerifier(access, (lambda: asked.append(1)) if asked is not None else lambda: None)
    made.keys = keys
    return made


def refusal(token, *, of=None, now_s=NOW_S):
    with pytest.raises(UnauthorizedError) as caught:
        (of or verifier()).verify(token, now_s)
    assert SECRET not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    "token",
    [
        signed(),
        signed(headers={"kid": "whatever"}),
        signed(rsa_key(), "RS256", {"kid": "rsa"}),
        signed(rsa_key(), "RS256"),
        signed(ed25519_key(), "EdDSA", {"kid": "ed"}),
        signed(ed25519_key(), "EdDSA"),
    ],
    ids=["HS256", "HS256 kid", "RS256 kid", "RS256", "EdDSA kid", "EdDSA"],
)
def test_good_tokens_are_taken(token):
    identity = verifier().verify(token, NOW_S)
    assert identity.name == "jwt:app"
    assert identity.scopes == parse_scopes(["read:demo"])
    assert identity.expires_at_s == NOW_S + 600 + 30


def hs256_with(key):
    """Signed by hand: PyJWT refuses to use a public key as a secret."""
    content = segment({"alg": "HS256", "typ": "JWT", "kid": "rsa"}) + b"." + segment(claims())
    return content + b"." + segment(hmac.digest(key, content, hashlib.sha256))


def with_payload(token, payload):
    head, _, signature = token.split(b".")
    return b".".join([head, segment(payload), signature])


RS256_TOKEN = signed(rsa_key(), "RS256", {"kid": "rsa"})
FORGERIES = {
    "alg none": assembled({"alg": "none", "typ": "JWT"}, claims()),
    "alg None": assembled({"alg": "None"}, claims()),
    "alg nOnE with a kid": assembled({"alg": "nOnE", "kid": "rsa"}, claims()),
    "alg none, old signature": assembled({"alg": "none"}, claims(), b"x" * 32),
    "no alg": assembled({"typ": "JWT"}, claims(), b"x" * 32),
    "alg null": assembled({"alg": None}, claims(), b"x" * 32),
    "alg list": assembled({"alg": ["HS256"]}, claims(), b"x" * 32),
    "alg HS512": signed(SECRET * 2, "HS512"),
    "alg RS512": signed(rsa_key(), "RS512", {"kid": "rsa"}),
    "alg PS256": signed(rsa_key(), "PS256", {"kid": "rsa"}),
    "HS256 with the public key, PEM": hs256_with(public_pem(rsa_key())),
    "HS256 with the public key, JWK": hs256_with(jwks(jwk(rsa_key(), kid="rsa"))),
    "HS256 with nothing": hs256_with(b""),
    "another secret": signed(SECRET + "!"),
    "another RSA key": signed(rsa_key(1), "RS256", {"kid": "rsa"}),
    "another RSA key, no kid": signed(rsa_key(1), "RS256"),
    "another Ed25519 key": signed(ed25519_key(1), "EdDSA", {"kid": "ed"}),
    "RS256 with the kid of an Ed25519 key": signed(rsa_key(), "RS256", {"kid": "ed"}),
    "unknown kid": signed(rsa_key(), "RS256", {"kid": "other"}),
    "kid is a path": signed(rsa_key(1), "RS256", {"kid": "../../../../dev/null"}),
    "kid is a number": assembled({"alg": "RS256", "kid": 7}, claims(), b"x" * 256),
    "key in the header": signed(rsa_key(1), "RS256", {"jwk": jwk(rsa_key(1))}),
    "URL in the header": signed(rsa_key(1), "RS256", {"jku": "https://evil.example/"}),
    "tampered claims": with_payload(signed(), claims(scope="admin:*")),
    "tampered claims, RS256": with_payload(RS256_TOKEN, claims(scope="admin:*")),
    "signature cut off": RS256_TOKEN.rpartition(b".")[0] + b".",
    "signature cut short": RS256_TOKEN[:-4],
    "signature of another token": signed(sub="b").rpartition(b".")[0] + RS256_TOKEN[-344:],
    "unknown crit": signed(headers={"crit": ["x"], "x": 1}),
    "payload detached": assembled({"alg": "HS256", "b64": False, "crit": ["b64"]}, b""),
    "claims are a list": b"",
    "two parts": b"a.b",
    "four parts": signed() + b".x",
    "empty parts": b"..",
    "header no JSON": assembled(b"{", claims(), b"x"),
    "header a list": assembled([], claims(), b"x"),
    "header deep": assembled(b"[" * 5000, claims(), b"x"),
    "not base64": b"!!.!!.!!",
    "not ASCII": "ä.ö.ü".encode(),
}


@for_each("token", FORGERIES.values())
def test_forgeries_are_refused(token):
    assert refusal(token).endswith(".")


@pytest.mark.parametrize("payload", [b"[]", b'"x"', b"{", b"\xff", b"[" * 5000, b"{}x"])
def test_signed_claims_that_are_no_object_are_refused(payload):
    content = segment({"alg": "HS256"}) + b"." + segment(payload)
    token = content + b"." + segment(hmac.digest(SECRET.encode(), content, hashlib.sha256))
    assert "not a JSON object" in refusal(token)


@for_each(
    ("changes", "settings", "says"),
    [
        ({"exp": NOW_S - 30}, {}, "expired"),
        ({"exp": NOW_S - 100_000}, {}, "expired"),
        ({"exp": NOW_S}, {"leeway_s": 0.0}, "expired"),
        ({"exp": None}, {}, "never expires"),
        ({"exp": "soon"}, {}, "exp is not a time"),
        ({"exp": True}, {}, "exp is not a time"),
        ({"exp": -5}, {}, "exp is not a time"),
        ({"exp": 1e300}, {}, "exp is not a time"),
        ({"exp": 10**400}, {}, "exp is not a time"),
        ({"exp": [NOW_S + 9]}, {}, "exp is not a time"),
        ({"nbf": NOW_S + 31}, {}, "not valid yet"),
        ({"nbf": "now"}, {}, "nbf is not a time"),
        ({"aud": "other"}, {"audience": "holdfast"}, "another audience"),
        ({"aud": ["a", "b"]}, {"audience": "holdfast"}, "another audience"),
        ({"aud": {"holdfast": 1}}, {"audience": "holdfast"}, "another audience"),
        ({"aud": "holdfast-2"}, {"audience": "holdfast"}, "another audience"),
        ({}, {"audience": "holdfast"}, "another audience"),
        ({"aud": "holdfast"}, {}, "this server is none"),
        ({"iss": "https://evil.example"}, {"issuer": "https://idp.example"}, "another issuer"),
        ({}, {"issuer": "https://idp.example"}, "another issuer"),
        ({"sub": 7}, {}, "sub"),
        ({"sub": "x" * 256}, {}, "sub"),
        ({"sub": "a\nb"}, {}, "sub"),
    ],
)
def test_claims_that_do_not_hold_are_refused(changes, settings, says):
    assert says in refusal(signed(**changes), of=verifier(**settings))


@pytest.mark.parametrize(
    ("changes", "settings", "expires_at_s"),
    [
        ({"exp": NOW_S - 29}, {}, NOW_S + 1),
        ({"exp": NOW_S + 0.5}, {"leeway_s": 0.0}, NOW_S + 0.5),
        ({"exp": None}, {"exp_required": False}, None),
        ({"nbf": NOW_S + 29}, {}, NOW_S + 630),
        ({"aud": "holdfast"}, {"audience": "holdfast"}, NOW_S + 630),
        ({"aud": ["x", "holdfast"]}, {"audience": "holdfast"}, NOW_S + 630),
        ({"iss": "https://idp.example"}, {"issuer": "https://idp.example"}, NOW_S + 630),
        ({"iat": NOW_S + 5000}, {}, NOW_S + 630),
    ],
)
def test_claims_that_hold_are_taken(changes, settings, expires_at_s):
    assert verifier(**settings).verify(signed(**changes), NOW_S).expires_at_s == expires_at_s


@pytest.mark.parametrize(
    ("changes", "scopes"),
    [
        ({"scope": "read:a write:b/x-*"}, ["read:a", "write:b/x-*"]),
        ({"scope": "openid  email read:a"}, ["read:a"]),
        ({"scope": None, "scopes": ["read:a", "read:b/c d"]}, ["read:a", "read:b/c d"]),
        ({"scope": "read:a", "scopes": ["read:b"]}, ["read:a", "read:b"]),
        ({"scope": ["read:a"]}, []),
        ({"scope": None}, []),
        ({"scope": "", "scopes": "read:a"}, []),
        ({"scope": None, "scopes": [1, None, {"a": 1}]}, []),
    ],
)
def test_scopes_come_from_two_claims(changes, scopes):
    assert verifier().verify(signed(**changes), NOW_S).scopes == parse_scopes(scopes)


def test_without_a_subject_there_is_a_name_all_the_same():
    assert verifier().verify(signed(sub=None), NOW_S).name == "jwt:"


@pytest.mark.parametrize("claim", ["exp", "nbf"])
def test_time_is_the_caller_s_and_not_the_machine_s(claim):
    """In the machine's time this token is long over, or not yet valid."""
    token = signed(exp=2_000, nbf=1_000)
    assert verifier().verify(token, 1_500.0)
    assert refusal(token, now_s=2_100.0 if claim == "exp" else 900.0)


def test_an_unknown_key_is_asked_for():
    asked = []
    checker = verifier(asked=asked)
    refusal(signed(rsa_key(1), "RS256", {"kid": "new"}), of=checker)
    assert asked == [1]
    checker.keys = parse_jwks(jwks(jwk(rsa_key(1), kid="new")))
    assert checker.verify(signed(rsa_key(1), "RS256", {"kid": "new"}), NOW_S)
    refusal(signed(SECRET + "!"), of=checker)
    assert asked == [1]


def test_without_keys_nothing_is_taken():
    checker = verifier(keys=(), jwt_secret="")
    for token in (signed(), RS256_TOKEN, hs256_with(b"")):
        assert "not known here" in refusal(token, of=checker)


def test_a_key_without_an_id_is_tried_for_any():
    checker = verifier(keys=parse_jwks(jwks(jwk(rsa_key()))))
    assert checker.verify(signed(rsa_key(), "RS256", {"kid": "x"}), NOW_S)
    assert checker.verify(signed(rsa_key(), "RS256"), NOW_S)


def test_a_token_without_a_key_s_id_is_not_tried_with_many():
    members = [jwk(ed25519_key(number), kid=str(number)) for number in range(CANDIDATES_MAX + 1)]
    checker = verifier(keys=parse_jwks(jwks(*members)))
    assert "which key" in refusal(signed(ed25519_key(1), "EdDSA"), of=checker)
    assert checker.verify(signed(ed25519_key(1), "EdDSA", {"kid": "1"}), NOW_S)


def test_a_public_key_is_no_secret():
    with pytest.raises(SettingsError, match="public key"):
        verifier(jwt_secret=public_pem(rsa_key()).decode())


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_words(token):
    refusal(token)


@given(st.integers(0, len(RS256_TOKEN) - 1), st.integers(0, 255))
def test_no_single_byte_can_be_changed(at, byte):
    token = RS256_TOKEN[:at] + bytes([byte]) + RS256_TOKEN[at + 1 :]
    if token != RS256_TOKEN:
        refusal(token)
