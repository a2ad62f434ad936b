"""Spark sessions for the jobs: starting and stopping them, and reporting what fails inside.

Spark wraps an error from an executor's Python in long texts. `as_holdfast_error` finds the original
error in there by its class name and makes it again.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from holdfast.errors import HoldfastError, OutboundError, SettingsError, SparkFailedError
from holdfast.spark.functions import register_functions
from holdfast.spark.jobs.progress import is_connect

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN: Final = 17
_INSTALL: Final = (
    "install Java 17 or later (Debian and Ubuntu: apt install openjdk-17-jre-headless), "
    "or set JAVA_HOME"
)
_START_TIMEOUT_S: Final = 30
_EXIT_TIMEOUT_S: Final = 10
_CONNECT_PORT: Final = 15_002
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_PYTHON_SETTING: Final = "spark.pyspark.python"
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
_UNIX_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"

_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
_DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Payloads are large: a few thousand rows already make a good batch.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "true",
    # Off by default. It has an effect on sources that define it, as ours with `pushdown`.
    _PUSHDOWN: "true",
    # Batches of megabytes go from Python to the JVM: in steps of 64 KiB by default.
    "spark.buffer.size": "1048576",
}
# Everything runs in one process, which no other machine has to reach.
_LOCAL_DEFAULTS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "16",
    # Sockets without TCP between the JVM and its Python workers.
    _UNIX_SOCKETS: "true",
}
# A socket's path is `.UUID.sock` in Java's directory for temporary files, and has about 100 bytes.
_SOCKET_DIRECTORY_BYTES_MAX: Final = 60

# The last line of a traceback: the class with its module, and the message.
_RAISED: Final = re.compile(
    r"^(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)): (?P<message>.+)$", re.MULTILINE
)
_HOLDFAST_ERROR: Final = re.compile(
    r"\b(?P<module>holdfast(?:\.\w+)+)\.(?P<name>\w+): (?P<message>.+)"
)
_UNCAUGHT: Final = re.compile(r'^Exception in thread "main" [\w.$]+: (.+)$', re.MULTILINE)
_CONDITION: Final = re.compile(r"^\[[\w.]+\] ")
_SQL_STATE: Final = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)
_CAUSE_LENGTH_MAX: Final = 500


def open_session(
    master: str = "local[*]",
    app: str = "holdfast",
    conf: Mapping[str, str] | None = None,
    remote: str | None = None,
) -> SparkSession:
    """Start Spark under `master`, or connect to `remote` (`sc://HOST:PORT`); the caller stops it.

    `conf` overrides the defaults. Spark's log goes to stderr if HOLDFAST_DEBUG=1 is set, otherwise
    nowhere, since failures are raised as exceptions.
    """
    if find_spec("pyspark") is None:
        raise SettingsError('PySpark is not installed: pip install "holdfast-streams[spark]".')
    session = _connect(remote, conf or {}) if remote else _start(master, app, conf or {})
    register_functions(session)
    return session


def close_session(session: SparkSession) -> None:
    """Stop a session in any state, and wait until its JVM has exited."""
    # After a crash of the JVM, or a call interrupted by Ctrl-C, there is nothing to talk to.
    with suppress(Exception):
        session.stop()
    if not is_connect(session):
        _stop_jvm()


def is_alive(session: SparkSession) -> bool:
    """Whether a session can still run queries."""
    try:
        if is_connect(session):
            session.range(1).count()
            return True
        stopped: bool = session.sparkContext._jsc.sc().isStopped()
    except Exception:  # noqa: BLE001 (a dead JVM raises all kinds of errors)
        return False
    return not stopped


def check_java(env: Mapping[str, str] = os.environ) -> str:
    """Return the `java` that Spark will start; raise if there is none, or it is too old."""
    java = _java(env)
    version = _java_version(java)
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
        raise SettingsError(f"Spark needs Java, and none is installed: {_INSTALL}.")
    return found


def _java_version(java: str) -> int:
    """The feature release: 8 for 1.8.0_402, 17 for 17.0.15."""
    try:
        done = subprocess.run(  # noqa: S603 (the java that Spark would start)
            [java, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_START_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingsError(f"{java} cannot be started ({error}): {_INSTALL}.") from None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if found is None:
        raise SettingsError(f"{java} does not print its version: {_INSTALL}.")
    return int(found[1])


def _start(master: str, app: str, conf: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 (only where jobs run)
    from pyspark.sql import SparkSession  # noqa: PLC0415

    check_java()
    _choose_python(os.environ, conf.get(_PYTHON_SETTING), is_local=master.startswith("local"))
    settings = SparkConf().setMaster(master).setAppName(app)
    settings.setAll(list(_settings(master, conf).items()))
    if SparkContext._gateway is None and not _is_debugging():
        _start_jvm(settings)
    try:
        session = SparkSession.builder.config(conf=settings).getOrCreate()
    except Exception as error:
        raise SettingsError(
            f"Spark does not start under {master!r}: {root_cause(error)}"
        ) from error
    if not _is_debugging():
        session.sparkContext.setLogLevel("FATAL")
    return session


def _settings(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    local = _LOCAL_DEFAULTS if master.startswith("local") else {}
    settings = {**_DEFAULTS, **local}
    if len(os.fsencode(gettempdir())) > _SOCKET_DIRECTORY_BYTES_MAX:
        settings.pop(_UNIX_SOCKETS, None)
    settings |= conf
    java = settings.get(_JAVA_OPTIONS, "")
    if "log4j2.configurationFile" not in java and not _is_debugging():
        log = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
        settings[_JAVA_OPTIONS] = f"{java} {log}".strip()
    return settings


def _start_jvm(settings: SparkConf) -> None:
    """Start the JVM with its output in a temporary file, which is shown only if the start fails."""
    from pyspark import SparkContext  # noqa: PLC0415 (only where jobs run)
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    launch: Any = launch_gateway
    with TemporaryFile() as output:
        try:
            gateway = launch(settings, {"stdout": output, "stderr": output})
        except PySparkException:
            output.seek(0)
            raise SettingsError(f"Spark's JVM does not start: {_said(output.read())}") from None
    SparkContext._gateway = gateway
    SparkContext._jvm = gateway.jvm


def _said(output: bytes) -> str:
    """Why a JVM did not start: the message of its exception, or the end of what it printed."""
    text = output.decode(errors="replace").strip() or "it prints nothing."
    found = _UNCAUGHT.search(text)
    return _SQL_STATE.sub("", _CONDITION.sub("", found[1])) if found else text[-500:]


def _stop_jvm() -> None:
    from pyspark import SparkContext  # noqa: PLC0415 (only where jobs run)

    gateway: Any = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    gateway.shutdown()
    if process.stdin is not None:
        # The JVM exits when its standard input ends.
        process.stdin.close()
    try:
        process.wait(_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _is_debugging() -> bool:
    return os.environ.get("HOLDFAST_DEBUG", "") not in {"", "0"}


def _choose_python(
    env: MutableMapping[str, str], configured: str | None, *, is_local: bool
) -> None:
    """Let Spark's workers run this interpreter where nothing else is said; check what is said.

    Spark takes any `python3` on the path otherwise. The driver's workers look for data sources: if
    theirs has no Holdfast, Spark looks for a Java class instead, and reports that it is not found.
    On a cluster only the executors know what they have.
    """
    named = {"PYSPARK_DRIVER_PYTHON": env.get("PYSPARK_DRIVER_PYTHON")}
    if is_local:
        named |= {_PYTHON_SETTING: configured, "PYSPARK_PYTHON": env.get("PYSPARK_PYTHON")}
    for name, python in named.items():
        if python:
            _check_python(name, python)
    env.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local and not configured:
        env.setdefault("PYSPARK_PYTHON", sys.executable)


def _check_python(name: str, python: str) -> None:
    """Raise if an interpreter lacks Holdfast or PySpark."""
    if shutil.which(python) == sys.executable:
        return
    try:
        done = subprocess.run(  # noqa: S603 (the interpreter that Spark would start)
            [python, "-c", "import pyspark_holdfast"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_START_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    else:
        if not done.returncode:
            return
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    raise SettingsError(
        f"Spark's workers would run {name}={python}, which cannot import Holdfast ({reason}): "
        f"unset it, set it to {sys.executable}, or install holdfast-streams[spark] there."
    )


def _check_reachable(remote: str) -> None:
    """Raise if nothing listens there: Spark's own client would retry silently for ten minutes."""
    parts = urlsplit(remote)
    try:
        address = (parts.hostname or "", parts.port or _CONNECT_PORT)
        socket.create_connection(address, _START_TIMEOUT_S).close()
    except ValueError:
        raise SettingsError(f"{remote!r} is no address such as sc://HOST:15002.") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutboundError(f"Spark Connect at {remote} cannot be reached: {reason}.") from None


def _connect(remote: str, conf: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 (only where jobs run)

    if find_spec("grpc") is None:
        raise SettingsError(
            'Spark Connect needs optional parts of PySpark: pip install "pyspark[connect]".'
        )
    if remote.startswith("local"):
        _choose_python(os.environ, conf.get(_PYTHON_SETTING), is_local=True)
    else:
        _check_reachable(remote)
    builder = SparkSession.builder.remote(remote).config("spark.sql.session.timeZone", "UTC")
    for name, value in {_PUSHDOWN: "true", **conf}.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session


def as_holdfast_error(error: BaseException) -> HoldfastError:
    """The Holdfast error inside an error of Spark, or a SparkFailedError with its root cause."""
    if isinstance(error, HoldfastError):
        return error
    for found in reversed(list(_HOLDFAST_ERROR.finditer(_text(error)))):
        kind = _error_class(found["module"], found["name"])
        if kind is not None:
            return rebuild_error(kind, found["message"].strip())
    return SparkFailedError(root_cause(error))


def root_cause(error: BaseException) -> str:
    """The innermost cause of an error of Spark, in one line."""
    text = _text(error)
    raised = [each for each in _RAISED.finditer(text) if "Py4JJavaError" not in each["name"]]
    if raised:
        # The JVM's causes and Python's tracebacks both end with the first error.
        last = raised[-1]
        line = f"{last['name'].rpartition('.')[2]}: {last['message']}"
    else:
        line = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    line = _SQL_STATE.sub("", _CONDITION.sub("", line.strip()))
    line = line if len(line) <= _CAUSE_LENGTH_MAX else f"{line[: _CAUSE_LENGTH_MAX - 1]}…"
    return line if line.endswith((".", "…", "!", "?")) else f"{line}."


def _text(error: BaseException) -> str:
    """All text of an error of Spark, without the JVM's stack frames."""
    try:
        java = getattr(error, "java_exception", None)
        text = str(error) if java is None else f"{error}\n{java}"
    except Exception:  # noqa: BLE001 (the text is in the JVM, which may have exited)
        return f"{type(error).__name__}: Spark's JVM is gone."
    lines = (line.removeprefix("Caused by: ") for line in text.splitlines())
    return "\n".join(line for line in lines if not line.startswith(("\tat ", "\t... ")))


def rebuild_error(kind: type[HoldfastError], message: str) -> HoldfastError:
    """An error of a class from its message alone, whatever arguments its constructor takes."""
    error = kind.__new__(kind)
    HoldfastError.__init__(error, message)
    return error


def _error_class(module: str, name: str) -> type[HoldfastError] | None:
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, HoldfastError) else None
