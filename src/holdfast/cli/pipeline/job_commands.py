"""A command for each job, made from what the job declares.

`holdfast.cli.pipeline.job_commands:archive` is made when it is asked for, from the class `Archive`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

from cyclopts import Parameter

from holdfast.cli.client.connection import DEFAULT_SERVER, Server
from holdfast.cli.pipeline.flags import (
    DEFAULT_PLAIN,
    DEFAULT_SPARK,
    Plain,
    Spark,
    another_server,
    pairs,
    the_server,
)
from holdfast.spark.jobs import JOBS, job_class
from holdfast.spark.jobs.options import Option, make, options_of

# The parts of a server that is not the one that all commands know.
_SERVER_PARTS: Final = {
    "url": "{help} Its URL.",
    "context": "The same by a named server, see `holdfast context`.",
    "token": "Bearer token for it.",
    "ca_file": "Certificates to trust there besides the system's, PEM.",
}
_FIRST: Final = "server"


def __getattr__(name: str) -> Callable[..., int]:
    if name not in JOBS:
        raise AttributeError(name)
    return _command(name)


def _command(name: str) -> Callable[..., int]:
    declared = job_class(name)
    options = options_of(declared)

    def command(**given: Any) -> int:
        from holdfast.cli.pipeline.conduct import conduct  # noqa: PLC0415 (not for the help)

        spark, output = given.pop("spark", DEFAULT_SPARK), given.pop("output", None)
        spark.check()
        has_server = any(each.name == _FIRST for each in options)
        output = output or (DEFAULT_SERVER if has_server else DEFAULT_PLAIN)
        values = {each.name: _value(each, given) for each in options if _is_given(each, given)}
        if has_server:
            values[_FIRST] = the_server(output)
        return conduct(name, make(declared, values), spark, output)

    parameters = list(_parameters(options))
    command.__name__ = command.__qualname__ = name
    command.__doc__ = declared.__doc__
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameters(options: list[Option]) -> Iterator[inspect.Parameter]:
    for each in options:
        if not each.is_server:
            yield _parameter(each)
        elif each.name != _FIRST:
            for part, words in _SERVER_PARTS.items():
                said = Parameter(help=words.format(help=each.help))
                yield _keyword(f"{each.name}_{part}", Annotated[str | None, said], None)
    yield _keyword("spark", Spark, DEFAULT_SPARK)
    if any(each.name == _FIRST for each in options):
        yield _keyword("output", Server, DEFAULT_SERVER)
    else:
        yield _keyword("output", Plain, DEFAULT_PLAIN)


def _parameter(option: Option) -> inspect.Parameter:
    # On a command line `key=value` is easier to write than cyclopts' own form for tables.
    kind = list[str] if option.kind is dict else option.type
    # What is on by default needs a flag to turn it off.
    negative = f"--no-{option.flag}" if option.kind is bool and option.default is True else ""
    said = Parameter(name=f"--{option.flag}", help=option.help, negative=negative)
    default = inspect.Parameter.empty if option.required else option.default
    return _keyword(option.name, Annotated[kind, said], default)


def _keyword(name: str, annotation: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )


def _is_given(option: Option, given: dict[str, Any]) -> bool:
    if option.is_server:
        return option.name != _FIRST
    return option.name in given


def _value(option: Option, given: dict[str, Any]) -> object:
    if option.is_server:
        return another_server(*(given.get(f"{option.name}_{part}") for part in _SERVER_PARTS))
    value = given[option.name]
    return pairs(f"--{option.flag}", value) if option.kind is dict else value
