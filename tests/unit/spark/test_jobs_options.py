"""How a job's options are declared, and what is said of wrong ones."""

import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from holdfast.errors import SettingsError
from holdfast.settings.options import build, option, options_of
from holdfast.spark.connection import SparkConnection
from holdfast.spark.jobs import JOBS, job_class
from holdfast.spark.jobs.options import is_server, server_option


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
    options = {each.key: each for each in options_of(Sample)}
    assert options["bucket"].required
    assert not options["to"].required
    assert options["to"].path
    assert options["tables"].flag == "--table"
    assert options["limit"].flag == "--limit"
    assert options["limit"].kind is int
    assert options["types"].kind is dict
    assert is_server(options["server"])


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
    assert build(Sample, values) == Sample(**values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "'bucket' is required: The bucket."),
        ({"bucket": 1}, "'bucket': expected text, got 1"),
        ({"bucket": "a", "buckett": 1}, "unknown option 'buckett'; did you mean bucket?"),
        ({"bucket": "a", "zzz": 1}, "unknown option 'zzz'; expected one of bucket, kind,"),
        ({"bucket": "a", "kind": "three"}, "'kind': expected \"one\" or \"two\", got 'three'"),
        ({"bucket": "a", "limit": "3"}, "'limit': expected an integer, got '3'"),
        ({"bucket": "a", "limit": 0}, "'limit' is a number from 1 on."),
        ({"bucket": "a", "share": "x"}, "'share': expected a number, got 'x'"),
        ({"bucket": "a", "overwrite": "yes"}, "'overwrite': expected true or false, got 'yes'"),
        ({"bucket": "a", "tables": "x"}, "'tables': expected a list, got 'x'"),
        ({"bucket": "a", "types": {"a": 1}}, "'types': expected a table, got {'a': 1}"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(values, said):
    with pytest.raises(SettingsError) as caught:
        build(Sample, values)
    assert caught.value.message.startswith(said)


def test_a_job_that_does_not_exist():
    with pytest.raises(SettingsError, match="There is no job 'arkive'; there are archive, "):
        job_class("arkive")


@pytest.mark.parametrize("name", sorted(JOBS))
def test_every_job_declares_its_options_with_help(name):
    for each in options_of(job_class(name)):
        assert each.help.endswith((".", ")")), each.key
        known = {str, int, float, bool, list, dict, Literal, Any, SparkConnection}
        assert each.kind in known, each.key
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
    flags = {each.flag.removeprefix("--") for each in options_of(job_class(name))}
    assert flags & COMMON == set()
