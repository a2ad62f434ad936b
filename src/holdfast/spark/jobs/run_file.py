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

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.clock import Clock
from holdfast.errors import SettingsError
from holdfast.settings.load import expand_variables, read_toml, refuse_unknown
from holdfast.settings.options import Option, build, option, options_of
from holdfast.spark.connection import SparkConnection
from holdfast.spark.jobs import job_class
from holdfast.spark.jobs.options import is_server

T = TypeVar("T")
_TABLES: Final = ("spark", "server", "job")


@dataclass(frozen=True)
class JobEntry:
    """A job of the file: its name and options, when it runs, and which jobs must succeed first."""

    name: str
    job: Any
    timing: Timing
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunFile:
    """A checked file; its entries are in the order in which they run."""

    entries: Sequence[JobEntry]
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

    def _entry(self, values: object) -> JobEntry:
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
            if "name" in options:
                # Part of a stream's name; a name in a file may be any text.
                given["name"] = re.sub(r"[^A-Za-z0-9_.-]", "-", table.name)[:80]
            return JobEntry(name, build(declared, given), timing, tuple(table.needs))
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


def _check_names(entries: list[JobEntry]) -> None:
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


def _in_order(entries: list[JobEntry]) -> list[JobEntry]:
    """Put each job behind those that it needs; otherwise keep the order of the file."""
    ordered: list[JobEntry] = []
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


_DAY_S: Final = 86_400
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": _DAY_S}


@dataclass(frozen=True)
class Timing:
    """How often a job runs: every so many seconds, or daily so many seconds after midnight UTC."""

    every_s: int | None = None
    at_s: int | None = None

    def __post_init__(self) -> None:
        if self.every_s is not None and self.at_s is not None:
            raise SettingsError("give either 'every' or 'at', not both.")

    @property
    def repeats(self) -> bool:
        return self.every_s is not None or self.at_s is not None

    def first_ms(self, now_ms: int) -> int:
        return now_ms if self.at_s is None else self._next_day_ms(now_ms - 1, self.at_s)

    def next_ms(self, due_ms: int, now_ms: int) -> int | None:
        """The time of the next run after the one due at `due_ms`, or None."""
        if self.every_s is not None:
            missed = max(0, now_ms - due_ms) // (self.every_s * 1000)
            return due_ms + (missed + 1) * self.every_s * 1000
        return None if self.at_s is None else self._next_day_ms(now_ms, self.at_s)

    @staticmethod
    def _next_day_ms(after_ms: int, at_s: int) -> int:
        midnight_ms = after_ms // (_DAY_S * 1000) * _DAY_S * 1000
        today_ms = midnight_ms + at_s * 1000
        return today_ms if today_ms > after_ms else today_ms + _DAY_S * 1000


class Schedule:
    """Which job is next, and how long until then.

    - A job without a timing runs once, at the start. One with `every` also runs at the start, and
      again whenever that much time has passed since it was last due. One with `at` runs daily at
      that time, UTC.
    - Jobs run one after the other: the one that has been due the longest first, and those due at
      the same time in the order of the file. So a slow job does not starve the others.
    - A job that was due several times while another one ran is run once.
    """

    def __init__(self, entries: Sequence[JobEntry], clock: Clock) -> None:
        self._entries = entries
        self._clock = clock
        now_ms = clock.now_ms()
        self._due_ms: dict[str, int | None] = {
            each.name: each.timing.first_ms(now_ms) for each in entries
        }

    def take(self) -> JobEntry | None:
        """Take the job that is due now, or None."""
        now_ms = self._clock.now_ms()
        due = [(at_ms, each) for each in self._entries if (at_ms := self._at(each)) <= now_ms]
        if not due:
            return None
        entry = min(due, key=itemgetter(0))[1]
        self._due_ms[entry.name] = entry.timing.next_ms(self._due_ms[entry.name] or 0, now_ms)
        return entry

    def wait_s(self) -> float | None:
        """Seconds until the next job is due; None if there is none."""
        due_ms = min(map(self._at, self._entries), default=math.inf)
        return None if due_ms == math.inf else max(0, due_ms - self._clock.now_ms()) / 1000

    def _at(self, entry: JobEntry) -> float:
        due_ms = self._due_ms[entry.name]
        return math.inf if due_ms is None else due_ms


def parse_duration(text: object) -> int:
    """Seconds from `90s`, `15m`, `2h` or `1d`."""
    found = re.fullmatch(r"\s*([0-9]{1,6})\s*([smhd])\s*", text) if isinstance(text, str) else None
    if found is None or not int(found[1]):
        raise SettingsError(f"'every' is a duration such as 90s, 15m, 2h or 1d, not {text!r}.")
    return int(found[1]) * _UNITS_S[found[2]]


def parse_time_of_day(text: object) -> int:
    """Seconds after midnight from `03:00`."""
    found = re.fullmatch(r"([0-9]{2}):([0-9]{2})", text) if isinstance(text, str) else None
    if found is None or int(found[1]) > 23 or int(found[2]) > 59:
        raise SettingsError(f"'at' is a time such as 03:00 (UTC), not {text!r}.")
    return int(found[1]) * 3600 + int(found[2]) * 60
