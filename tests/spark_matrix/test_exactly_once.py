"""From bucket to bucket, whatever is killed on the way: 0 lost, 0 doubled, in order."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.client.restarting import RestartingServer
from tests.spark.copying import Copy, Driver
from tests.spark.filled import TEXT, Filled
from tests.spark_matrix.checking import check, run
from tests.spark_matrix.conftest import ROWS
from tests.spark_matrix.processes import executors
from tests.spark_matrix.standalone import Standalone

pytestmark = pytest.mark.timeout(900)
CLUSTER = "local-cluster[2,1,1024]"


@pytest.mark.parametrize("sink", [False, True], ids=["foreachBatch", "sink"])
@pytest.mark.parametrize("where", ["local", "local-cluster", "standalone"])
def test_everywhere(copy: Copy, where: str, sink: bool, request: pytest.FixtureRequest) -> None:
    """Discovery, batch read, stream read and sink."""
    if where == "standalone":
        cluster: Standalone = request.getfixturevalue("standalone")
        conf = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
        copy = replace(copy, master=cluster.master, conf=conf)
    elif where == "local-cluster":
        copy = replace(copy, master=CLUSTER)
    driver = run(replace(copy, sink=sink))
    assert f"rows {ROWS}" in driver.lines
    check(copy)


@pytest.mark.parametrize("sink", [False, True], ids=["foreachBatch", "sink"])
@pytest.mark.parametrize("seed", range(3))
def test_the_driver_is_killed_again_and_again(
    copy: Copy, source: Filled, seed: int, sink: bool
) -> None:
    chance = Random(seed)
    copy = replace(copy, sink=sink, rows_per_batch=20)
    for number in range(4):
        # Whoever goes on has another number of tasks.
        copy = replace(copy, partitions=chance.choice([1, 2, 3, 5]))
        with Driver(copy) as driver:
            driver.wait_for(f"rows {len(source.rows)}")
            time.sleep(chance.uniform(0.2, 6))
            driver.kill()
        source.append("s00", f"after kill {number};", content_type=TEXT)
    run(copy)
    check(copy)


@pytest.mark.parametrize("seed", range(2))
def test_an_executor_is_killed(copy: Copy, seed: int) -> None:
    chance = Random(seed)
    with Driver(replace(copy, master=CLUSTER, rows_per_batch=20)) as driver:
        driver.wait_for("written 0")
        for _ in range(3):
            time.sleep(chance.uniform(0.1, 2))
            running = executors(driver.pid)
            if "done" not in driver.lines and running:
                os.kill(chance.choice(running), signal.SIGKILL)
        driver.finish()
    check(copy)


@pytest.mark.parametrize("sink", [False, True], ids=["foreachBatch", "sink"])
@pytest.mark.parametrize("seed", range(2))
def test_the_server_is_killed_in_mid_batch(
    copy: Copy, server: RestartingServer, seed: int, sink: bool
) -> None:
    chance = Random(seed)
    with Driver(replace(copy, rows_per_batch=20, sink=sink)) as driver:
        driver.wait_for(f"rows {ROWS}")
        for _ in range(3):
            time.sleep(chance.uniform(0.3, 2))
            server.kill()
            time.sleep(chance.uniform(0, 1))
            server.start()
        driver.finish()
    check(copy)


@pytest.mark.parametrize("where", ["local[2,4]", CLUSTER])
def test_tasks_that_fail(copy: Copy, where: str) -> None:
    run(replace(copy, master=where, failing=True))
    check(copy)


def test_speculative_tasks(copy: Copy) -> None:
    """Of a task that takes long another copy is started, and both write."""
    conf = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.minTaskRuntime": "100ms",
    }
    run(replace(copy, master=CLUSTER, conf=conf, straggling_s=3, partitions=4, rows_per_batch=200))
    check(copy)


@pytest.mark.parametrize("file", ["commits", "offsets"])
def test_a_commit_that_failed(copy: Copy, file: str) -> None:
    """The last batch, or the one before, is not known to be done: it is done again."""
    run(copy)
    checkpoint = Path(copy.checkpoint)
    numbers = sorted(int(each.name) for each in (checkpoint / "commits").glob("[0-9]*"))
    for kind in ("commits",) if file == "commits" else ("commits", "offsets"):
        (checkpoint / kind / str(numbers[-1])).unlink()
        (checkpoint / kind / f".{numbers[-1]}.crc").unlink(missing_ok=True)
    run(replace(copy, partitions=5))
    check(copy)
