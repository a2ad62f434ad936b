"""The settings of the object store: which addresses are accepted, and what must go together."""

import pytest

from holdfast.errors import SettingsError
from holdfast.settings import load_settings, resolve_settings


def storage(**flags):
    return load_settings(file=None, env={}, flags=flags).storage


def error(**flags):
    with pytest.raises(SettingsError) as caught:
        storage(**flags)
    return caught.value.message


@pytest.mark.parametrize(
    "store",
    [
        "",
        "objects",
        "../objects",
        "/var/lib/objects",
        "~/objects",
        "file:///var/lib/objects",
        "s3://bucket",
        "s3://bucket/some/prefix",
        "gs://my_bucket.example/prefix",
        "az://container/prefix",
    ],
)
def test_stores_that_are_accepted(store):
    assert storage(store=store).store == store


def test_closing_slash_is_dropped():
    assert storage(store="s3://bucket/prefix/").store == "s3://bucket/prefix"
    assert storage(s3_endpoint="http://h:9000/").s3_endpoint == "http://h:9000"


@pytest.mark.parametrize(
    "store",
    [
        "http://host/bucket",
        "S3:bucket",
        "s3:/bucket",
        "s3://",
        "s3:///prefix",
        "s3://key:secret@bucket/prefix",
        "s3://bucket/prefix?versionId=1",
        "s3://bucket/prefix#part",
        "s3://bucket/two words",
        "s3://bucket/a/../b",
        "s3://bucket/a/..",
        "s3://bucket//a",
        "file://host/path",
        "file:objects",
    ],
)
def test_stores_that_are_refused(store):
    message = error(store=store)
    assert "--store: expected a path" in message
    assert "s3://bucket/prefix" in message


@pytest.mark.parametrize(
    "endpoint",
    ["http://127.0.0.1:9000", "https://minio.example", "http://[::1]:9000", "http://h/s3"],
)
def test_endpoints_that_are_accepted(endpoint):
    assert storage(s3_endpoint=endpoint).s3_endpoint == endpoint


@pytest.mark.parametrize(
    "endpoint",
    [
        "localhost:9000",
        "ftp://host",
        "http://",
        "http://:9000",
        "http://host:99999",
        "http://host:port",
        "http://user:password@host",
        "http://two words",
        "http://host?x=1",
        "http://[::1",
    ],
)
def test_endpoints_that_are_refused(endpoint):
    assert "--s3-endpoint: expected http://HOST" in error(s3_endpoint=endpoint)


def test_limits_must_be_in_order():
    assert "hot_bytes_soft must not exceed" in error(hot_bytes_soft=2, hot_bytes_hard=1)
    assert storage(hot_bytes_soft=2, hot_bytes_hard=2).hot_bytes_soft == 2


@pytest.mark.parametrize(
    ("flags", "missing"),
    [
        ({"s3_access_key_id": "k"}, "s3_secret_access_key"),
        ({"s3_secret_access_key": "s"}, "s3_access_key_id"),
        ({"s3_session_token": "t"}, "s3_access_key_id"),
    ],
)
def test_half_a_key_is_refused(flags, missing):
    assert f"{missing}" in error(**flags)


def test_nothing_may_wait_for_garbage():
    assert storage(garbage_grace=0).garbage_grace_s == 0
    assert "≥ 0" in error(garbage_grace=-1)


def test_secrets_are_not_shown():
    flags = {"s3_access_key_id": "k", "s3_secret_access_key": "s", "s3_session_token": "t"}
    shown = {
        each.setting.name: each.shown
        for each in resolve_settings(file=None, env={}, flags=flags)
        if each.setting.name in flags
    }
    assert shown == {
        "s3_access_key_id": "k",
        "s3_secret_access_key": "********",
        "s3_session_token": "********",
    }


def test_secrets_come_from_variables(tmp_path):
    file = tmp_path / "holdfast.toml"
    file.write_text(
        'version = 1\n[storage]\ns3_access_key_id = "k"\ns3_secret_access_key = "$MY_SECRET"\n'
    )
    settings = load_settings(file=file, env={"MY_SECRET": "s"}, flags={})
    assert settings.storage.s3_secret_access_key == "s"
    with pytest.raises(SettingsError, match="MY_SECRET is not set"):
        load_settings(file=file, env={}, flags={})
