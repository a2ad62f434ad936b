"""The options of a table, which travel in its schema."""

import pytest
from pyspark.sql.types import StringType, StructType

from holdfast.errors import SettingsError
from holdfast.spark.tables import given_options, insert_options, read_options, with_options

# What Spark passes when a table is created.
CREATED = {
    "provider": "holdfast",
    "owner": "root",
    "x": "a property",
    "bucket": "demo",
    "option.bucket": "demo",
    "option.columns": "stream_id,value",
    "option.contenttype": "application/json",
}
PLAIN = StructType().add("stream_id", StringType()).add("value", StringType())


def test_a_table_gets_its_options_back():
    schema = with_options(PLAIN, CREATED)
    assert given_options(CREATED) == {"bucket": "demo", "columns": "stream_id,value"}
    assert read_options({}, schema) == {"bucket": "demo", "columns": "stream_id,value"}
    assert read_options({"streams": "a"}, schema)["streams"] == "a"
    assert insert_options({}, schema) == {"bucket": "demo", "contenttype": "application/json"}
    # The writer of a query is told where its checkpoint is.
    assert insert_options({"checkpointlocation": "/there"}, schema) is not None
    assert insert_options({"bucket": "other"}, schema) is None


def test_a_schema_in_sql_has_them_in_a_comment():
    assert with_options("a STRING, b INT", {"provider": "holdfast", "option.url": "it's \\"}) == (
        """a STRING COMMENT 'holdfast options: {"url":"it\\'s \\\\\\\\"}', b INT"""
    )


def test_other_schemas_stay_as_they_are():
    given = {"bucket": "demo", "url": "http://there"}
    assert with_options(PLAIN, given) is PLAIN
    assert given_options(given) == given == read_options(given, PLAIN)
    assert insert_options(given, PLAIN) is None


def test_options_that_do_not_exist_or_do_not_come():
    with pytest.raises(SettingsError, match="did you mean 'bucket'"):
        given_options({"provider": "holdfast", "option.bukket": "demo"})
    for ask in (read_options, insert_options):
        with pytest.raises(SettingsError, match="give the option 'columns' instead"):
            ask({}, PLAIN)
