"""What is said about a store that cannot be used: which setting to change, and never a secret."""

import socket

import pytest

from holdfast.errors import (
    ObjectMissingError,
    SettingsError,
    StoreError,
    UnavailableError,
    UnknownFormatError,
)
from holdfast.objects.bucket_objects import explained
from holdfast.objects.store import MARKER, ObjectStore
from holdfast.settings import StorageSettings
from holdfast.storage.open_objects import claim, open_objects, open_ranges, probe
from tests.storage.canned_s3 import CannedS3, error_body
from tests.storage.stores import contents

KEYS = {"s3_access_key_id": "the-key-id", "s3_secret_access_key": "the-secret-key"}


@pytest.fixture
def canned():
    server = CannedS3()
    yield server
    server.close()


def opened(tmp_path, **settings) -> ObjectStore:
    return open_objects(StorageSettings(**settings), tmp_path / "objects")


def refusal(tmp_path, **settings) -> str:
    """What the start says about settings that cannot work."""
    with pytest.raises(SettingsError) as caught:
        probe(opened(tmp_path, **settings))
    message = caught.value.message
    assert "\n" not in message
    assert "the-secret-key" not in message
    assert "AKIA-SECRET" not in message
    return message


def no_answer(tmp_path, **settings) -> StoreError:
    with pytest.raises(StoreError) as caught:
        probe(opened(tmp_path, **settings))
    assert "\n" not in caught.value.message
    assert caught.value.advice == ""
    return caught.value


class TestProbe:
    def test_usable_store_keeps_no_trace(self, store):
        probe(store)
        assert contents(store) == {}

    def test_opening_writes_nothing(self, tmp_path):
        opened(tmp_path)
        open_ranges(StorageSettings(), tmp_path / "objects")
        assert list(tmp_path.iterdir()) == []


class TestS3:
    def test_missing_bucket(self, tmp_path, moto):
        message = refusal(tmp_path, **moto.settings("nobody-made-this"))
        assert "s3://nobody-made-this/some/prefix" in message
        assert "NoSuchBucket" in message
        assert "`store`" in message

    @pytest.mark.parametrize(
        ("status", "code"),
        [
            (403, "InvalidAccessKeyId"),
            (403, "SignatureDoesNotMatch"),
            (400, "ExpiredToken"),
            (401, "Whatever"),
        ],
    )
    def test_wrong_credentials(self, tmp_path, canned, status, code):
        canned.answer(status, error_body(code))
        message = refusal(tmp_path, store="s3://b", s3_endpoint=canned.endpoint, **KEYS)
        assert f"{code}: Words of the store." in message
        assert "s3_access_key_id" in message
        assert "AWS_ACCESS_KEY_ID" in message

    def test_credentials_that_may_not(self, tmp_path, canned):
        canned.answer(403, error_body("AccessDenied"))
        message = refusal(tmp_path, store="s3://b", s3_endpoint=canned.endpoint, **KEYS)
        assert "AccessDenied" in message
        assert "list, read, write and delete" in message

    @pytest.mark.parametrize(
        ("status", "code"), [(301, "PermanentRedirect"), (400, "AuthorizationHeaderMalformed")]
    )
    def test_wrong_region(self, tmp_path, canned, status, code):
        canned.answer(status, error_body(code))
        message = refusal(tmp_path, store="s3://b", s3_endpoint=canned.endpoint, **KEYS)
        assert "s3_region" in message

    def test_server_that_is_no_s3(self, tmp_path, canned):
        for status, body in ((200, "<html>hello</html>"), (404, "<html>nothing here</html>")):
            canned.answer(status, body)
            message = refusal(tmp_path, store="s3://b", s3_endpoint=canned.endpoint, **KEYS)
            assert "s3_endpoint" in message

    def test_https_where_there_is_none(self, tmp_path, canned):
        endpoint = canned.endpoint.replace("http:", "https:")
        message = refusal(tmp_path, store="s3://b", s3_endpoint=endpoint, **KEYS)
        assert "does not speak TLS" in message
        assert "s3_endpoint" in message

    def test_endpoint_in_the_environment_that_is_none(self, tmp_path, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
        message = refusal(tmp_path, store="s3://b", **KEYS)
        assert message.startswith("AWS_ENDPOINT_URL: expected http://")

    def test_no_credentials(self, tmp_path, canned):
        message = refusal(tmp_path, store="s3://b", s3_endpoint=canned.endpoint)
        assert "no credentials" in message
        assert "s3_secret_access_key" in message
        assert "AWS_SECRET_ACCESS_KEY" in message
        assert canned.requests == []

    @pytest.mark.slow
    def test_no_credentials_where_the_metadata_service_is_silent(
        self, tmp_path, canned, monkeypatch
    ):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            monkeypatch.setenv(
                "AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}"
            )
            message = refusal(tmp_path, store="s3://b", s3_endpoint=canned.endpoint)
        assert "no credentials" in message
        assert "AWS_SECRET_ACCESS_KEY" in message

    def test_half_a_key_in_the_environment(self, tmp_path, monkeypatch):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "alone")
        for open_it in (open_objects, open_ranges):
            with pytest.raises(SettingsError, match="AWS_SECRET_ACCESS_KEY"):
                open_it(StorageSettings(store="s3://b"), tmp_path)


class TestS3ThatMayComeBack:
    def test_refused_connection(self, tmp_path, moto):
        with moto.outage():
            error = no_answer(tmp_path, **moto.settings("any"))
        assert "connection is refused" in error.message
        assert "s3://any/some/prefix" in error.message
        assert error.retryable
        assert isinstance(error, UnavailableError)

    @pytest.mark.slow
    def test_silence(self, tmp_path):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
            error = no_answer(tmp_path, store="s3://b", s3_endpoint=endpoint, **KEYS)
        assert "does not respond in time" in error.message

    @pytest.mark.slow
    def test_busy_store(self, tmp_path, canned):
        canned.answer(503, error_body("SlowDown"))
        error = no_answer(tmp_path, store="s3://b", s3_endpoint=canned.endpoint, **KEYS)
        assert "SlowDown: Words of the store." in error.message
        assert len(canned.requests) > 1

    def test_bucket_that_went_away_is_not_a_missing_object(self, tmp_path, moto):
        store = opened(tmp_path, **moto.settings("went-away"))
        for call in (
            lambda: store.read("packs/a", 0, 10),
            lambda: store.put("packs/a", b""),
            lambda: store.put_parts("packs/a", [b""]),
            lambda: store.remove("packs/a"),
        ):
            with pytest.raises(StoreError, match="NoSuchBucket"):
                call()


class TestDirectory:
    def test_path_below_a_file(self, tmp_path):
        (tmp_path / "file").write_text("")
        message = refusal(tmp_path, store=str(tmp_path / "file" / "objects"))
        assert "Not a directory" in message
        assert "`store`" in message

    def test_file_in_its_place(self, tmp_path):
        (tmp_path / "objects").write_text("")
        message = refusal(tmp_path)
        assert str(tmp_path / "objects") in message

    def test_directory_that_cannot_be_made(self, tmp_path):
        message = refusal(tmp_path, store="/proc/self/holdfast-objects")
        assert "`store`" in message


class TestOtherClouds:
    def test_azure_needs_an_account(self, tmp_path):
        message = refusal(tmp_path, store="az://container/prefix")
        assert "AZURE_STORAGE_ACCOUNT_NAME" in message

    def test_google_needs_its_key_file(self, tmp_path, monkeypatch):
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
        message = refusal(tmp_path, store="gs://bucket")
        assert "none.json" in message
        assert "GOOGLE_APPLICATION_CREDENTIALS" in message


class TestClaim:
    def test_first_claim_stays(self, store):
        assert claim(store, "0a1b") == "0a1b"
        assert claim(store, "ffff") == "0a1b"
        assert contents(store) == {MARKER: b'{"format":1,"id":"0a1b"}'}

    def test_slower_one_learns_whose_it_is(self, store):
        class Slower:
            """Sees no marker until it has tried to write one."""

            url = store.url
            reads = 0

            def read(self, name):
                self.reads += 1
                if self.reads == 1:
                    raise ObjectMissingError(name)
                return store.read(name)

            create = store.create

        claim(store, "fast")
        assert claim(Slower(), "slow") == "fast"

    @pytest.mark.parametrize(
        "text", [b'{"format": 2, "id": "0a"}', b'{"format": 2, "cells": [1]}', b'{"format":0}']
    )
    def test_unknown_format_is_refused(self, store, text):
        store.put(MARKER, text)
        with pytest.raises(UnknownFormatError) as caught:
            claim(store, "0a1b")
        assert store.url in caught.value.message
        assert contents(store) == {MARKER: text}

    @pytest.mark.parametrize("text", [b"", b"hello", b"[]", b'{"format": "1"}', b'{"format": 1}'])
    def test_what_is_no_marker_is_refused(self, store, text):
        store.put(MARKER, text)
        with pytest.raises(UnknownFormatError, match="not a marker"):
            claim(store, "0a1b")


def test_addresses_and_signatures_are_left_out():
    error = OSError(
        "Generic MicrosoftAzure error: something odd happened for "
        "https://a.blob.core.windows.net/c/x?sig=SECRET&se=1 (Custom\n  { kind: Other })"
    )
    found = explained(error, "az://c", "packs/1")
    assert found.message == (
        "The object store az://c fails at 'packs/1': "
        "something odd happened for … (Custom { kind: Other })."
    )


def test_long_reasons_are_cut():
    found = explained(OSError("x" * 10_000), "s3://b", "packs/1")
    assert len(found.message) < 300


def test_unknown_host_is_no_mistake_in_the_settings():
    error = OSError(
        "Generic S3 error: Error performing GET http://h/b in 207ms - HTTP error: error sending\n\n"
        'Debug source:\nGeneric { inner: Http( kind: Connect, ConnectError("dns error", …'
    )
    found = explained(error, "s3://b", "")
    assert isinstance(found, StoreError)
    assert found.message == "The object store s3://b fails: its host name is not known."
    assert found.advice == ""
