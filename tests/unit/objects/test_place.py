"""Places: what can be one, what it shows, and that it can be sent to workers."""

import pickle

import pytest

from holdfast.errors import SettingsError
from holdfast.objects.place import StorePlace

PLACE = StorePlace(
    "s3://bucket/prefix",
    endpoint="http://127.0.0.1:9000",
    region="eu-west-1",
    addressing="path",
    access_key_id="the-key-id",
    secret_access_key="the-secret",
    session_token="the-token",
)


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
    assert StorePlace(url).checked() == StorePlace(url)


def test_slashes_at_the_end_are_dropped():
    place = StorePlace("s3://bucket/a/", endpoint="https://host/").checked()
    assert (place.url, place.endpoint) == ("s3://bucket/a", "https://host")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (StorePlace(""), "store: expected a path or a URL, got nothing"),
        (StorePlace("ftp://host/a"), "store: expected a path, file:///path, s3://bucket/prefix"),
        (StorePlace("s3://bucket/../a"), "store: expected a path"),
        (StorePlace("s3://b", endpoint="host:9000"), "s3_endpoint: expected http://HOST"),
        (StorePlace("s3://b", access_key_id="a"), "needs its id and its secret"),
        (StorePlace("s3://b", secret_access_key="hidden"), "needs its id and its secret"),
        (StorePlace("s3://b", session_token="hidden"), "needs the access key"),
    ],
)
def test_what_is_no_place(place, words):
    with pytest.raises(SettingsError) as caught:
        place.checked()
    assert words in caught.value.message
    assert "hidden" not in caught.value.message
