"""Opening a store by its place; nothing is asked of it."""

import os

import pytest

from holdfast.errors import SettingsError
from holdfast.objects.directory_objects import DirectoryObjects
from holdfast.objects.obstore_objects import ObstoreObjects
from holdfast.objects.opening import open_store
from holdfast.objects.place import StorePlace

NOT_UTF8 = os.fsdecode(b"\xff")
KEYS = {"access_key_id": "the-key-id", "secret_access_key": "the-secret"}


@pytest.fixture(autouse=True)
def no_endpoint(monkeypatch):
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


def test_path(tmp_path):
    store = open_store(StorePlace(str(tmp_path / "objects")))
    assert isinstance(store, DirectoryObjects)
    assert store.root == tmp_path / "objects"
    assert not store.root.exists()


def test_path_in_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_store(StorePlace("~/objects")).root == tmp_path / "objects"


@pytest.mark.parametrize("name", ["objects", "with space", "grün", "50%25", "a#b?c", NOT_UTF8])
def test_file_url_of_any_name(tmp_path, name):
    place = StorePlace((tmp_path / name).as_uri())
    assert open_store(place).root == tmp_path / name


def test_bucket():
    store = open_store(StorePlace("s3://bucket/prefix/", endpoint="http://127.0.0.1:9", **KEYS))
    assert isinstance(store, ObstoreObjects)
    assert store.url == "s3://bucket/prefix"


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "http://", "http://host:0", "ftp://host"])
def test_endpoint_that_is_none(endpoint):
    with pytest.raises(SettingsError, match="s3_endpoint: expected http://HOST"):
        open_store(StorePlace("s3://bucket", endpoint=endpoint, **KEYS))


def test_endpoint_of_the_environment_that_is_none(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "host:9000")
    with pytest.raises(SettingsError, match="AWS_ENDPOINT_URL: expected http://HOST"):
        open_store(StorePlace("s3://bucket", **KEYS))


def test_url_of_another_kind():
    with pytest.raises(SettingsError, match="store: expected a path"):
        open_store(StorePlace("https://bucket.example.com"))
