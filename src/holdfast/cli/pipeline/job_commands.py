"""A command for each job, made from the job's declared options.

`holdfast.cli.pipeline.job_commands:archive` is made on first access, from the class `Archive`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Group, Parameter

from holdfast.cli.client.connection import DEFAULT_SERVER, Server, resolve
from holdfast.cli.config import flag_of, with_flags
from holdfast.cli.pipeline.execute import execute
from holdfast.errors import SettingsError
from holdfast.settings.options import Option, build, option
from holdfast.spark.connection import SparkConnection
from holdfast.spark.jobs import JOBS, job_class
from holdfast.spark.jobs.options import is_server, job_options

__all__ = ["DEFAULT_OUTPUT", "DEFAULT_SPARK", "OutputFlags", "SparkFlags", "the_server"]

_RETRIES_MAX: Final = 1000
# Variables for the first server are not used for another one.
_FIRST_SERVER_ENV: Final = frozenset({"HOLDFAST_URL", "HOLDFAST_CONTEXT", "HOLDFAST_TOKEN"})
# The flags of a server other than `server`, whose flags all commands share.
_SERVER_FLAGS: Final = {
    "url": "{help} Its URL.",
    "context": "Its name, see `holdfast context`.",
    "token": "Bearer token for it.",
    "ca_file": "Certificates to trust there besides the system's, PEM.",
}
_FIRST: Final = "server"


@with_flags
@dataclass(frozen=True)
class _Spark:
    master: str | None = option(
        "Spark's master, such as spark://HOST:7077. (default local[*])", None
    )
    remote: str | None = option("Spark Connect server instead, sc://HOST:PORT.", None)
    conf: tuple[str, ...] = option("Spark setting KEY=VALUE. Can be given several times.", ())
    traceback: bool = option("Show where an error comes from. Also HOLDFAST_DEBUG=1.", False)

    def settings(self) -> dict[str, str]:
        """Return the settings that `--conf` gives."""
        return _pairs("--conf", self.conf)

    def check(self) -> None:
        """Refuse invalid flags before anything is started."""
        if self.master and self.remote:
            raise SettingsError("Give either --master or --remote, not both.")
        if self.remote and not self.remote.startswith("sc://"):
            raise SettingsError(
                f"--remote is an address such as sc://HOST:15002, not {self.remote!r}."
            )
        self.settings()

    @property
    def with_traceback(self) -> bool:
        return self.traceback or os.environ.get("HOLDFAST_DEBUG", "") not in {"", "0"}


@with_flags
@dataclass(frozen=True)
class _Output:
    json: bool = option("Print JSON, one document per line.", False)
    quiet: bool = option("Print no notices on stderr.", False)


SparkFlags = Annotated[_Spark, Parameter(name="*", group=Group("Spark", sort_key=90))]
OutputFlags = Annotated[_Output, Parameter(name="*", group=Group("Output", sort_key=100))]
DEFAULT_SPARK: Final = _Spark()
DEFAULT_OUTPUT: Final = _Output()


def __getattr__(name: str) -> Callable[..., int]:
    if name not in JOBS:
        raise AttributeError(name)
    return _command(name)


def _command(name: str) -> Callable[..., int]:
    declared = job_class(name)
    options = job_options(declared)
    has_server = any(each.key == _FIRST for each in options)

    def command(**given: Any) -> int:
        spark = given.pop("spark", DEFAULT_SPARK)
        output = given.pop("output", DEFAULT_SERVER if has_server else DEFAULT_OUTPUT)
        spark.check()
        values = {each.key: _value(each, given) for each in options if _is_given(each, given)}
        if has_server:
            values[_FIRST] = the_server(output)
        return execute(name, build(declared, values), spark, output)

    parameters = list(_parameters(options))
    if has_server:
        parameters.append(_keyword("output", Server, DEFAULT_SERVER))
    else:
        parameters.append(_keyword("output", OutputFlags, DEFAULT_OUTPUT))
    command.__name__ = command.__qualname__ = name
    command.__doc__ = declared.__doc__
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameters(options: list[Option]) -> Iterator[inspect.Parameter]:
    for each in options:
        if not is_server(each):
            # On a command line KEY=VALUE is easier to write than cyclopts' own form for tables.
            kind = list[str] if each.kind is dict else None
            default = inspect.Parameter.empty if each.required else each.default
            yield _keyword(each.key, flag_of(each, type=kind), default)
        elif each.key != _FIRST:
            for part, text in _SERVER_FLAGS.items():
                said = Parameter(help=text.format(help=each.help))
                yield _keyword(f"{each.key}_{part}", Annotated[str | None, said], None)
    yield _keyword("spark", SparkFlags, DEFAULT_SPARK)


def _keyword(name: str, annotation: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )


def _is_given(each: Option, given: dict[str, Any]) -> bool:
    return each.key != _FIRST if is_server(each) else each.key in given


def _value(each: Option, given: dict[str, Any]) -> object:
    if is_server(each):
        return _another_server(*(given.get(f"{each.key}_{part}") for part in _SERVER_FLAGS))
    value = given[each.key]
    return _pairs(each.flag, value) if each.kind is dict else value


def the_server(
    server: Any = DEFAULT_SERVER, env: Mapping[str, str] = os.environ
) -> SparkConnection:
    """Return the server that the flags of every command name."""
    if not 0 <= server.retries <= _RETRIES_MAX:
        raise SettingsError("--retries must be a number from 0 to 1000")
    context = resolve(server, env)
    return SparkConnection(
        url=context.url, token=context.token, ca_file=context.ca_file, retries=server.retries
    )


def _another_server(
    url: str | None, context: str | None, token: str | None, ca_file: str | None
) -> SparkConnection:
    flags = type(DEFAULT_SERVER)(
        url=url, context=context, token=token, ca_file=Path(ca_file) if ca_file else None
    )
    env = {name: value for name, value in os.environ.items() if name not in _FIRST_SERVER_ENV}
    return the_server(flags, env)


def _pairs(flag: str, given: Sequence[str]) -> dict[str, str]:
    """Parse `KEY=VALUE` arguments."""
    pairs = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not key.strip() or not equals:
            raise SettingsError(f"{flag} takes KEY=VALUE, not {each!r}.")
        pairs[key.strip()] = value
    return pairs
