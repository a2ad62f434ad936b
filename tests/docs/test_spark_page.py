"""docs/spark.md names every option, column and job, and nothing else."""

import re

from holdfast.spark.jobs import JOBS
from tools.coverage_page import ROOT

PAGE = (ROOT / "docs/spark.md").read_text()


def section(title: str) -> str:
    (found,) = re.findall(rf"^## {title}\n(.+?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return found


def first_column(text: str) -> set[str]:
    rows = re.findall(r"^\| (`.+?`(?:[,;] `.+?`)*)[ ,…]* \|", text, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_every_option_of_a_read_is_in_its_table() -> None:
    from holdfast.spark.reading.arrow import COLUMN_NAMES
    from holdfast.spark.reading.source import READ_OPTIONS

    assert first_column(section("Read")) == {*READ_OPTIONS, *COLUMN_NAMES}


def test_every_option_of_a_write_is_in_its_table() -> None:
    from holdfast.spark.connection import CONNECTION_OPTIONS
    from holdfast.spark.writing.options import WRITE_OPTIONS

    documented = first_column(section("Write"))
    assert documented | set(CONNECTION_OPTIONS) == set(WRITE_OPTIONS)


def test_every_job_has_a_paragraph() -> None:
    assert set(re.findall(r"^\*\*(\w+)\*\* ", section("Jobs"), re.MULTILINE)) == set(JOBS)


# Spark's Structured Streaming + Kafka Integration Guide.
KAFKA = """
kafka.bootstrap.servers assign subscribe subscribePattern startingTimestamp endingTimestamp
startingOffsetsByTimestamp startingOffsets endingOffsetsByTimestamp endingOffsets failOnDataLoss
kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs maxOffsetsPerTrigger
minOffsetsPerTrigger maxTriggerDelay minPartitions maxRecordsPerPartition groupIdPrefix
kafka.group.id includeHeaders startingOffsetsByTimestampStrategy topic
"""


def test_every_option_of_the_kafka_connector_has_a_row_and_ours_exist() -> None:
    from holdfast.spark.reading.arrow import COLUMN_NAMES
    from holdfast.spark.reading.source import READ_OPTIONS
    from holdfast.spark.writing.options import WRITE_OPTIONS

    rows = re.findall(r"^\| (.+?) \| (.+?) \|", section("Coming from Kafka"), re.MULTILINE)
    theirs = {name for row in rows for name in re.findall(r"`([\w.*]+)`", row[0])}
    assert set(KAFKA.split()) - theirs == set()
    ours = {name for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert ours - {*READ_OPTIONS, *WRITE_OPTIONS, *COLUMN_NAMES} == set()
