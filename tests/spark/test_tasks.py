"""Work on the executors: one task each, results in order, errors in one piece."""

import pytest
from pyspark import TaskContext
from pyspark.errors import PythonException

from holdfast.errors import BucketNotFoundError, SparkFailedError, StoreError
from holdfast.objects.request_counts import count_request
from holdfast.spark.jobs.tasks import requests_of_tasks, run_tasks
from holdfast.spark.session import as_holdfast_error


class Shown:
    """Keeps what it is told."""

    def __init__(self):
        self.said = []
        self.advanced = 0

    def start(self, what, total=None, unit=""):
        self.said.append((what, total, unit))
        self.advanced = 0

    def advance(self, n):
        self.advanced += n

    def done(self):
        self.said.append("done")


def doubled(number):
    context = TaskContext.get()
    assert context is not None
    return number * 2, context.partitionId()


def test_every_task_is_a_task_of_spark_and_the_results_are_in_order(spark):
    assert run_tasks(spark, range(20), doubled, what="doubling") == [
        (number * 2, number) for number in range(20)
    ]


def fetched(number):
    count_request("get", size_bytes=number)


def test_requests_of_tasks_are_summed(spark):
    with requests_of_tasks() as counts:
        run_tasks(spark, [10, 20, 30], fetched, what="fetching")
    assert counts == {"get": 3, "bytes_read": 60}


def test_no_tasks_are_no_work(spark):
    assert run_tasks(spark, [], doubled, what="nothing") == []


def test_progress_is_shown(spark):
    shown = Shown()
    run_tasks(spark, range(4), slow, what="working", progress=shown)
    assert shown.said[0] == ("working", None, "tasks")
    assert shown.said[-1] == "done"
    whats = {(each[0], each[2]) for each in shown.said if each != "done"}
    assert whats == {("working", "tasks")}


def slow(number):
    from threading import Event

    Event().wait(0.3)


def failing(number):
    if number == 1:
        raise BucketNotFoundError("events")
    if number == 2:
        raise StoreError("The store is away.", "wait")
    return number


def test_our_errors_come_back_as_they_are(spark):
    with pytest.raises(BucketNotFoundError, match=r"^There is no bucket 'events'\. Create it"):
        run_tasks(spark, range(4), failing, what="failing")


def breaking(number):
    raise ValueError("boom")


@pytest.mark.slow
def test_other_errors_are_sparks_and_end_in_one_sentence(spark):
    with pytest.raises(PythonException) as caught:
        run_tasks(spark, [1], breaking, what="breaking")
    error = as_holdfast_error(caught.value)
    assert isinstance(error, SparkFailedError)
    assert error.message == "ValueError: boom."


def breaking_once(place):
    from pathlib import Path

    with Path(place).open("a") as file:
        file.write("x")
    if Path(place).stat().st_size == 1:
        raise RuntimeError("the first time")
    return Path(place).stat().st_size


@pytest.mark.slow
def test_spark_runs_a_task_again_and_it_counts_once(spark, tmp_path):
    assert run_tasks(spark, [str(tmp_path / "runs")], breaking_once, what="again") == [2]


def ours_inside(batches):
    raise BucketNotFoundError("events")
    yield


@pytest.mark.slow
def test_our_error_is_found_in_what_spark_says(spark):
    with pytest.raises(PythonException) as caught:
        spark.range(1).mapInArrow(ours_inside, "id long").collect()
    error = as_holdfast_error(caught.value)
    assert isinstance(error, BucketNotFoundError)
    assert error.message == "There is no bucket 'events'. Create it with PUT /events first."


def test_what_spark_itself_refuses_is_one_sentence(spark):
    with pytest.raises(Exception) as caught:
        spark.read.parquet("/nowhere/at/all").collect()
    error = as_holdfast_error(caught.value)
    assert isinstance(error, SparkFailedError)
    assert "/nowhere/at/all" in error.message
    assert "\n" not in error.message
    assert "SQLSTATE" not in error.message
