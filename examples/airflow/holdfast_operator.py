"""An Airflow operator for the jobs of `holdfast pipeline`. Copy it into your plugins or DAGs.

    HoldfastOperator(task_id="archive", job="archive", options={"bucket": "events", "to": "/lake"})

- Options are checked when the DAG is parsed, so a misspelt one is an import error of the DAG.
- The server is that of the variables HOLDFAST_URL and HOLDFAST_TOKEN of the worker.
- If another run of the pipeline is in progress, the task is skipped. If the job finds a problem,
  such as damage, the task fails without being tried again. Other errors are tried again as usual:
  every job continues where the last attempt stopped.
- The result is the task's XCom: a document of JSON values.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from airflow.exceptions import AirflowFailException, AirflowSkipException
from airflow.sdk import BaseOperator

from holdfast.errors import PipelineBusyError
from holdfast.settings.options import build
from holdfast.spark import pipeline
from holdfast.spark.connection import SparkConnection
from holdfast.spark.jobs import job_class
from holdfast.spark.session import close_session, open_session


class HoldfastOperator(BaseOperator):
    """Runs one job in a Spark session of its own."""

    def __init__(
        self,
        *,
        job: str,
        options: dict[str, Any],
        master: str = "local[*]",
        conf: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.options = options
        self.master = master
        self.conf = conf or {}
        build(job_class(job), options)

    def execute(self, context: Any) -> dict[str, Any]:
        """Run the job; called by Airflow."""
        job = build(job_class(self.job), self.options)
        if hasattr(job, "server"):
            url, token = os.environ["HOLDFAST_URL"], os.environ.get("HOLDFAST_TOKEN", "")
            job = replace(job, server=SparkConnection(url=url, token=token))
        spark = open_session(self.master, f"airflow {self.task_id}", self.conf)
        try:
            result = pipeline.run(spark, job)
        except PipelineBusyError as error:
            raise AirflowSkipException(error.message) from None
        finally:
            close_session(spark)
        for each in result.warnings:
            self.log.warning(each)
        if not result.ok:
            raise AirflowFailException(f"{self.job} found problems: {result.document()}")
        return result.document()
