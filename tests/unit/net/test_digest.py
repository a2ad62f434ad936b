"""Digest authentication: the RFC's own example, and a server's view of the answers."""

from base64 import b64decode

import pytest

from holdfast.clock import SystemClock
from holdfast.net.digest import DigestCredentials
from tests.unit.net.digests import fields_of, is_right

URL = "http://www.example.org/dir/index.html"
NONCE = "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v"
CNONCE = "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ"
OPAQUE = "FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS"
RFC_FIELDS = (
    f'realm="http-auth@example.org", qop="auth, auth-int", nonce="{NONCE}", opaque="{OPAQUE}"'
)


class RfcClock(SystemClock):
    """Draws the client nonce of the RFC's example."""

    def random_bytes(self, count):
        return b64decode(CNONCE)


def digest_for(challenge, *, method="GET", url=URL, password="Circle of Life", clock=None):
    digest = DigestCredentials("Mufasa", password, clock)
    return digest, digest.take_challenge(method, url, {"www-authenticate": challenge})


@pytest.mark.parametrize(
    ("algorithm", "response"),
    [
        ("MD5", "8ca523f5e9506fed4657c9700eebdbec"),
        ("SHA-256", "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
    ],
)
def test_example_of_the_rfc(algorithm, response):
    _, header = digest_for(f"Digest {RFC_FIELDS}, algorithm={algorithm}", clock=RfcClock())
    assert fields_of(header) == {
        "username": "Mufasa",
        "realm": "http-auth@example.org",
        "uri": "/dir/index.html",
        "algorithm": algorithm,
        "nonce": NONCE,
        "nc": "00000001",
        "cnonce": CNONCE,
        "qop": "auth",
        "response": response,
        "opaque": OPAQUE,
    }


@pytest.mark.parametrize(
    "challenge",
    [
        'Digest realm="r", nonce="n"',
        'Digest realm="r", nonce="n", qop="auth"',
        'digest realm="r", nonce="n", qop="auth", algorithm=MD5-sess',
        'Digest realm="a, b=c", nonce="n", qop="auth", algorithm=SHA-256',
        'Digest realm="r",nonce="n",qop="auth",algorithm=SHA-256-sess',
    ],
)
def test_server_accepts_every_answer_and_no_other_password(challenge):
    digest, header = digest_for(challenge, method="POST", url="http://host/a%20b?c=d&e=f")
    assert fields_of(header)["uri"] == "/a%20b?c=d&e=f"
    assert is_right(header, "POST", "Circle of Life")
    assert not is_right(header, "POST", "Circle of life")
    assert not is_right(header, "GET", "Circle of Life")
    other = digest.authorization("DELETE", "http://host/other")
    assert fields_of(other)["uri"] == "/other"
    assert is_right(other, "DELETE", "Circle of Life")


def test_nothing_is_sent_before_a_challenge():
    assert DigestCredentials("me", "secret").authorization("GET", URL) is None


def test_every_answer_is_counted_once():
    digest, header = digest_for(f"Digest {RFC_FIELDS}")
    assert digest.authorization("GET", URL) == header
    headers = [header, *[digest.authorization("GET", URL) for _ in range(3)]]
    counts = [fields_of(each)["nc"] for each in headers]
    assert counts == ["00000001", "00000002", "00000003", "00000004"]
    assert len({fields_of(each)["cnonce"] for each in headers}) == 4


def test_a_session_keeps_its_key():
    """The server may keep the key, which is made with the first client nonce (RFC 7616, 3.4.2)."""
    challenge = f"Digest {RFC_FIELDS}, algorithm=SHA-256-sess"
    digest, header = digest_for(challenge)
    headers = [header, digest.authorization("PUT", URL), digest.authorization("GET", URL)]
    assert len({fields_of(each)["cnonce"] for each in headers}) == 1
    assert len({fields_of(each)["nc"] for each in headers}) == 3
    assert is_right(headers[1], "PUT", "Circle of Life")
    again = digest.take_challenge("GET", URL, {"www-authenticate": challenge})
    assert fields_of(again)["cnonce"] != fields_of(header)["cnonce"]


def test_answer_is_for_the_request_that_was_challenged():
    digest, _ = digest_for(f"Digest {RFC_FIELDS}")
    header = digest.authorization("PUT", "http://www.example.org/other")
    assert fields_of(header)["uri"] == "/other"
    assert is_right(header, "PUT", "Circle of Life")


def test_new_challenge_takes_the_place_of_the_old_one():
    digest, _ = digest_for(f"Digest {RFC_FIELDS}")
    digest.take_challenge("GET", URL, {"www-authenticate": 'Digest realm="r", nonce="new"'})
    assert fields_of(digest.authorization("GET", URL))["nonce"] == "new"


MD5 = 'Digest realm="r", nonce="md5", qop="auth", algorithm=MD5'
SHA = 'Digest realm="r", nonce="sha", qop="auth", algorithm=SHA-256'
NEWER = 'Digest realm="r", nonce="newer", qop="auth", algorithm=SHA-512-256'


@pytest.mark.parametrize(
    ("challenges", "nonce"),
    [
        ([SHA, MD5], "sha"),
        ([MD5, SHA], "md5"),
        ([NEWER, SHA, MD5], "sha"),
        (['Basic realm="x, Digest y"', SHA], "sha"),
        ([SHA, 'Basic realm="x"'], "sha"),
        (["Negotiate", MD5, "NTLM"], "md5"),
        (["Negotiate YWJj==", MD5], "md5"),
        (['Digest realm="r", nonce="i", qop="auth-int"', MD5], "md5"),
        (['Digest realm="no nonce"', MD5], "md5"),
    ],
)
def test_first_challenge_that_can_be_answered_is(challenges, nonce):
    digest, header = digest_for(", ".join(challenges))
    assert fields_of(header)["nonce"] == nonce
    assert is_right(header, "GET", "Circle of Life")
    assert fields_of(digest.authorization("GET", URL))["nonce"] == nonce


@pytest.mark.parametrize(
    "challenge",
    [
        "",
        "Digest",
        "Digest ",
        "Digest nonsense",
        'Basic realm="x"',
        'Bearer realm="Digest realm=x"',
        'Digest realm="no nonce"',
        NEWER,
        'Digest realm="r", nonce="i", qop="auth-int"',
        "Negotiate",
    ],
)
def test_what_cannot_be_answered_is_not(challenge):
    digest, header = digest_for(challenge)
    assert header is None
    assert digest.authorization("GET", URL) is None


def test_what_cannot_be_answered_leaves_the_last_challenge_alone():
    digest, _ = digest_for(MD5)
    assert digest.take_challenge("GET", URL, {"www-authenticate": NEWER}) is None
    assert digest.take_challenge("GET", URL, {}) is None
    assert fields_of(digest.authorization("HEAD", URL))["nonce"] == "md5"
