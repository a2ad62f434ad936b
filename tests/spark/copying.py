"""A bucket read, changed and written to another one: the query that is killed in many ways.

`python -m tests.spark.copying JSON` is a driver of its own: it runs the query until the bucket is
read, and says on standard output how far it is. `Driver` starts one and kills it, all of it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from holdfast.spark.session import open_session
from holdfast.spark.writing.writers import write_to_streams
from tests.spark.reading_back import messages

ROOT = Path(__file__).parents[2]
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DEADLINE_S = 180


@dataclass(frozen=True)
class Copy:
    """What is copied, and how."""

    url: str
    source: str
    target: str
    checkpoint: str
    # 0: each batch takes all that is new.
    rows_per_batch: int = 50
    partitions: int = 2
    # Through `write_to_streams` in foreachBatch, or through the sink.
    sink: bool = False
    # Where Spark runs.
    master: str = "local[2,4]"
    remote: str = ""
    conf: dict[str, str] = field(default_factory=dict)
    # Seconds that a task takes longer than the others; the first attempt of it only.
    straggling_s: float = 0
    # Tasks fail the first time.
    failing: bool = False
    # A stream that is read alone first, by a filter that Spark hands over.
    filtered: str = ""


def changed(frame: DataFrame) -> DataFrame:
    """The rows as they are written: what is in them says where they came from."""
    text = sql.concat_ws(":", "stream_id", "offset", sql.col("payload").cast("string"))
    return frame.select("stream_id", "offset", text.cast("binary").alias("payload"))


def expected(url: str, bucket: str) -> dict[str, list[str]]:
    """What the copy of a bucket has in its streams."""
    found = {}
    for stream, texts in messages(url, bucket).items():
        at, rows = 0, []
        for text in texts:
            rows.append(f"{stream}:{at:020d}:{text}")
            at += len(text)
        found[stream] = rows
    return found


def start(spark: SparkSession, copy: Copy, tell: Callable[[str], None] = lambda _: None) -> Any:
    """Start the query: what there is now, in batches."""
    reading = spark.readStream.format("holdfast").options(url=copy.url, bucket=copy.source)
    if copy.rows_per_batch:
        reading = reading.option("maxRowsPerTrigger", str(copy.rows_per_batch))
    frame = changed(reading.load())
    if copy.failing or copy.straggling_s:
        frame = frame.mapInArrow(_troubled(copy.failing, copy.straggling_s), frame.schema)

    def write(batch: DataFrame, number: int) -> None:
        tell(f"writing {number}")
        write_to_streams(
            batch,
            producer_id="copy",
            batch_id=number,
            order_by="offset",
            partitions=copy.partitions,
            url=copy.url,
            bucket=copy.target,
        )
        tell(f"written {number}")

    if copy.sink:
        # All of a stream in one task, in order: the packs of a slice come before the rest.
        rows = frame.drop("offset").coalesce(1)
        writing = rows.writeStream.format("holdfast").options(url=copy.url, bucket=copy.target)
    else:
        writing = frame.writeStream.foreachBatch(write)
    return writing.option("checkpointLocation", copy.checkpoint).trigger(availableNow=True).start()


def _troubled(failing: bool, straggling_s: float) -> Any:
    """Tasks that fail or take long the first time, in the middle of their rows."""

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        first = context is not None and context.attemptNumber() == 0
        for batch in batches:
            yield batch
            if first and failing:
                raise OSError("a task that fails the first time")
            if first and straggling_s and context.partitionId() == 0:
                time.sleep(straggling_s)

    return pass_on


def _tell(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    """Be the driver."""
    copy = Copy(**json.loads(sys.argv[1]))
    conf = {
        "spark.sql.shuffle.partitions": str(copy.partitions),
        "spark.driver.extraJavaOptions": QUICK,
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        **copy.conf,
    }
    if copy.remote:
        spark = open_session(remote=copy.remote)
    else:
        spark = open_session(copy.master, "copy", conf)
    _tell(f"started {spark.version}")
    # Found by its name alone, and read as a whole, before it is followed.
    whole = spark.read.format("holdfast").options(url=copy.url, bucket=copy.source).load()
    _tell(f"rows {whole.count()}")
    if copy.filtered:
        pushing = spark.read.format("holdfast").options(url=copy.url, bucket=copy.source)
        one = pushing.option("pushdown", "true").load().where(sql.col("stream_id") == copy.filtered)
        _tell(f"filtered {one.count()}")
    query = start(spark, copy, _tell)
    query.awaitTermination()
    _tell("done")
    spark.stop()


class Driver:
    """A driver with its JVM and workers, in a group of processes of their own."""

    def __init__(self, copy: Copy, **env: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.copying", json.dumps(asdict(copy))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                **env,
            },
        )
        self.lines: list[str] = []
        self._errors: list[str] = []
        self._said: Queue[str | None] = Queue()
        self._threads = [
            Thread(target=target, daemon=True) for target in (self._listen, self._keep_errors)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait_for(self, line: str, deadline_s: float = DEADLINE_S) -> None:
        """Wait until it says so."""
        ending = time.monotonic() + deadline_s
        while line not in self.lines:
            try:
                said = self._said.get(timeout=max(0.01, ending - time.monotonic()))
            except Empty:
                raise AssertionError(f"no {line!r}: {self.lines} {self.errors()}") from None
            if said is None:
                raise AssertionError(f"it ended without {line!r}: {self.lines} {self.errors()}")
            self.lines.append(said)

    def finish(self) -> None:
        """Wait until it has copied everything."""
        self.wait_for("done")

    def kill(self) -> None:
        """SIGKILL for all of them at once."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for thread in self._threads:
            thread.join()

    def errors(self) -> str:
        return "".join(self._errors)[-3000:]

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._said.put(line.rstrip("\n"))
        self._said.put(None)

    def _keep_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            self._errors.extend(lines)


if __name__ == "__main__":
    main()
