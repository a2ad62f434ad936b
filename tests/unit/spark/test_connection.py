"""What drivers and executors do before anything is sent, and when it has to be sent again."""

from collections.abc import AsyncIterator

import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from holdfast.client import Client
from holdfast.errors import HoldfastError, SettingsError, UnavailableError
from holdfast.spark.connection import Options, SparkClient, SparkConnection
from holdfast.spark.reading.selection import parse_bound
from holdfast.spark.writing.options import WriteColumns


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


def test_lines_that_break_off_are_asked_for_again() -> None:
    broken = UnavailableError("away for a moment")
    with SparkClient(SparkConnection(retries=2)) as server:
        assert server.collect(Breaking(2, broken).lines) == [1, 2]
        with pytest.raises(UnavailableError):
            server.collect(Breaking(3, broken).lines)
        with pytest.raises(SettingsError):
            server.collect(Breaking(1, SettingsError("no use")).lines)


def test_an_offset_that_cannot_be_one() -> None:
    options = Options({"startingOffsets": '{"a": "99999999999999999999"}'}, ["startingOffsets"])
    with pytest.raises(SettingsError, match="'startingOffsets' is"):
        parse_bound(options, "startingOffsets", "earliest")


def test_a_password_in_the_url_is_not_shown() -> None:
    found = SparkConnection("http://me:secret@127.0.0.1:9/")
    assert "secret" not in repr(found)
    assert (found.url, found.username, found.password) == ("http://127.0.0.1:9", "me", "secret")
    assert SparkConnection("http://me:secret@host", token="t").username == ""
    with pytest.raises(HoldfastError, match="no server's URL") as caught:
        SparkConnection("ftp://me:secret@host")
    assert "secret" not in caught.value.message


def test_two_columns_of_one_name() -> None:
    names = [("stream_id", StringType()), ("payload", BinaryType()), ("payload", BinaryType())]
    with pytest.raises(SettingsError, match="two columns of the same name"):
        WriteColumns.of(StructType([StructField(*each) for each in names]))
