"""Keys, tokens and signatures."""

import base64
import hashlib
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from holdfast.errors import (
    HoldfastError,
    UnavailableError,
    WakeTokenExpiredError,
    WakeTokenInvalidError,
)
from holdfast.subscriptions.keys import (
    KEYS_FILE,
    TOKEN_LIFETIME_MS,
    KeyStore,
    WakeTokens,
    WebhookSigner,
    from_unpadded,
    unpadded,
)
from holdfast.subscriptions.machine import Subscription
from holdfast.testing import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / KEYS_FILE


def subscription(**fields):
    values = {"id": "sub", "incarnation": 1, "generation": 3, **fields}
    return Subscription(
        type="webhook", config_hash="", base_url="", created_ms=0, lease_ttl_ms=1000, **values
    )


class TestFile:
    @pytest.mark.spec("subscriptions 6.5-7", "subscriptions 6.5-8")
    def test_is_for_the_server_alone_and_read_again(self, path, clock):
        keys = KeyStore(path, clock).keys()
        assert path.stat().st_mode & 0o777 == 0o600
        assert KeyStore(path, clock).keys() == keys
        assert [each.name for each in path.parent.iterdir()] == [KEYS_FILE]

    def test_what_a_crash_has_left_is_no_hindrance(self, path, clock):
        path.with_name(KEYS_FILE + ".new").write_text("half")
        KeyStore(path, clock).keys()
        assert json.loads(path.read_text())["version"] == 1

    def test_without_a_directory_keys_last_as_long_as_the_process(self, clock):
        store = KeyStore(None, clock)
        assert store.keys() is store.keys()
        assert KeyStore(None, clock).keys() != store.keys()

    @pytest.mark.parametrize(
        "text", ["", "{}", '{"version":1,"token_key":"x","signing_keys":[]}', "[1]"]
    )
    def test_damage_is_named(self, path, clock, text):
        path.write_text(text)
        with pytest.raises(HoldfastError, match=KEYS_FILE):
            KeyStore(path, clock).keys()

    def test_keys_of_another_length_are_refused(self, path, clock):
        KeyStore(path, clock).keys()
        file = json.loads(path.read_text())
        path.write_text(json.dumps(file | {"token_key": "A" * 44}))
        with pytest.raises(HoldfastError, match="32 bytes"):
            KeyStore(path, clock).keys()

    def test_a_place_that_cannot_be_written_is_for_later(self, tmp_path, clock):
        with pytest.raises(UnavailableError):
            KeyStore(tmp_path / "none" / KEYS_FILE, clock).keys()


class TestSignatures:
    @pytest.mark.spec("subscriptions 7.1-3")
    def test_can_be_checked_with_the_published_key(self, clock):
        signer = WebhookSigner(KeyStore(None, clock), clock)
        body = b'{"a":1}'
        parts = dict(part.split("=", 1) for part in signer.signature(body).split(","))
        assert int(parts["t"]) == clock.now_ms() // 1000
        [key] = json.loads(signer.jwks())["keys"]
        assert (key["kid"], key["kid"]) == (parts["kid"], signer.kid)
        public = Ed25519PublicKey.from_public_bytes(from_unpadded(key["x"]))
        public.verify(from_unpadded(parts["ed25519"]), parts["t"].encode() + b"." + body)

    @pytest.mark.spec("subscriptions 6.5-4", "subscriptions 6.5-6")
    def test_the_id_is_the_thumbprint_of_the_key(self, clock):
        [key] = json.loads(WebhookSigner(KeyStore(None, clock), clock).jwks())["keys"]
        members = {name: key[name] for name in ("crv", "kty", "x")}
        text = json.dumps(members, separators=(",", ":"), sort_keys=True)
        digest = hashlib.sha256(text.encode()).digest()
        assert key["kid"] == "ds_" + base64.urlsafe_b64encode(digest).decode().rstrip("=")

    @pytest.mark.spec("subscriptions 6.5-9")
    def test_the_first_key_signs_and_all_are_published(self, path, clock):
        old = WebhookSigner(KeyStore(path, clock), clock).kid
        file = json.loads(path.read_text())
        file["signing_keys"].insert(0, unpadded(bytes(range(32))))
        path.write_text(json.dumps(file))
        signer = WebhookSigner(KeyStore(path, clock), clock)
        assert [each["kid"] for each in json.loads(signer.jwks())["keys"]] == [signer.kid, old]
        assert f"kid={signer.kid}," in signer.signature(b"")


class TestTokens:
    @pytest.mark.spec("subscriptions 12.9-2")
    def test_tell_their_generation_after_a_restart_too(self, path, clock):
        token = WakeTokens(KeyStore(path, clock), clock).make(subscription())
        assert WakeTokens(KeyStore(path, clock), clock).generation(token, subscription()) == 3

    @pytest.mark.spec("subscriptions 7.1-7", "subscriptions 12.9-2")
    @pytest.mark.parametrize("other", [{"id": "other"}, {"incarnation": 2}])
    def test_are_for_one_subscription(self, clock, other):
        tokens = WakeTokens(KeyStore(None, clock), clock)
        with pytest.raises(WakeTokenInvalidError):
            tokens.generation(tokens.make(subscription()), subscription(**other))

    @pytest.mark.spec("subscriptions 12.9-2")
    def test_expire(self, clock):
        tokens = WakeTokens(KeyStore(None, clock), clock)
        token = tokens.make(subscription())
        clock.advance(TOKEN_LIFETIME_MS / 1000 + 2)
        with pytest.raises(WakeTokenExpiredError):
            tokens.generation(token, subscription())

    @pytest.mark.spec("subscriptions 12.9-2", "subscriptions 12.9-3")
    def test_cannot_be_made_up(self, clock):
        tokens = WakeTokens(KeyStore(None, clock), clock)
        payload, signature = tokens.make(subscription()).split(".")
        foreign = WakeTokens(KeyStore(None, FakeClock(seed=1)), clock).make(subscription())
        forged = json.loads(from_unpadded(payload)) | {"gen": 4}
        for token in (
            "",
            ".",
            "x",
            "ä.ö",
            payload,
            f"{payload}.",
            f"{payload}.{signature[:-2]}",
            f"{unpadded(json.dumps(forged).encode())}.{signature}",
            foreign,
        ):
            with pytest.raises(WakeTokenInvalidError):
                tokens.generation(token, subscription())
