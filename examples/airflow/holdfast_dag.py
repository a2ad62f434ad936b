"""A nightly DAG: archive a bucket, then fold its streams into snapshots, then audit the store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG
from holdfast_operator import HoldfastOperator

with DAG(
    dag_id="holdfast_nightly",
    schedule="0 3 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
):
    archive = HoldfastOperator(
        task_id="archive",
        job="archive",
        options={"bucket": "events", "to": "/lake/events", "format": "delta", "wait": 600},
    )
    # After the archive: what a snapshot stands for is trimmed.
    snapshot = HoldfastOperator(
        task_id="snapshot",
        job="snapshot",
        options={"bucket": "events", "fold": "merge-patch", "min_messages": 100},
    )
    audit = HoldfastOperator(task_id="audit", job="audit", options={"report": "/lake/audit"})
    archive >> snapshot >> audit
