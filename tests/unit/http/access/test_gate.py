"""The gate: who gets in, who does not, and what is remembered."""

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ForbiddenError, RateLimitedError, SettingsError, UnauthorizedError
from holdfast.http.access import tokens
from holdfast.http.access.scopes import Need
from holdfast.http.access.sources import POLL_S
from holdfast.http.access.tokens import digest_of
from holdfast.testing import FakeClock
from tests.unit.http.access.gates import entry, gate, request
from tests.unit.http.access.signing import NOW_S, SECRET, ed25519_key, jwk, jwks, signed

TOKEN = "holdfast_9a8b7c6d5e4f-reader"
OTHER = "holdfast_1234567890-writer"
READ, WRITE, ADMIN, NOTHING = Need.READ, Need.WRITE, Need.ADMIN, Need.NOTHING


@pytest.fixture
def clock():
    return FakeClock(start_ms=NOW_S * 1000)


@pytest.fixture
def tokens_file(tmp_path):
    path = tmp_path / "tokens.toml"
    path.write_text(entry("reader", TOKEN, "read:demo") + entry("writer", OTHER, "write:*"))
    return path


@pytest.fixture
def guarded(clock, tokens_file):
    return gate(clock, access_tokens_file=str(tokens_file))


def test_a_known_token_says_who_it_is(guarded):
    identity = guarded.admit(request(TOKEN), READ, "demo", "a")
    assert identity.name == "reader"
    # The second time it is remembered.
    assert guarded.admit(request(TOKEN), READ, "demo", "b") is identity
    assert guarded.admit(request(OTHER), WRITE, "any", "b").name == "writer"


@pytest.mark.parametrize(
    ("authorization", "says"),
    [
        (None, "A token is needed"),
        (b"", "not of the form"),
        (b"Bearer", "not of the form"),
        (b"Bearer ", "not of the form"),
        (b"Bearer    ", "not of the form"),
        (b"Basic dXNlcjpwYXNz", "not of the form"),
        (TOKEN.encode(), "not of the form"),
        (b"Token " + TOKEN.encode(), "not of the form"),
        (b"Bearer wrong-sesame", "not known"),
        (b"Bearer " + TOKEN.encode() + b"x", "not known"),
        (b"Bearer " + TOKEN.encode()[:-1], "not known"),
        (b"Bearer " + TOKEN.upper().encode(), "not known"),
        (b"Bearer x," + TOKEN.encode(), "not known"),
        (b"Bearer a.b.c", "not known"),
        (b"Bearer \xff\x00", "not known"),
        (b"Bearer " + b"x" * 9000, "longer than"),
    ],
)
def test_everything_else_is_nobody(guarded, authorization, says):
    with pytest.raises(UnauthorizedError, match=says):
        guarded.admit(request(authorization=authorization), READ, "demo", "a")


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER ", b"Bearer   "])
def test_the_scheme_s_case_does_not_matter(guarded, scheme):
    asked = request(authorization=scheme + TOKEN.encode())
    assert guarded.admit(asked, READ, "demo", "a").name == "reader"


def test_a_token_in_the_url_is_not_looked_at(guarded):
    asked = request()
    asked.query = f"access_token={TOKEN}&token={TOKEN}".encode()
    with pytest.raises(UnauthorizedError):
        guarded.admit(asked, READ, "demo", "a")


@pytest.mark.parametrize(
    ("need", "bucket", "stream", "is_prefix", "scope"),
    [
        (WRITE, "demo", "a", False, "write:demo/a"),
        (READ, "other", "a", False, "read:other/a"),
        (READ, "other", "", True, r"read:other/\*"),
        (READ, "other", "x", True, r"read:other/x\*"),
        (ADMIN, "demo", "", False, "admin:demo"),
        (READ, "", "", False, r"read:\*"),
    ],
)
def test_what_a_token_does_not_allow_is_forbidden(guarded, need, bucket, stream, is_prefix, scope):
    with pytest.raises(ForbiddenError, match=f"'reader'.* scope {scope}") as caught:
        guarded.admit(request(TOKEN), need, bucket, stream, is_prefix=is_prefix)
    assert TOKEN not in caught.value.message


@pytest.mark.parametrize("token", [None, TOKEN, "wrong"])
def test_some_routes_need_nobody(guarded, token):
    assert guarded.admit(request(token), NOTHING, "", "") is None


def test_a_token_ends_when_its_time_is_over(clock, tokens_file):
    tokens_file.write_text(
        entry("reader", TOKEN, "read:demo", more="expires_at = 2027-01-15T08:10:00Z")
    )
    guarded = gate(clock, access_tokens_file=str(tokens_file))
    identity = guarded.admit(request(TOKEN), READ, "demo", "a")
    assert identity.expires_at_s == NOW_S + 600
    clock.advance(599.9)
    assert guarded.admit(request(TOKEN), READ, "demo", "a")
    clock.advance(0.1)
    for _ in range(2):
        with pytest.raises(UnauthorizedError, match="expired"):
            guarded.admit(request(TOKEN), READ, "demo", "a")


def test_a_jwt_ends_when_its_time_is_over(clock):
    guarded = gate(clock, access_jwt_secret=SECRET, access_leeway="10")
    token = signed(exp=NOW_S + 60).decode()
    assert guarded.admit(request(token), READ, "demo", "a").expires_at_s == NOW_S + 70
    clock.advance(69.9)
    assert guarded.admit(request(token), READ, "demo", "a")
    clock.advance(0.1)
    with pytest.raises(UnauthorizedError, match="expired"):
        guarded.admit(request(token), READ, "demo", "a")


def test_tokens_and_jwts_work_side_by_side(clock, tokens_file, tmp_path):
    (tmp_path / "keys.json").write_bytes(jwks(jwk(ed25519_key(), kid="k")))
    guarded = gate(
        clock,
        access_tokens_file=str(tokens_file),
        access_tokens=f"setting {digest_of(b'other-one').hex()} read:demo",
        access_jwt_secret=SECRET,
        access_jwks_file=str(tmp_path / "keys.json"),
    )
    tokens = [TOKEN, "other-one", signed().decode()]
    tokens.append(signed(ed25519_key(), "EdDSA", {"kid": "k"}, sub="ed").decode())
    names = [guarded.admit(request(token), READ, "demo", "a").name for token in tokens]
    assert names == ["reader", "setting", "jwt:app", "jwt:ed"]


class TestIdentify:
    """Who a request is from that was let in without having to say so."""

    def test_is_remembered(self, clock):
        guarded = gate(clock, access_jwt_secret=SECRET)
        token = signed(exp=NOW_S + 60).decode()
        identity = guarded.identify(request(token))
        assert identity.name == "jwt:app"
        assert guarded.identify(request(token)) is identity
        assert guarded.admit(request(token), READ, "demo", "a") is identity

    def test_ends_when_its_time_is_over(self, clock, tokens_file):
        tokens_file.write_text(
            entry("reader", TOKEN, "read:demo", more="expires_at = 2027-01-15T08:10:00Z")
        )
        guarded = gate(clock, access_tokens_file=str(tokens_file))
        assert guarded.identify(request(TOKEN)).expires_at_s == NOW_S + 600
        clock.advance(600)
        for _ in range(2):
            with pytest.raises(UnauthorizedError, match="expired"):
                guarded.identify(request(TOKEN))

    @pytest.mark.parametrize("token", [None, "wrong"])
    def test_is_nobody(self, guarded, token):
        with pytest.raises(UnauthorizedError):
            guarded.identify(request(token))


async def until(condition, clock):
    """Let time pass until a thread has looked at the files."""
    async with asyncio.timeout(10):
        while not condition():
            clock.advance(POLL_S)
            await asyncio.sleep(0.001)


def admits(guarded, token):
    try:
        return guarded.admit(request(token), READ, "demo", "a") is not None
    except UnauthorizedError:
        return False


def test_a_token_is_revoked_without_a_restart(clock, tokens_file, guarded, caplog):
    async def scenario():
        await guarded.start()
        try:
            assert admits(guarded, TOKEN)
            assert admits(guarded, OTHER)
            tokens_file.write_text(entry("writer", OTHER, "write:*"))
            assert admits(guarded, TOKEN)
            await until(lambda: not admits(guarded, TOKEN), clock)
            assert admits(guarded, OTHER)
            # A broken file changes nothing.
            caplog.clear()
            tokens_file.write_text(f"token = {TOKEN}")
            await until(lambda: caplog.records, clock)
            assert admits(guarded, OTHER)
            # And a good one is taken again.
            tokens_file.write_text(entry("reader", TOKEN, "read:demo"))
            await until(lambda: admits(guarded, TOKEN), clock)
            assert not admits(guarded, OTHER)
        finally:
            await guarded.stop()

    asyncio.run(scenario())
    assert TOKEN not in caplog.text


def test_a_key_is_withdrawn_without_a_restart(clock, tmp_path):
    path = tmp_path / "keys.json"
    path.write_bytes(jwks(jwk(ed25519_key(), kid="old")))
    guarded = gate(clock, access_jwks_file=str(path))
    later_s = NOW_S + 1_000_000
    old = signed(ed25519_key(), "EdDSA", {"kid": "old"}, exp=later_s).decode()
    new = signed(ed25519_key(1), "EdDSA", {"kid": "new"}, exp=later_s).decode()

    async def scenario():
        await guarded.start()
        try:
            assert admits(guarded, old)
            assert not admits(guarded, new)
            path.write_bytes(jwks(jwk(ed25519_key(1), kid="new")))
            await until(lambda: admits(guarded, new), clock)
            assert not admits(guarded, old)
        finally:
            await guarded.stop()

    asyncio.run(scenario())


def test_what_is_remembered_is_bounded(clock, monkeypatch):
    monkeypatch.setattr(tokens, "KNOWN_MAX", 10)
    guarded = gate(clock, access_jwt_secret=SECRET)
    for number in range(35):
        assert admits(guarded, signed(sub=str(number)).decode())
        assert len(guarded._known) <= 10
    known = len(guarded._known)
    for number in range(35):
        assert not admits(guarded, f"guess-{number}")
    assert len(guarded._known) == known


@given(st.binary(max_size=60))
def test_no_bytes_get_in_or_do_harm(value):
    guarded = gate(access_jwt_secret=SECRET)
    with pytest.raises(UnauthorizedError) as caught:
        guarded.admit(request(authorization=b"Bearer " + value), READ, "demo", "a")
    assert caught.value.message.isprintable()


def test_nothing_secret_is_said_or_logged(clock, tokens_file, caplog):
    caplog.set_level(logging.DEBUG)
    guarded = gate(clock, access_tokens_file=str(tokens_file), access_jwt_secret=SECRET)
    jwt = signed(exp=NOW_S - 1000).decode()
    said = []
    for token in (TOKEN, TOKEN + "x", jwt, jwt[:-3]):
        with pytest.raises((UnauthorizedError, ForbiddenError)) as caught:
            guarded.admit(request(token), ADMIN, "demo", "")
        said.append(caught.value.message)
    for secret in (TOKEN, jwt, jwt.rpartition(".")[2], SECRET):
        assert secret not in caplog.text
        assert not any(secret in message for message in said)
    assert TOKEN not in repr(guarded.admit(request(TOKEN), READ, "demo", "a"))


class TestRateLimits:
    def test_a_client_is_its_token(self, clock, tokens_file):
        guarded = gate(
            clock, access_tokens_file=str(tokens_file), client_rate="2", client_burst="3"
        )
        # The first time an address is charged, too, since its token had to be looked at.
        for _ in range(3):
            guarded.admit(request(TOKEN, peer="10.0.0.1"), READ, "demo", "a")
        with pytest.raises(RateLimitedError, match="2 a second from one client") as caught:
            guarded.admit(request(TOKEN, peer="10.0.0.2"), READ, "demo", "a")
        assert caught.value.retry_after_s == 1
        guarded.admit(request(OTHER, peer="10.0.0.1"), READ, "demo", "a")
        clock.advance(0.5)
        guarded.admit(request(TOKEN, peer="10.0.0.9"), READ, "demo", "a")

    def test_without_access_control_a_client_is_an_address(self, clock):
        limited = gate(clock, client_rate="1", client_burst="2")
        for _ in range(2):
            assert limited.admit(request(TOKEN, peer="10.0.0.1"), ADMIN, "demo", "a") is None
        with pytest.raises(RateLimitedError):
            limited.admit(request(OTHER, peer="10.0.0.1"), READ, "demo", "b")
        limited.admit(request(peer="10.0.0.2"), READ, "demo", "a")

    @pytest.mark.spec("base 10.5-1")
    def test_guessing_is_slowed_down(self, clock, tokens_file):
        guarded = gate(clock, access_tokens_file=str(tokens_file), client_rate="5")
        outcomes = []
        for number in range(20):
            try:
                guarded.admit(request(f"guess {number}"), READ, "demo", "a")
            except (UnauthorizedError, RateLimitedError) as error:
                outcomes.append(error.status)
        assert outcomes == [401] * 5 + [429] * 15
        # Whoever has a token that was seen before is not held up by a neighbour's guesses.
        guarded.admit(request(TOKEN, peer="10.0.0.2"), READ, "demo", "a")
        guarded.admit(request(TOKEN, peer="10.0.0.1"), READ, "demo", "a")

    def test_open_routes_are_limited_but_health_is_not(self, clock):
        limited = gate(clock, client_rate="1")
        limited.admit(request(path=b"/jwks.json"), NOTHING, "", "")
        with pytest.raises(RateLimitedError):
            limited.admit(request(path=b"/jwks.json"), NOTHING, "", "")
        for path in (b"/healthz", b"/readyz/local", b"/readyz/cluster") * 3:
            limited.admit(request(path=path), NOTHING, "", "")

    def test_a_bucket_is_limited_for_all_together(self, clock):
        limited = gate(clock, bucket_rate="1", bucket_burst="2")
        limited.admit(request(peer="10.0.0.1"), READ, "demo", "a")
        limited.admit(request(peer="10.0.0.2"), READ, "demo", "b")
        with pytest.raises(RateLimitedError, match="for one bucket"):
            limited.admit(request(peer="10.0.0.3"), READ, "demo", "c")
        limited.admit(request(peer="10.0.0.3"), READ, "other", "c")
        for _ in range(5):
            limited.admit(request(), READ, "", "")

    def test_who_may_not_use_a_bucket_does_not_use_it_up(self, clock, tokens_file):
        guarded = gate(clock, access_tokens_file=str(tokens_file), bucket_rate="1")
        for _ in range(5):
            with pytest.raises(ForbiddenError):
                guarded.admit(request(TOKEN), READ, "other", "a")
        guarded.admit(request(OTHER), READ, "other", "a")
        with pytest.raises(RateLimitedError):
            guarded.admit(request(OTHER), READ, "other", "a")

    def test_who_need_not_say_who_they_are_does_not_use_it_up_either(self, clock):
        limited = gate(clock, bucket_rate="1")
        for _ in range(5):
            assert limited.admit(request(), NOTHING, "demo", "a") is None
        limited.admit(request(), READ, "demo", "a")
        with pytest.raises(RateLimitedError):
            limited.admit(request(), READ, "demo", "a")
        limited.admit(request(), NOTHING, "demo", "a")

    def test_what_is_forbidden_counts_for_the_client(self, clock, tokens_file):
        guarded = gate(clock, access_tokens_file=str(tokens_file), client_rate="2")
        for _ in range(2):
            with pytest.raises(ForbiddenError):
                guarded.admit(request(TOKEN), READ, "other", "a")
        with pytest.raises(RateLimitedError):
            guarded.admit(request(TOKEN), READ, "other", "a")


class TestSettings:
    def test_without_any_there_is_no_gate(self):
        assert gate() is None
        assert gate(bucket_bytes_max="5", bucket_streams_max="5", client_burst="7") is None

    @pytest.mark.parametrize(
        "settings",
        [
            {"access_tokens_file": "/nowhere/tokens.toml"},
            {"access_jwks_file": "/nowhere/keys.json"},
            {"access_tokens": "nonsense"},
            {"access_jwt_secret": "too short"},
            {"access_jwks_url": "http://idp.example/keys"},
            {"access_jwks_url": "https://user@idp.example/keys"},
            {"access_jwks_url": "idp.example"},
            {"access_jwks_url": "https://idp.example:x/"},
            {"access_audience": "holdfast"},
            {"access_issuer": "x", "access_tokens": "a"},
            {"client_rate": "-1"},
        ],
    )
    def test_what_cannot_be_used_stops_the_start(self, settings):
        with pytest.raises(SettingsError) as caught:
            gate(**settings)
        assert "too short" not in caught.value.message

    @pytest.mark.parametrize(
        "url", ["https://idp.example/keys", "http://127.0.0.1:9/", "http://[::1]:9/", ""]
    )
    def test_urls_of_keys(self, url):
        assert (gate(access_jwks_url=url) is None) is (url == "")
