"""A Spark session for the jobs; where Java or PySpark is missing, a sentence that says so."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from holdfast.errors import OutboundError, SettingsError
from holdfast.spark.failures import root_cause
from holdfast.spark.jobs.progress import is_connect

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

__all__ = ["JAVA_VERSION_MIN", "check_java", "close_session", "is_alive", "open_session"]

JAVA_VERSION_MIN: Final = 17
_INSTALL: Final = (
    "install Java 17 or later (Debian and Ubuntu: apt install openjdk-17-jre-headless), "
    "or let JAVA_HOME name it"
)
_ASKING_TIMEOUT_S: Final = 30
_ENDING_TIMEOUT_S: Final = 10
_CONNECT_PORT: Final = 15_002
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")

_DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Payloads are large: a few thousand rows already make a good batch.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
}
# One process on one machine: nobody else has to reach it.
_LOCAL_DEFAULTS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "16",
}


def open_session(
    master: str = "local[*]",
    app: str = "holdfast",
    conf: Mapping[str, str] | None = None,
    remote: str | None = None,
) -> SparkSession:
    """Start Spark under `master`, or connect to `remote` (`sc://HOST:PORT`); the caller stops it.

    What `conf` says goes before our defaults. With HOLDFAST_DEBUG=1 Spark says on stderr all that
    it has to say; otherwise nothing, since what fails comes as an exception.
    """
    if find_spec("pyspark") is None:
        raise SettingsError('PySpark is not installed: pip install "holdfast[spark]".')
    return _connect(remote, conf or {}) if remote else _start(master, app, conf or {})


def close_session(session: SparkSession) -> None:
    """Stop a session, and wait until its JVM is gone, whatever state it is in."""
    # A JVM that died, or a call that Ctrl-C broke off, leaves nothing to talk to.
    with suppress(Exception):
        session.stop()
    if not is_connect(session):
        _end_jvm()


def is_alive(session: SparkSession) -> bool:
    """Whether a session can still do something."""
    try:
        if is_connect(session):
            session.range(1).count()
            return True
        stopped: bool = session.sparkContext._jsc.sc().isStopped()
    except Exception:  # noqa: BLE001 (whatever a dead JVM makes of it)
        return False
    return not stopped


def check_java(env: Mapping[str, str] = os.environ) -> str:
    """The `java` that Spark will start; refused if there is none, or one that is too old."""
    java = _java(env)
    version = _version_of(java)
    if version < JAVA_VERSION_MIN:
        raise SettingsError(
            f"Spark needs a newer Java than {java}, which is {version}: {_INSTALL}."
        )
    return java


def _java(env: Mapping[str, str]) -> str:
    home = env.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise SettingsError(
                f"JAVA_HOME is {home}, but there is no {java}: correct it, or unset it and "
                f"{_INSTALL.partition(', or')[0]}."
            )
        return str(java)
    found = shutil.which("java", path=env.get("PATH", os.defpath))
    if found is None:
        raise SettingsError(f"Spark needs Java, and there is none: {_INSTALL}.")
    return found


def _version_of(java: str) -> int:
    """The feature release: 8 for 1.8.0_402, 17 for 17.0.15."""
    try:
        done = subprocess.run(  # noqa: S603 (the java that Spark would start)
            [java, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASKING_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingsError(f"{java} cannot be started ({error}): {_INSTALL}.") from None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if found is None:
        raise SettingsError(f"{java} does not say which version it is: {_INSTALL}.")
    return int(found[1])


def _start(master: str, app: str, conf: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 (only where jobs run)
    from pyspark.sql import SparkSession  # noqa: PLC0415

    check_java()
    if master.startswith("local"):
        _use_our_python()
    settings = SparkConf().setMaster(master).setAppName(app)
    settings.setAll(list(_settings(master, conf).items()))
    if SparkContext._gateway is None and not _wants_noise():
        _start_jvm(settings)
    try:
        session = SparkSession.builder.config(conf=settings).getOrCreate()
    except Exception as error:
        raise SettingsError(
            f"Spark does not start under {master!r}: {root_cause(error)}"
        ) from error
    if not _wants_noise():
        session.sparkContext.setLogLevel("FATAL")
    return session


def _settings(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    ours = _DEFAULTS | (_LOCAL_DEFAULTS if master.startswith("local") else {}) | dict(conf)
    java = ours.get(_JAVA_OPTIONS, "")
    if "log4j2.configurationFile" not in java and not _wants_noise():
        ours[_JAVA_OPTIONS] = f"{java} -Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}".strip()
    return ours


def _start_jvm(settings: SparkConf) -> None:
    """Start the JVM with its chatter going to a file, which is shown only if it does not start.

    It has no name, and is gone when the JVM is. What fails later comes as an exception.
    """
    from pyspark import SparkContext  # noqa: PLC0415 (only where jobs run)
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    launch: Any = launch_gateway

    with TemporaryFile() as chatter:
        try:
            gateway = launch(settings, {"stdout": chatter, "stderr": chatter})
        except PySparkException:
            chatter.seek(0)
            said = chatter.read().decode(errors="replace").strip() or "it says nothing"
            raise SettingsError(f"Spark's JVM does not start: {said[-500:]}") from None
    SparkContext._gateway = gateway
    SparkContext._jvm = gateway.jvm


def _end_jvm() -> None:
    from pyspark import SparkContext  # noqa: PLC0415 (only where jobs run)

    gateway: Any = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    gateway.shutdown()
    if process.stdin is not None:
        # That is how it learns that it is no longer needed.
        process.stdin.close()
    try:
        process.wait(_ENDING_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wants_noise() -> bool:
    return os.environ.get("HOLDFAST_DEBUG", "") not in {"", "0"}


def _use_our_python() -> None:
    """Workers on this machine are as we are: Spark would look for `python3`, maybe another one."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _check_reachable(remote: str) -> None:
    """Spark's own client would try for ten minutes, without a word."""
    place = urlsplit(remote)
    try:
        address = (place.hostname or "", place.port or _CONNECT_PORT)
        socket.create_connection(address, _ASKING_TIMEOUT_S).close()
    except ValueError:
        raise SettingsError(f"{remote!r} is no address such as sc://HOST:15002.") from None
    except OSError as error:
        said = error.strerror or str(error)
        raise OutboundError(f"Spark Connect at {remote} cannot be reached: {said}.") from None


def _connect(remote: str, conf: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 (only where jobs run)

    if find_spec("grpc") is None:
        raise SettingsError('Spark Connect needs more of PySpark: pip install "pyspark[connect]".')
    if remote.startswith("local"):
        _use_our_python()
    else:
        _check_reachable(remote)
    builder = SparkSession.builder.remote(remote).config("spark.sql.session.timeZone", "UTC")
    for name, value in conf.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session
