"""Store locations: which are valid, what they show, and which store each opens."""

import os
import pickle

import pytest

from holdfast.errors import SettingsError
from holdfast.objects.bucket_objects import ObstoreObjects
from holdfast.objects.directory_objects import DirectoryObjects
from holdfast.objects.locations import StoreLocation, open_store

NOT_UTF8 = os.fsdecode(b"\xff")
KEYS = {"access_key_id": "the-key-id", "secret_access_key": "the-secret"}
PLACE = StoreLocation(
    "s3://bucket/prefix",
    endpoint="http://127.0.0.1:9000",
    region="eu-west-1",
    addressing="path",
    access_key_id="the-key-id",
    secret_access_key="the-secret",
    session_token="the-token",
)


@pytest.fixture(autouse=True)
def no_endpoint(monkeypatch):
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


def test_path(tmp_path):
    store = open_store(StoreLocation(str(tmp_path / "objects")))
    assert isinstance(store, DirectoryObjects)
    assert store.root == tmp_path / "objects"
    assert not store.root.exists()


def test_path_in_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_store(StoreLocation("~/objects")).root == tmp_path / "objects"


@pytest.mark.parametrize("name", ["objects", "with space", "grün", "50%25", "a#b?c", NOT_UTF8])
def test_file_url_of_any_name(tmp_path, name):
    place = StoreLocation((tmp_path / name).as_uri())
    assert open_store(place).root == tmp_path / name


def test_bucket():
    store = open_store(StoreLocation("s3://bucket/prefix/", endpoint="http://127.0.0.1:9", **KEYS))
    assert isinstance(store, ObstoreObjects)
    assert store.url == "s3://bucket/prefix"


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "http://", "http://host:0", "ftp://host"])
def test_endpoint_that_is_none(endpoint):
    with pytest.raises(SettingsError, match="s3_endpoint: expected http://HOST"):
        open_store(StoreLocation("s3://bucket", endpoint=endpoint, **KEYS))


def test_endpoint_of_the_environment_that_is_none(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "host:9000")
    with pytest.raises(SettingsError, match="AWS_ENDPOINT_URL: expected http://HOST"):
        open_store(StoreLocation("s3://bucket", **KEYS))


def test_url_of_another_kind():
    with pytest.raises(SettingsError, match="store: expected a path"):
        open_store(StoreLocation("https://bucket.example.com"))


def test_secrets_are_not_shown():
    assert "s3://bucket/prefix" in repr(PLACE)
    assert "the-secret" not in repr(PLACE)
    assert "the-token" not in repr(PLACE)


def test_it_can_be_sent_to_another_process():
    assert pickle.loads(pickle.dumps(PLACE)) == PLACE


@pytest.mark.parametrize(
    "url", ["/data/objects", "objects", "file:///data/a%20b", "gs://b", "az://c/p"]
)
def test_places(url):
    assert StoreLocation(url).checked() == StoreLocation(url)


def test_slashes_at_the_end_are_dropped():
    place = StoreLocation("s3://bucket/a/", endpoint="https://host/").checked()
    assert (place.url, place.endpoint) == ("s3://bucket/a", "https://host")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (StoreLocation(""), "store: expected a path or a URL, got nothing"),
        (StoreLocation("ftp://host/a"), "store: expected a path, file:///path, s3://bucket/prefix"),
        (StoreLocation("s3://bucket/../a"), "store: expected a path"),
        (StoreLocation("s3://b", endpoint="host:9000"), "s3_endpoint: expected http://HOST"),
        (StoreLocation("s3://b", access_key_id="a"), "needs its id and its secret"),
        (StoreLocation("s3://b", secret_access_key="hidden"), "needs its id and its secret"),
        (StoreLocation("s3://b", session_token="hidden"), "needs the access key"),
    ],
)
def test_what_is_no_place(place, words):
    with pytest.raises(SettingsError) as caught:
        place.checked()
    assert words in caught.value.message
    assert "hidden" not in caught.value.message
