"""Connections, and requests that have to be repeated as a whole."""

from collections.abc import AsyncIterator

import pytest

from holdfast.client import Client
from holdfast.client.auth import shared_tls
from holdfast.errors import HoldfastError, SettingsError, UnavailableError
from holdfast.spark.connection import SparkClient, SparkConnection


class Breaking:
    """Lines of which the first attempts give only a part."""

    def __init__(self, failures: int, error: HoldfastError) -> None:
        self._failures = failures
        self._error = error

    async def lines(self, _: Client) -> AsyncIterator[int]:
        yield 1
        if self._failures:
            self._failures -= 1
            raise self._error
        yield 2


@pytest.mark.slow
def test_lines_that_break_off_are_asked_for_again() -> None:
    broken = UnavailableError("away for a moment")
    with SparkClient(SparkConnection(retries=2)) as server:
        assert server.collect(Breaking(2, broken).lines) == [1, 2]
        with pytest.raises(UnavailableError):
            server.collect(Breaking(3, broken).lines)
        with pytest.raises(SettingsError):
            server.collect(Breaking(1, SettingsError("no use")).lines)


def test_a_password_in_the_url_is_not_shown() -> None:
    found = SparkConnection("http://me:secret@127.0.0.1:9/")
    assert "secret" not in repr(found)
    assert (found.url, found.username, found.password) == ("http://127.0.0.1:9", "me", "secret")
    assert SparkConnection("http://me:secret@host", token="t").username == ""
    with pytest.raises(HoldfastError, match="not a server's URL") as caught:
        SparkConnection("ftp://me:secret@host")
    assert "secret" not in caught.value.message


def test_certificates_are_read_once() -> None:
    assert shared_tls("") is shared_tls("")
