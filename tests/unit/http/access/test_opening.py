"""A server that everybody can reach says so."""

import logging

import pytest

from holdfast.http.access.gate import warn_if_open
from holdfast.settings import load_settings


@pytest.fixture(autouse=True)
def _warnings_are_heard(caplog):
    # Whatever level another test has set for the whole process.
    caplog.set_level(logging.WARNING)


def settings(listen, **flags):
    return load_settings(file=None, env={}, flags={"listen": listen, **flags})


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:4437", "[::]:4437", "192.168.1.5:80", "8.8.8.8:80", "streams.example:80"]
)
def test_an_open_server_is_told_apart_from_afar(listen, caplog):
    assert warn_if_open(settings(listen))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    message = record.getMessage()
    assert message.count("\n") > 5
    assert "THIS SERVER IS OPEN" in message
    assert listen in message
    assert "--access-tokens-file" in message


@pytest.mark.parametrize("listen", ["127.0.0.1:4437", "127.8.8.8:1", "[::1]:4437", "localhost:0"])
def test_loopback_is_nobody_else_s(listen, caplog):
    assert not warn_if_open(settings(listen))
    assert not caplog.records


def test_with_access_control_all_is_well(caplog):
    assert not warn_if_open(settings("0.0.0.0:4437", access_jwt_secret="x" * 32))
    assert not caplog.records
