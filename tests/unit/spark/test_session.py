"""Which Java and which Python are taken, and what is said if one does not do."""

import sys

import pytest

from holdfast.errors import SettingsError
from holdfast.spark import session
from holdfast.spark.session import _choose_python, _said, check_java, open_session


@pytest.fixture
def java(tmp_path):
    """A `java` that says which version it is."""

    def make(version, home="jdk"):
        path = tmp_path / home / "bin" / "java"
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
        path.chmod(0o755)
        return path

    return make


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_java_on_the_path_is_taken(java, version):
    path = java(version)
    assert check_java({"PATH": str(path.parent)}) == str(path)


def test_java_home_goes_first(java):
    old, new = java("11.0.2", "old"), java("17.0.1", "new")
    env = {"PATH": str(old.parent), "JAVA_HOME": str(new.parent.parent)}
    assert check_java(env) == str(new)


@pytest.mark.parametrize(("version", "said"), [("1.8.0_402", "8"), ("11.0.2", "11")])
def test_an_old_java_is_refused(java, version, said):
    path = java(version)
    with pytest.raises(SettingsError) as caught:
        check_java({"PATH": str(path.parent)})
    assert caught.value.message == (
        f"Spark needs a newer Java than {path}, which is {said}: install Java 17 or later "
        "(Debian and Ubuntu: apt install openjdk-17-jre-headless), or set JAVA_HOME."
    )


def test_no_java_at_all(tmp_path):
    with pytest.raises(SettingsError, match=r"needs Java, and none is installed: .*openjdk-17-jre"):
        check_java({"PATH": str(tmp_path)})


def test_a_java_home_without_java(tmp_path):
    with pytest.raises(SettingsError, match=r"JAVA_HOME is .*, but there is no .*bin/java"):
        check_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin"})


def test_a_java_that_says_nothing(java):
    path = java("17")
    path.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(SettingsError, match="does not print its version"):
        check_java({"PATH": str(path.parent)})


def test_a_java_that_cannot_be_started(java):
    path = java("17")
    path.write_text("#!/nowhere/sh\n")
    with pytest.raises(SettingsError, match="cannot be started"):
        check_java({"PATH": str(path.parent)})


def test_without_pyspark_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("holdfast.spark.session.find_spec", lambda name: None)
    with pytest.raises(
        SettingsError, match=r'^PySpark is not installed: pip install "holdfast-streams\['
    ):
        open_session()


@pytest.mark.parametrize(
    ("env", "is_local", "chosen"),
    [
        ({}, True, {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}),
        # On a cluster, the executors' interpreter is a path on their machines.
        ({"PYSPARK_PYTHON": "/on/executors/python"}, False, {"PYSPARK_DRIVER_PYTHON"}),
    ],
)
def test_workers_run_this_python_unless_another_is_named(env, is_local, chosen):
    after = dict(env)
    _choose_python(after, None, is_local=is_local)
    assert after == env | dict.fromkeys(chosen, sys.executable)


@pytest.mark.parametrize("name", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
def test_a_python_without_holdfast_is_refused(tmp_path, name):
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    other.chmod(0o755)
    with pytest.raises(SettingsError) as caught:
        _choose_python({name: str(other)}, None, is_local=True)
    assert caught.value.message == (
        f"Spark's workers would run {name}={other}, which cannot import Holdfast "
        "(ModuleNotFoundError: No module named 'pyspark_holdfast'): unset it, set it to "
        f"{sys.executable}, or install holdfast-streams[spark] there."
    )


def test_sockets_without_tcp_where_their_path_is_short_enough(monkeypatch):
    name = "spark.python.unix.domain.socket.enabled"
    for directory, expected in ("/tmp", "true"), ("/" + "long" * 20, None):
        monkeypatch.setattr(session, "gettempdir", lambda directory=directory: directory)
        assert session._settings("local[2]", {}).get(name) == expected
        assert session._settings("spark://host:7077", {}).get(name) is None
        assert session._settings("local[2]", {name: "false"})[name] == "false"


def test_why_a_jvm_does_not_start():
    printed = (
        b"WARNING: Using incubator modules: jdk.incubator.vector\n"
        b'Exception in thread "main" org.apache.spark.SparkIllegalArgumentException: '
        b"[INVALID_CONF_VALUE.TYPE_MISMATCH] The value '1m' is invalid. SQLSTATE: 22022\n"
        b"\tat org.apache.spark.SparkConf.get(SparkConf.scala:488)\n"
    )
    assert _said(printed) == "The value '1m' is invalid."
    assert _said(b"out of memory") == "out of memory"
    assert _said(b"") == "it prints nothing."
