"""A standalone cluster of Spark on loopback: a master and workers, processes of our own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pyspark

from tests.client.restarting import free_port
from tests.spark_matrix.processes import descendants

ROOT = Path(__file__).parents[2]
DEADLINE_S = 90
WORKERS = 2


class Standalone:
    """Ends with its block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._port = free_port()

    @property
    def master(self) -> str:
        """What `--master` takes."""
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        log = self._launch("master.Master", "--port", str(self._port), "--webui-port", "0")
        self._wait_for(log, "Starting Spark master at", 1)
        for number in range(WORKERS):
            self._launch(
                "worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0",
                "--work-dir", str(self._directory / f"work-{number}"), self.master,
            )  # fmt: skip
        self._wait_for(log, "Registering worker", WORKERS)
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill_worker(self) -> None:
        """SIGKILL for a worker and the executors that it started."""
        worker = self._processes.pop()
        for pid in [worker.pid, *descendants(worker.pid)]:
            os.kill(pid, signal.SIGKILL)
        worker.wait()

    def _launch(self, name: str, *arguments: str) -> Path:
        home = Path(pyspark.__file__).parent
        log = self._directory / f"{len(self._processes)}.log"
        with log.open("wb") as file:
            # The script execs java, so the process is the JVM itself.
            process = subprocess.Popen(
                [
                    str(home / "bin" / "spark-class"),
                    f"org.apache.spark.deploy.{name}",
                    "--host",
                    "127.0.0.1",
                    *arguments,
                ],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "SPARK_HOME": str(home),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYSPARK_PYTHON": sys.executable,
                    "PYTHONPATH": str(ROOT),
                },
            )
        self._processes.append(process)
        return log

    def _wait_for(self, log: Path, words: str, count: int) -> None:
        ending = time.monotonic() + DEADLINE_S
        while log.read_text(errors="replace").count(words) < count:
            assert time.monotonic() < ending, log.read_text(errors="replace")[-2000:]
            time.sleep(0.1)
