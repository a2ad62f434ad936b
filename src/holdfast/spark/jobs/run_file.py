"""The TOML file of `holdfast pipeline run`, which lists several jobs.

    [spark]
    master = "local[*]"

    [server]
    url = "http://127.0.0.1:4437"
    token_env = "HOLDFAST_TOKEN"

    [[job]]
    job = "archive"
    name = "archive-events"
    every = "15m"
    bucket = "events"
    to = "lake/events"

`${NAME}` in text is replaced from the environment; `$${NAME}` stands for `${NAME}`. Relative paths
are relative to the file. All other keys of a job are its options; a server among them (`target`) is
a table like `[server]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.errors import SettingsError
from holdfast.settings.load import expand_variables, read_toml, refuse_unknown
from holdfast.settings.options import Option, build, option, options_of
from holdfast.spark.connection import SparkConnection
from holdfast.spark.jobs import job_class
from holdfast.spark.jobs.options import is_server
from holdfast.spark.jobs.schedule import Timing, parse_duration, parse_time_of_day

__all__ = ["Entry", "RunFile", "load_run_file"]

T = TypeVar("T")
_TABLES: Final = ("spark", "server", "job")


@dataclass(frozen=True)
class Entry:
    """A job of the file: its name and options, when it runs, and which jobs must succeed first."""

    name: str
    job: Any
    timing: Timing
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunFile:
    """A checked file; its entries are in the order in which they run."""

    entries: Sequence[Entry]
    master: str = ""
    remote: str = ""
    conf: Mapping[str, str] | None = None

    @property
    def has_schedule(self) -> bool:
        """Whether any job runs more than once."""
        return any(each.timing.repeats for each in self.entries)


@dataclass(frozen=True)
class _SparkTable:
    master: str = ""
    remote: str = ""
    conf: dict[str, Any] = option("", {})


@dataclass(frozen=True)
class _JobTable:
    """The keys that every `[[job]]` may have besides the options of its job."""

    job: str = option("The name of a job.")
    name: str = ""
    needs: list[str] = option("", [])
    every: str | None = None
    at: str | None = None


_JOB_KEYS: Final = frozenset(each.key for each in options_of(_JobTable))


def load_run_file(path: Path, env: Mapping[str, str], default_server: SparkConnection) -> RunFile:
    """Read and check a file; `default_server` is used if it has no `[server]`."""
    tables = read_toml(path)
    try:
        return _Reader(path.parent.absolute(), env, default_server).read(tables)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error.message}") from None


class _Reader:
    def __init__(self, folder: Path, env: Mapping[str, str], server: SparkConnection) -> None:
        self._folder = folder
        self._env = env
        self._server = server

    def read(self, tables: dict[str, Any]) -> RunFile:
        refuse_unknown("", "table", tables, _TABLES)
        tables = expand_variables(tables, self._env, braces_only=True)
        spark = _table(_SparkTable, tables.get("spark", {}), "[spark]")
        if spark.master and spark.remote:
            raise SettingsError("[spark]: give either 'master' or 'remote', not both.")
        if "server" in tables:
            self._server = self._connection(tables["server"], "[server]")
        jobs = tables.get("job", [])
        if not isinstance(jobs, list) or not jobs:
            raise SettingsError("the file has no jobs; each is a table [[job]].")
        entries = [self._entry(each) for each in jobs]
        _check_names(entries)
        return RunFile(
            entries=_in_order(entries),
            master=spark.master,
            remote=spark.remote,
            # TOML has numbers and booleans; Spark takes text.
            conf={key: _spark_text(value) for key, value in spark.conf.items()},
        )

    def _entry(self, values: object) -> Entry:
        values = _as_table(values, "[[job]]")
        common = {key: value for key, value in values.items() if key in _JOB_KEYS}
        table = _table(_JobTable, common, "[[job]]")
        name = table.name or table.job
        try:
            declared = job_class(table.job)
            timing = Timing(
                every_s=None if table.every is None else parse_duration(table.every),
                at_s=None if table.at is None else parse_time_of_day(table.at),
            )
            options = {each.key: each for each in options_of(declared)}
            given = {
                key: self._value(options[key], value) if key in options else value
                for key, value in values.items()
                if key not in _JOB_KEYS
            }
            if "server" in options:
                given.setdefault("server", self._server)
            return Entry(name, build(declared, given), timing, tuple(table.needs))
        except SettingsError as error:
            raise SettingsError(f"job {name!r}: {error.message}") from None

    def _value(self, each: Option, value: object) -> object:
        if is_server(each):
            return self._connection(value, repr(each.key))
        return self._absolute(value) if each.path else value

    def _absolute(self, value: object) -> object:
        if isinstance(value, list):
            return [self._absolute(each) for each in value]
        if not isinstance(value, str) or not value or "://" in value:
            return value
        return str(self._folder / Path(value).expanduser())

    def _connection(self, values: object, where: str) -> SparkConnection:
        given = dict(_as_table(values, where))
        for name in ("token", "password"):
            variable = str(given.pop(f"{name}_env", ""))
            if variable and variable not in self._env:
                raise SettingsError(f"{where}: environment variable {variable} is not set")
            if variable:
                given[name] = self._env[variable]
        if "ca_file" in given:
            given["ca_file"] = self._absolute(given["ca_file"])
        return _table(SparkConnection, given, where)


def _as_table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SettingsError(f"{where}: expected a table, got {value!r}")
    return value


def _table(declared: type[T], values: object, where: str) -> T:
    try:
        return build(declared, _as_table(values, where))
    except SettingsError as error:
        raise SettingsError(f"{where}: {error.message}") from None


def _check_names(entries: list[Entry]) -> None:
    names = [each.name for each in entries]
    for entry in entries:
        if names.count(entry.name) > 1:
            raise SettingsError(
                f"{names.count(entry.name)} jobs are named {entry.name!r}; "
                "give each its own 'name'."
            )
        for need in entry.needs:
            if need not in names:
                raise SettingsError(f"job {entry.name!r} needs {need!r}, which does not exist.")


def _in_order(entries: list[Entry]) -> list[Entry]:
    """Put each job behind those that it needs; otherwise keep the order of the file."""
    ordered: list[Entry] = []
    left = list(entries)
    while left:
        names = {each.name for each in left}
        ready = next((each for each in left if not names & set(each.needs)), None)
        if ready is None:
            raise SettingsError(f"the jobs {', '.join(sorted(names))} need one another.")
        ordered.append(ready)
        left.remove(ready)
    return ordered


def _spark_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
