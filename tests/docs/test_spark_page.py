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
