"""A file that names several jobs, for `holdfast pipeline run`.

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

`${NAME}` in a text is what the environment says, `$${` stands for `${`. Places are relative to the
file. A job's other keys are its options; a server among them (`target`) is a table as `[server]`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from holdfast.errors import SettingsError
from holdfast.spark.connection import SparkConnection
from holdfast.spark.jobs import job_class
from holdfast.spark.jobs.options import Option, make, options_of
from holdfast.spark.jobs.schedule import Timing, parse_duration, parse_time_of_day

__all__ = ["Entry", "RunFile", "load_run_file"]

_VARIABLE: Final = re.compile(r"\$(\$?)\{(\w+)\}")
_TABLES: Final = ("spark", "server", "job")
_SPARK_KEYS: Final = ("master", "remote", "conf")
_FIRST: Final = "server"


@dataclass(frozen=True)
class Entry:
    """A job of the file: what to do, what it is called, when, and after which others."""

    name: str
    job: Any
    timing: Timing
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunFile:
    """What a file says; the entries are in the order in which they run."""

    entries: Sequence[Entry]
    master: str = ""
    remote: str = ""
    conf: Mapping[str, str] | None = None

    @property
    def has_schedule(self) -> bool:
        """Whether a job is to run more than once."""
        return any(each.timing.repeats for each in self.entries)


def load_run_file(path: Path, env: Mapping[str, str], default_server: SparkConnection) -> RunFile:
    """Read and check a file; `default_server` is meant where it has no `[server]`."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}.") from None
    try:
        return _Reader(path.parent.absolute(), env, default_server).read(tables)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error.message}") from None


class _Reader:
    """Reads the tables of one file."""

    def __init__(self, folder: Path, env: Mapping[str, str], server: SparkConnection) -> None:
        self._folder = folder
        self._env = env
        self._server = server

    def read(self, tables: dict[str, Any]) -> RunFile:
        _check_keys(tables, _TABLES, "the file")
        tables = self._with_variables(tables)
        spark = _table(tables.get("spark", {}), "[spark]")
        _check_keys(spark, _SPARK_KEYS, "[spark]")
        if "master" in spark and "remote" in spark:
            raise SettingsError("[spark] has either 'master' or 'remote', not both.")
        if "server" in tables:
            self._server = self._connection(tables["server"], "[server]")
        jobs = tables.get("job", [])
        if not isinstance(jobs, list) or not jobs:
            raise SettingsError("it names no jobs; each is a table [[job]].")
        conf = _table(spark.get("conf", {}), "[spark] conf")
        return RunFile(
            entries=_in_order(_named([self._entry(each) for each in jobs])),
            master=_text(spark, "master", "[spark]"),
            remote=_text(spark, "remote", "[spark]"),
            # TOML has numbers and booleans; Spark takes texts.
            conf={key: _setting(value) for key, value in conf.items()},
        )

    def _entry(self, table: object) -> Entry:
        values = dict(_table(table, "[[job]]"))
        job = _text(values, "job", "[[job]]")
        if not job:
            raise SettingsError("a [[job]] needs 'job': which one it is.")
        name = _text(values, "name", "[[job]]") or job
        try:
            declared = job_class(job)
            timing = Timing(
                every_s=parse_duration(values["every"]) if "every" in values else None,
                at_s=parse_time_of_day(values["at"]) if "at" in values else None,
            )
            needs = _words(values.get("needs", []))
            given = {key: values[key] for key in values if key not in _OWN_KEYS}
            return Entry(name, make(declared, self._values(declared, given)), timing, needs)
        except SettingsError as error:
            raise SettingsError(f"job {name!r}: {error.message}") from None

    def _values(self, declared: type[Any], given: Mapping[str, object]) -> dict[str, object]:
        options = {each.name: each for each in options_of(declared)}
        values: dict[str, object] = {}
        for name, value in given.items():
            option = options.get(name)
            values[name] = value if option is None else self._value(option, value)
        if _FIRST in options:
            values.setdefault(_FIRST, self._server)
        return values

    def _value(self, option: Option, value: object) -> object:
        if option.is_server:
            return self._connection(value, repr(option.name))
        if option.path:
            return self._placed(value)
        return value

    def _placed(self, value: object) -> object:
        if isinstance(value, list):
            return [self._placed(each) for each in value]
        if not isinstance(value, str) or not value or "://" in value:
            return value
        return str(self._folder / Path(value).expanduser())

    def _connection(self, table: object, where: str) -> SparkConnection:
        values = dict(_table(table, where))
        for name in ("token", "password"):
            variable = _text(values, f"{name}_env", where)
            values.pop(f"{name}_env", None)
            if variable:
                values[name] = self._variable(variable)
        if values.get("ca_file"):
            values["ca_file"] = self._placed(values["ca_file"])
        known = {each.name: each for each in _options_of_connection()}
        _check_keys(values, (*known, "token_env", "password_env"), where)
        return SparkConnection(
            **{name: known[name].convert(value) for name, value in values.items()}
        )

    def _with_variables(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._with_variables(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._with_variables(each) for each in value]
        return _VARIABLE.sub(self._replaced, value) if isinstance(value, str) else value

    def _replaced(self, found: re.Match[str]) -> str:
        return f"${{{found[2]}}}" if found[1] else self._variable(found[2])

    def _variable(self, name: str) -> str:
        if name not in self._env:
            raise SettingsError(f"the variable {name} is not set.")
        return self._env[name]


_OWN_KEYS: Final = frozenset({"job", "name", "every", "at", "needs"})


def _options_of_connection() -> list[Option]:
    return [
        Option(each.name, {"retries": int}.get(each.name, str), "", each.default, False, each.name)
        for each in fields(SparkConnection)
    ]


def _named(entries: list[Entry]) -> list[Entry]:
    names = [each.name for each in entries]
    for entry in entries:
        if names.count(entry.name) > 1:
            raise SettingsError(
                f"there are {names.count(entry.name)} jobs {entry.name!r}; "
                "give each a 'name' of its own."
            )
        for need in entry.needs:
            if need not in names:
                raise SettingsError(f"job {entry.name!r}: it needs {need!r}, which is not there.")
    return entries


def _in_order(entries: list[Entry]) -> list[Entry]:
    """Each behind those that it needs, otherwise as the file has them."""
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


def _table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SettingsError(f"{where} is a table, not {value!r}.")
    return value


def _text(table: Mapping[str, object], key: str, where: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise SettingsError(f"{where}: {key!r} is text, not {value!r}.")
    return value


def _words(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise SettingsError(f"'needs' is a list of names, not {value!r}.")
    return tuple(value)


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_keys(table: Mapping[str, object], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise SettingsError(f"there is no {key!r} in {where}; there are {', '.join(known)}.")
