"""How a job's options are declared, and what is said of wrong ones."""

import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from holdfast.errors import SettingsError
from holdfast.spark.connection import SparkConnection
from holdfast.spark.jobs import JOBS, job_class
from holdfast.spark.jobs.options import make, option, options_of, server_option


@dataclass(frozen=True, kw_only=True)
class Sample:
    bucket: str = option("The bucket.")
    to: str = option("The place.", "here", path=True)
    kind: Literal["one", "two"] = option("Which.", "one")
    limit: int | None = option("How many.", None)
    share: float = option("How much.", 0.5)
    overwrite: bool = option("Whether.", False)
    tables: list[str] = option("Tables.", [], flag="table")
    types: dict[str, str] = option("Types.", {})
    server: SparkConnection = server_option()

    def __post_init__(self):
        if self.limit is not None and self.limit < 1:
            raise SettingsError("'limit' is a number from 1 on.")


def test_python_makes_a_job_as_any_dataclass():
    job = Sample(bucket="events")
    assert (job.to, job.tables, job.types, job.server) == ("here", [], {}, SparkConnection())


def test_defaults_that_can_change_are_not_shared():
    Sample(bucket="a").tables.append("x")
    assert Sample(bucket="a").tables == []


def test_options_say_what_was_declared():
    options = {each.name: each for each in options_of(Sample)}
    assert options["bucket"].required
    assert not options["to"].required
    assert options["to"].path
    assert options["tables"].flag == "table"
    assert options["limit"].flag == "limit"
    assert options["limit"].kind is int
    assert options["types"].kind is dict
    assert options["server"].is_server


def test_values_by_name_make_the_same_job():
    values = {
        "bucket": "events",
        "kind": "two",
        "limit": 3,
        "share": 1,
        "overwrite": True,
        "tables": ["a", "b"],
        "types": {"id": "bigint"},
    }
    assert make(Sample, values) == Sample(**values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "'bucket' is needed: The bucket."),
        ({"bucket": 1}, "'bucket' is text, not 1."),
        ({"bucket": "a", "buckett": 1}, "There is no 'buckett' here; did you mean 'bucket'?"),
        ({"bucket": "a", "zzz": 1}, "There is no 'zzz' here; there are bucket, kind,"),
        ({"bucket": "a", "kind": "three"}, "'kind' is one of 'one', 'two', not 'three'."),
        ({"bucket": "a", "limit": "3"}, "'limit' is a whole number, not '3'."),
        ({"bucket": "a", "limit": 0}, "'limit' is a number from 1 on."),
        ({"bucket": "a", "share": "x"}, "'share' is a number, not 'x'."),
        ({"bucket": "a", "overwrite": "yes"}, "'overwrite' is true or false, not 'yes'."),
        ({"bucket": "a", "tables": "x"}, "'tables' is a list of texts, not 'x'."),
        ({"bucket": "a", "types": {"a": 1}}, "'types' is a table of texts, not {'a': 1}."),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(values, said):
    with pytest.raises(SettingsError) as caught:
        make(Sample, values)
    assert caught.value.message.startswith(said)


def test_a_job_that_does_not_exist():
    with pytest.raises(SettingsError, match="There is no job 'arkive'; there are archive, "):
        job_class("arkive")


@pytest.mark.parametrize("name", sorted(JOBS))
def test_every_job_declares_its_options_with_help(name):
    for each in options_of(job_class(name)):
        assert each.help.endswith((".", ")")), each.name
        known = {str, int, float, bool, list, dict, Literal, Any, SparkConnection}
        assert each.kind in known, each.name
    assert (job_class(name).__doc__ or "").strip()


@pytest.mark.parametrize("name", sorted(JOBS))
def test_a_job_is_declared_without_loading_spark(name):
    heavy = {"pyspark", "pyarrow", "numpy", "pandas", "deltalake", "pyiceberg"}
    script = f"import sys, holdfast.spark.jobs.{name}; print(*{heavy} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


# What every job takes besides its options.
COMMON = {"master", "remote", "conf", "traceback", "json", "quiet"}
COMMON |= {"url", "context", "token", "ca-file", "retries"}


@pytest.mark.parametrize("name", sorted(JOBS))
def test_no_option_is_hidden_by_a_flag_that_every_job_has(name):
    flags = {(each.flag or each.name).replace("_", "-") for each in options_of(job_class(name))}
    assert flags & COMMON == set()
