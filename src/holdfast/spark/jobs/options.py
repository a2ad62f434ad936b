"""How a job declares its options: once, for Python, the command line and TOML files.

    @dataclass(frozen=True, kw_only=True)
    class Archive:
        bucket: str = option("The bucket to copy.")
        to: str = option("Where the table is.", path=True)
        format: Literal["parquet", "delta"] = option("Of the table.", "parquet")
        server: SparkConnection = server_option()

Types are str, int, float, bool, Literal, list[str], dict[str, str], those or None, and
SparkConnection; Any is a text that from Python may be something else, such as a function. What they
cannot say (a range, two options that exclude one another) a `__post_init__` checks;
it raises a SettingsError, whoever made the job.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from holdfast.errors import SettingsError
from holdfast.spark.connection import SparkConnection

__all__ = ["Option", "make", "option", "options_of", "server_option"]

_Job = TypeVar("_Job")
_WORDS: Final = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list of texts",
    dict: "a table of texts",
}


def option(help: str, default: object = MISSING, *, path: bool = False, flag: str = "") -> Any:  # noqa: A002 (what every command line library calls it)
    """Declare an option; one without a default must be given.

    `path` says that it is a place: in a TOML file it is taken relative to that file. `flag` is what
    the command line calls it, if that is not the field's name (a list `tables`, but `--table`).
    """
    metadata = {"help": help, "path": path, "flag": flag}
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def server_option(help: str = "The server.") -> Any:  # noqa: A002 (the same)
    """Declare a server: `server` is the one that all commands know, others have flags of their own.

    A field `target` has the flags `--target-url`, `--target-context`, `--target-token` and
    `--target-ca-file`, and in a TOML file the table `target`.
    """
    return option(help, SparkConnection())


@dataclass(frozen=True)
class Option:
    """What a job says of one of its options."""

    name: str
    type: Any
    help: str
    # MISSING if it must be given.
    default: object
    path: bool
    flag: str

    @property
    def is_server(self) -> bool:
        """Whether it is a server, and no value."""
        return self.type is SparkConnection

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is MISSING

    @property
    def kind(self) -> Any:
        """The type without None and parameters: `list` for `list[str] | None`."""
        inner = self._inner
        return get_origin(inner) or inner

    @property
    def choices(self) -> tuple[Any, ...]:
        """The words that a Literal allows."""
        return get_args(self._inner) if self.kind is Literal else ()

    def convert(self, value: object) -> Any:
        """The value as the option's type."""
        try:
            return msgspec.convert(value, str if self.type is Any else self.type)
        except msgspec.ValidationError:
            raise SettingsError(f"{self.name!r} is {self._wanted}, not {value!r}.") from None

    @property
    def _inner(self) -> Any:
        if get_origin(self.type) in {Union, UnionType}:
            return next(each for each in get_args(self.type) if each is not NoneType)
        return self.type

    @property
    def _wanted(self) -> str:
        if self.kind is Literal:
            return "one of " + ", ".join(repr(each) for each in self.choices)
        return _WORDS.get(self.kind, "text")


def options_of(job_class: type[Any]) -> list[Option]:
    """The options of a job, in the order in which it declares them."""
    types = get_type_hints(job_class)
    return [
        Option(
            name=each.name,
            type=types[each.name],
            help=each.metadata.get("help", ""),
            default=each.default_factory() if callable(each.default_factory) else each.default,
            path=each.metadata.get("path", False),
            flag=each.metadata.get("flag") or each.name.replace("_", "-"),
        )
        for each in fields(job_class)
    ]


def make(job_class: type[_Job], values: Mapping[str, object]) -> _Job:
    """A job from values by name, as a file or a command line gives them."""
    known = {each.name: each for each in options_of(job_class)}
    for name in values:
        if name not in known:
            raise SettingsError(_unknown(name, known))
    for each in known.values():
        if each.required and each.name not in values:
            raise SettingsError(f"{each.name!r} is needed: {each.help}")
    return job_class(
        **{
            name: value if isinstance(value, SparkConnection) else known[name].convert(value)
            for name, value in values.items()
        }
    )


def _unknown(name: str, known: Mapping[str, Option]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"There is no {name!r} here; did you mean {near[0]!r}?"
    return f"There is no {name!r} here; there are {', '.join(sorted(known))}."
