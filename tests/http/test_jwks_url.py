"""Keys of JWTs from a URL: fetched, renewed, asked for, and kept when the URL fails."""

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest

from holdfast.errors import UnauthorizedError
from holdfast.http.access.scopes import Need
from holdfast.http.access.sources import PAUSE_S
from holdfast.testing import FakeClock
from tests.http.loopback import answer, serving
from tests.unit.http.access.gates import gate, request
from tests.unit.http.access.signing import NOW_S, ed25519_key, jwk, jwks, signed

REFRESH_S = 300.0


def token(number):
    key = ed25519_key(number)
    kid = f"key {number}"
    return signed(key, "EdDSA", {"kid": kid}, exp=NOW_S + 10**7).decode()


def key_set(*numbers):
    return jwks(*(jwk(ed25519_key(number), kid=f"key {number}") for number in numbers))


class Issuer:
    """Whoever signs: answers with a key set, or fails."""

    def __init__(self):
        self.status = "200 OK"
        self.body = key_set(0)
        self.asked = 0

    async def behave(self, _head, _body, writer):
        self.asked += 1
        writer.write(answer(self.status, self.body))


@asynccontextmanager
async def guarded_by(issuer, clock, path="/keys"):
    async with serving(issuer.behave) as server:
        guarded = gate(
            clock,
            access_jwks_url=f"http://127.0.0.1:{server.port}{path}",
            access_jwks_refresh=str(REFRESH_S),
        )
        await guarded.start()
        try:
            yield guarded
        finally:
            await guarded.stop()


def admits(guarded, number):
    try:
        return guarded.admit(request(token(number)), Need.READ, "demo", "a") is not None
    except UnauthorizedError:
        return False


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def settled(issuer, count):
    """The issuer has been asked so often, and its answer has been dealt with."""
    await until(lambda: issuer.asked >= count)
    await asyncio.sleep(0.05)
    assert issuer.asked == count


@pytest.fixture
def clock():
    return FakeClock(start_ms=NOW_S * 1000)


def test_keys_are_there_from_the_start(clock):
    async def scenario():
        issuer = Issuer()
        async with guarded_by(issuer, clock) as guarded:
            assert admits(guarded, 0)
            assert not admits(guarded, 1)
            assert issuer.asked == 1

    asyncio.run(scenario())


def test_keys_are_renewed_at_an_interval(clock):
    async def scenario():
        issuer = Issuer()
        async with guarded_by(issuer, clock) as guarded:
            assert admits(guarded, 0)
            issuer.body = key_set(1)
            await asyncio.sleep(0)
            clock.advance(REFRESH_S - 1)
            await settled(issuer, 1)
            clock.advance(1)
            await until(lambda: admits(guarded, 1))
            # What was remembered of the old key is forgotten.
            assert not admits(guarded, 0)

    asyncio.run(scenario())


def test_an_unknown_key_is_asked_for_but_not_too_often(clock):
    async def scenario():
        issuer = Issuer()
        async with guarded_by(issuer, clock) as guarded:
            issuer.body = key_set(0, 1)
            for _ in range(5):
                assert not admits(guarded, 1)
            await settled(issuer, 1)
            clock.advance(PAUSE_S)
            assert not admits(guarded, 1)
            await until(lambda: issuer.asked == 2)
            await until(lambda: admits(guarded, 1))
            for _ in range(5):
                assert not admits(guarded, 2)
            await settled(issuer, 2)

    asyncio.run(scenario())


def test_an_empty_set_withdraws_every_key(clock):
    async def scenario():
        issuer = Issuer()
        async with guarded_by(issuer, clock) as guarded:
            assert admits(guarded, 0)
            issuer.body = b'{"keys":[]}'
            await asyncio.sleep(0)
            clock.advance(REFRESH_S)
            await until(lambda: not admits(guarded, 0))

    asyncio.run(scenario())


@pytest.mark.parametrize("failure", ["status", "nonsense", "huge"])
def test_a_failing_url_leaves_the_keys(clock, caplog, failure):
    async def scenario():
        issuer = Issuer()
        async with guarded_by(issuer, clock, "/keys?client=sesame") as guarded:
            match failure:
                case "status":
                    issuer.status = "500 Oops"
                case "nonsense":
                    issuer.body = b"<html>sesame</html>"
                case "huge":
                    issuer.body = b" " * 2_000_000
            await asyncio.sleep(0)
            clock.advance(REFRESH_S)
            await until(lambda: caplog.records)
            assert admits(guarded, 0)
            issuer.status, issuer.body = "200 OK", key_set(1)
            await asyncio.sleep(0.05)
            clock.advance(REFRESH_S)
            await until(lambda: admits(guarded, 1))

    asyncio.run(scenario())
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "the previous ones stay in force" in record.getMessage()
    assert "sesame" not in caplog.text


def test_a_url_that_fails_at_the_start_is_tried_again_soon(clock, caplog):
    async def scenario():
        issuer = Issuer()
        issuer.status = "503 Later"
        async with guarded_by(issuer, clock) as guarded:
            assert not admits(guarded, 0)
            issuer.status = "200 OK"
            await asyncio.sleep(0)
            clock.advance(PAUSE_S)
            await until(lambda: admits(guarded, 0))

    asyncio.run(scenario())
    assert "so JWTs signed by them are refused" in caplog.text


def test_a_redirect_is_not_followed(clock, caplog):
    async def scenario():
        async def redirect(_head, _body, writer):
            writer.write(answer("302 Found", b"", "Location: http://127.0.0.1:1/"))

        issuer = Issuer()
        issuer.behave = redirect
        async with guarded_by(issuer, clock) as guarded:
            assert not admits(guarded, 0)

    asyncio.run(scenario())
    assert "status 302" in caplog.text
