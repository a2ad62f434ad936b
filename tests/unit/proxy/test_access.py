"""Signed URLs without a server: what is compared, and how."""

import hmac
from urllib.parse import parse_qs

import pytest

from holdfast.errors import SignatureExpiredError, SignatureInvalidError
from holdfast.proxy import access
from holdfast.proxy.access import UrlSigner, session_stream_id
from holdfast.testing import FakeClock

SECRETS = ("the first one, which signs", "the second one")
STREAM = "f9c2a3f0-6c5e-4d0b-8a57-0d6e8b7f2a41"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def signer(clock: FakeClock) -> UrlSigner:
    return UrlSigner(SECRETS, clock)


def signed(signer: UrlSigner, ttl_s: float = 60, stream_id: str = STREAM) -> tuple[str, str, str]:
    query = parse_qs(signer.query(stream_id, ttl_s))
    return stream_id, query["expires"][0], query["signature"][0]


@pytest.mark.spec("proxy 8.2-1", "proxy 13.2-1")
def test_a_known_signature(signer: UrlSigner) -> None:
    """So that URLs stay good from one version to the next."""
    signature = "qY-59ck895tTqyIVQ2Y7QfUxSaRP5iShu4vwCu3508U"
    signer.check_signature(STREAM, "1700000000", signature)


@pytest.mark.spec("proxy 8.2-2", "proxy 13.2-1")
def test_comparisons_take_the_same_time(signer: UrlSigner, monkeypatch) -> None:
    """Every secret is compared in constant time, also behind one that has matched."""
    compared: list[bytes] = []

    stream_id, expires, signature = signed(signer)
    monkeypatch.setattr(access.hmac, "compare_digest", Comparing(compared))
    signer.check(stream_id, expires, signature)
    assert compared == [signature.encode()] * 2
    compared.clear()
    with pytest.raises(SignatureInvalidError):
        signer.check(stream_id, expires, "short")
    assert compared == [b"short"] * 2
    compared.clear()
    assert signer.knows(SECRETS[0].encode())
    assert not signer.knows(b"")
    assert compared == [SECRETS[0].encode()] * 2 + [b""] * 2


class Comparing:
    """What the standard library has, with a note of what was compared."""

    def __init__(self, compared: list[bytes]) -> None:
        self._compared = compared
        self._compare = hmac.compare_digest

    def __call__(self, ours: bytes, given: bytes) -> bool:
        self._compared.append(given)
        return self._compare(ours, given)


@pytest.mark.spec("proxy 8.2-3")
def test_a_url_is_good_until_its_second_begins(signer: UrlSigner, clock: FakeClock) -> None:
    url = signed(signer, ttl_s=10)
    clock.advance(9.0)
    assert signer.check(*url) == int(url[1])
    clock.advance(1.0)
    with pytest.raises(SignatureExpiredError) as caught:
        signer.check(*url)
    assert (caught.value.renewable, caught.value.stream_id) == (False, STREAM)
    signer.check_signature(*url)


@pytest.mark.spec("proxy 4.5-9")
def test_urls_of_sessions_are_renewable(signer: UrlSigner, clock: FakeClock) -> None:
    url = signed(signer, stream_id=session_stream_id("a session"))
    clock.advance(60.0)
    with pytest.raises(SignatureExpiredError) as caught:
        signer.check(*url)
    assert caught.value.renewable


def test_whoever_knows_the_second_secret_only(clock: FakeClock, signer: UrlSigner) -> None:
    old = UrlSigner(SECRETS[1:], clock)
    assert signer.check(*signed(old))
    with pytest.raises(SignatureInvalidError):
        old.check(*signed(signer))


def test_ids_and_times_cannot_be_shifted(signer: UrlSigner) -> None:
    """The colon between them is in neither."""
    stream_id, expires, signature = signed(signer)
    for moved in ((f"{stream_id}:{expires[0]}", expires[1:]), (stream_id[:-1], f"1:{expires}")):
        with pytest.raises(SignatureInvalidError):
            signer.check_signature(*moved, signature)
