"""docs/jobs.md is what the jobs declare, and docs/cli.md says how they are run."""

import re

import pytest

from holdfast.cli.main import app
from holdfast.cli.option_pages import jobs_page
from holdfast.spark.connection import SparkConnection
from holdfast.spark.jobs import JOBS
from holdfast.spark.jobs.run_file import load_run_file
from tools.coverage_page import ROOT

PAGE = (ROOT / "docs/jobs.md").read_text()
CLI = (ROOT / "docs/cli.md").read_text()
SECTION = CLI.split("\n## holdfast pipeline\n")[1].partition("\n## ")[0]
SERVER = CLI[CLI.index("## Which server") : CLI.index("### The contexts file")]


def flags_of(name):
    arguments = app["pipeline"][name].assemble_argument_collection(parse_docstring=False)
    return {flag for each in arguments for flag in each.names if flag.startswith("--")}


def test_the_page_is_up_to_date():
    assert jobs_page() == PAGE, "run `make docs`"


@pytest.mark.parametrize("name", sorted(JOBS))
def test_every_flag_of_a_job_is_documented(name):
    (section,) = re.findall(rf"^## {name}$(.+?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    documented = set(re.findall(r"`(--[a-z-]+)", section + SECTION + SERVER))
    assert flags_of(name) - documented == set()


def test_every_flag_of_run_is_documented():
    assert flags_of("run") - set(re.findall(r"`(--[a-z-]+)", SECTION)) == set()


def test_every_job_is_in_the_section():
    assert [name for name in (*sorted(JOBS), "run") if f"`{name}`" not in SECTION] == []


def test_the_file_of_the_page_is_a_good_one(tmp_path):
    (text,) = re.findall(r"```toml\n(.+?)```", SECTION, re.DOTALL)
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    assert load_run_file(path, {"HOLDFAST_TOKEN": "t"}, SparkConnection()).has_schedule
