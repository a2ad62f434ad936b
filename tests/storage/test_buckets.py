"""Buckets: what is sent where, with whose keys, and what an outage looks like."""

import asyncio
import threading
from pathlib import Path

import httpx
import obstore
import pytest
import uvloop

from holdfast.errors import StoreError
from holdfast.objects.bucket_objects import (
    AsyncRanges,
    ObstoreObjects,
    StoreTimeouts,
    bucket_connection,
)
from holdfast.objects.request_counts import counted_requests
from holdfast.settings import StorageSettings
from holdfast.storage.open_objects import open_objects, store_location
from tests.storage.canned_s3 import CannedS3
from tests.storage.stores import read_range

KEYS = {"s3_access_key_id": "the-key-id", "s3_secret_access_key": "the-secret-key"}
BRIEF = StoreTimeouts(connect_s=1, attempt_s=5, whole_s=0.3)


@pytest.fixture
def canned():
    server = CannedS3()
    yield server
    server.close()


def connection(settings):
    """How to connect to the bucket that the settings name, whatever the environment says."""
    return bucket_connection(store_location(settings, Path("/nowhere")), {})


def sent(canned, tmp_path, **settings):
    """The one request that a listing makes: its path and headers."""
    store = open_objects(StorageSettings(**settings), tmp_path)
    canned.requests.clear()
    assert list(store.list("packs/")) == []
    ((_, path, headers),) = canned.requests
    return path, headers


class TestS3Requests:
    def test_bucket_and_prefix(self, canned, tmp_path):
        settings = {"s3_endpoint": canned.endpoint, **KEYS}
        path, _ = sent(canned, tmp_path, store="s3://bucket/a/b", **settings)
        assert path == "/bucket?list-type=2&prefix=a%2Fb%2Fpacks%2F"
        path, _ = sent(canned, tmp_path, store="s3://bucket", **settings)
        assert path == "/bucket?list-type=2&prefix=packs%2F"

    def test_keys_of_the_settings_win_completely(self, canned, tmp_path, monkeypatch):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-environment")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-environment")
        monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-environment")
        _, headers = sent(
            canned, tmp_path, store="s3://bucket", s3_endpoint=canned.endpoint, **KEYS
        )
        assert "Credential=the-key-id/" in headers["authorization"]
        assert "x-amz-security-token" not in headers

    def test_session_token_of_the_settings(self, canned, tmp_path):
        settings = {"s3_endpoint": canned.endpoint, "s3_session_token": "the-token", **KEYS}
        _, headers = sent(canned, tmp_path, store="s3://bucket", **settings)
        assert headers["x-amz-security-token"] == "the-token"

    def test_keys_of_the_environment(self, canned, tmp_path, monkeypatch):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-environment")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
        _, headers = sent(canned, tmp_path, store="s3://bucket", s3_endpoint=canned.endpoint)
        assert "Credential=of-the-environment/" in headers["authorization"]
        assert headers["x-amz-security-token"] == "token"

    @pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
    def test_endpoint_of_the_environment(self, canned, tmp_path, monkeypatch, name):
        monkeypatch.setenv(name, canned.endpoint + "/")
        path, _ = sent(canned, tmp_path, store="s3://bucket", **KEYS)
        assert path.startswith("/bucket?")

    def test_endpoint_of_the_settings_wins(self, canned, tmp_path, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        sent(canned, tmp_path, store="s3://bucket", s3_endpoint=canned.endpoint, **KEYS)

    @pytest.mark.parametrize(
        ("setting", "environment", "region"),
        [
            ("", {}, "us-east-1"),
            ("", {"AWS_DEFAULT_REGION": "eu-d"}, "eu-d"),
            ("", {"AWS_DEFAULT_REGION": "eu-d", "AWS_REGION": "eu-r"}, "eu-r"),
            ("eu-s", {"AWS_DEFAULT_REGION": "eu-d", "AWS_REGION": "eu-r"}, "eu-s"),
        ],
    )
    def test_region(self, canned, tmp_path, monkeypatch, setting, environment, region):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        settings = {"s3_endpoint": canned.endpoint, "s3_region": setting, **KEYS}
        _, headers = sent(canned, tmp_path, store="s3://bucket", **settings)
        assert f"/{region}/s3/" in headers["authorization"]

    @pytest.mark.parametrize(
        ("bucket", "addressing", "endpoint", "virtual", "address"),
        [
            ("bucket", "auto", "", True, None),
            ("dotted.bucket", "auto", "", False, None),
            ("bucket", "path", "", False, None),
            ("bucket", "auto", "http://h:1", False, "http://h:1"),
            ("bucket", "virtual", "http://h:1", True, "http://bucket.h:1"),
            ("bucket", "virtual", "https://h/x", True, "https://bucket.h/x"),
        ],
    )
    def test_addressing(self, bucket, addressing, endpoint, virtual, address):
        settings = StorageSettings(
            store=f"s3://{bucket}", s3_addressing=addressing, s3_endpoint=endpoint, **KEYS
        )
        config = connection(settings)(BRIEF).config
        assert config["virtual_hosted_style_request"] == str(virtual).lower()
        assert config.get("endpoint") == address

    def test_removal_is_a_plain_delete(self, canned, tmp_path):
        settings = StorageSettings(store="s3://bucket", s3_endpoint=canned.endpoint, **KEYS)
        open_objects(settings, tmp_path).remove("packs/a")
        assert [(method, path) for method, path, _ in canned.requests] == [
            ("DELETE", "/bucket/packs/a")
        ]


class TestOtherClouds:
    def test_google(self, tmp_path, monkeypatch):
        monkeypatch.setenv(
            "GOOGLE_SERVICE_ACCOUNT_KEY",
            '{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}',
        )
        settings = StorageSettings(store="gs://bucket/a/b")
        bucket = connection(settings)(BRIEF)
        assert bucket.config["bucket"] == "bucket"
        assert bucket.prefix == "a/b"
        assert open_objects(settings, tmp_path).url == "gs://bucket/a/b"

    def test_azure(self, tmp_path, monkeypatch):
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
        settings = StorageSettings(store="az://container/a/b")
        bucket = connection(settings)(BRIEF)
        assert bucket.config["container_name"] == "container"
        assert bucket.prefix == "a/b"
        assert open_objects(settings, tmp_path).url == "az://container/a/b"


class TestUploads:
    @pytest.fixture
    def bucket(self, moto):
        return moto.new_bucket()

    @pytest.fixture
    def settings(self, moto, bucket):
        return StorageSettings(**moto.settings(bucket, ""))

    @pytest.fixture
    def store(self, settings, tmp_path):
        return open_objects(settings, tmp_path)

    @staticmethod
    def uploads_of(settings, name):
        """In how many parts S3 was sent an object, which its tag tells; 0 for none at all."""
        tag = obstore.head(connection(settings)(BRIEF), name)["e_tag"]
        return int(tag.strip('"').partition("-")[2] or 0)

    def test_put_is_one_request_however_large(self, settings, store):
        store.put("large", bytes(40 << 20))
        assert self.uploads_of(settings, "large") == 0

    def test_parts_are_of_32_mib(self, settings, store):
        store.put_parts("large", (bytes(5 << 20) for _ in range(8)))
        assert store.size("large") == 40 << 20
        assert self.uploads_of(settings, "large") == 2

    def test_upload_is_aborted_if_the_parts_raise(self, moto, bucket, store):
        def parts():
            for _ in range(40):
                yield bytes(1 << 20)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            store.put_parts("large", parts())
        uploads = httpx.get(f"{moto.endpoint}/{bucket}?uploads").text
        assert "ListMultipartUploadsResult" in uploads
        assert "<Upload>" not in uploads

    def test_requests_are_counted(self, store):
        before = counted_requests()
        store.put("packs/a", bytes(3 << 20))
        store.put_parts("packs/b", (bytes(1 << 20) for _ in range(3)))
        assert store.create("packs/a", b"other") is False
        assert len(store.read("packs/a", 10, 100)) == 100
        # Two that are close, and one that is not.
        assert len(store.read_ranges("packs/a", [(0, 10), (20, 10), (2 << 20, 10)])) == 3
        assert len(list(store.list("packs/"))) == 2
        assert store.size("packs/b") == 3 << 20
        store.remove("packs/b")
        assert counted_requests() - before == {
            "put": 1 + 3 + 1,
            "bytes_written": (6 << 20) + 5,
            "get": 1 + 2,
            "bytes_read": 100 + 30 + 10,
            "list": 1,
            "head": 1,
            "delete": 1,
        }


class TestOutage:
    def test_put_goes_on_when_the_store_is_back(self, moto, tmp_path):
        store = open_objects(StorageSettings(**moto.settings(moto.new_bucket())), tmp_path)
        store.put("packs/a", b"before")
        with moto.outage():
            upload = threading.Thread(target=store.put, args=("packs/b", b"during"))
            upload.start()
        upload.join()
        assert store.read("packs/a") == b"before"
        assert store.read("packs/b") == b"during"

    def test_everything_fails_for_now(self, moto):
        settings = StorageSettings(**moto.settings(moto.new_bucket()))
        store = ObstoreObjects(settings.store, connection(settings), BRIEF)
        store.put("packs/a", b"x")
        calls = {
            "put": lambda: store.put("packs/b", b""),
            "put_parts": lambda: store.put_parts("packs/b", [b""]),
            "create": lambda: store.create("packs/b", b""),
            "read": lambda: store.read("packs/a"),
            "read_ranges": lambda: store.read_ranges("packs/a", [(0, 1)]),
            "size": lambda: store.size("packs/a"),
            "list": lambda: list(store.list()),
            "remove": lambda: store.remove("packs/a"),
        }
        with moto.outage():
            for call in calls.values():
                with pytest.raises(StoreError, match="the connection is refused") as caught:
                    call()
                assert caught.value.advice == ""
        assert store.read("packs/a") == b"x"

    def test_ranges_give_up_and_come_back(self, moto):
        settings = StorageSettings(**moto.settings(moto.new_bucket()))
        connect = connection(settings)
        ObstoreObjects(settings.store, connect).put("packs/a", b"abc")

        async def main():
            reader = AsyncRanges(settings.store, connect, BRIEF)
            assert await read_range(reader, "packs/a", 1, 10) == b"bc"
            with moto.outage():
                answers = await asyncio.gather(
                    *(read_range(reader, "packs/a", 0, 1) for _ in range(3)),
                    return_exceptions=True,
                )
            assert [type(answer) for answer in answers] == [StoreError] * 3
            assert "packs/a" in answers[0].message
            assert await read_range(reader, "packs/a", 1, 10) == b"bc"
            reader.close()

        uvloop.run(main())
