"""The flags that all jobs share: where Spark runs, which server is meant, what is printed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Group, Parameter

from holdfast.cli.client.connection import DEFAULT_SERVER, resolve
from holdfast.errors import SettingsError
from holdfast.spark.connection import SparkConnection

__all__ = [
    "DEFAULT_PLAIN",
    "DEFAULT_SPARK",
    "Plain",
    "Spark",
    "another_server",
    "pairs",
    "the_server",
]

MASTER: Final = "local[*]"
_RETRIES_MAX: Final = 1000
# What is meant for the first server is not sent to another one.
_OF_THE_FIRST: Final = frozenset({"HOLDFAST_URL", "HOLDFAST_CONTEXT", "HOLDFAST_TOKEN"})


@dataclass(frozen=True)
class _Spark:
    """Where Spark runs."""

    master: Annotated[
        str | None, Parameter(help="Spark's master, such as spark://HOST:7077. (default local[*])")
    ] = None
    remote: Annotated[
        str | None, Parameter(help="Spark Connect server instead, sc://HOST:PORT.")
    ] = None
    conf: Annotated[
        tuple[str, ...],
        Parameter(negative="", help="Setting of Spark, KEY=VALUE. Can be given several times."),
    ] = ()
    traceback: Annotated[
        bool,
        Parameter(negative="", help="Show where an error comes from. Also by HOLDFAST_DEBUG=1."),
    ] = False

    def settings(self) -> dict[str, str]:
        """What `--conf` says."""
        return pairs("--conf", self.conf)

    def check(self) -> None:
        """Refuse what makes no sense, before anything is started."""
        if self.master and self.remote:
            raise SettingsError("Give either --master or --remote, not both.")
        if self.remote and not self.remote.startswith("sc://"):
            raise SettingsError(
                f"--remote is an address such as sc://HOST:15002, not {self.remote!r}."
            )
        self.settings()

    @property
    def with_traceback(self) -> bool:
        """Whether to show where an error comes from."""
        return self.traceback or os.environ.get("HOLDFAST_DEBUG", "") not in {"", "0"}


@dataclass(frozen=True)
class _Plain:
    """What a job takes that needs no server."""

    json: Annotated[bool, Parameter(negative="", help="Print JSON, one document a line.")] = False
    quiet: Annotated[bool, Parameter(negative="", help="No notices on stderr.")] = False


Spark = Annotated[_Spark, Parameter(name="*", group=Group("Spark", sort_key=90))]
Plain = Annotated[_Plain, Parameter(name="*", group=Group("Output", sort_key=100))]
DEFAULT_SPARK: Final = _Spark()
DEFAULT_PLAIN: Final = _Plain()


def the_server(
    server: Any = DEFAULT_SERVER, env: Mapping[str, str] = os.environ
) -> SparkConnection:
    """The server that the flags mean, as of every command."""
    if not 0 <= server.retries <= _RETRIES_MAX:
        raise SettingsError("--retries must be a number from 0 to 1000")
    found = resolve(server, env)
    return SparkConnection(
        url=found.url, token=found.token, ca_file=found.ca_file, retries=server.retries
    )


def another_server(
    url: str | None, context: str | None, token: str | None, ca_file: str | None
) -> SparkConnection:
    """A second server, by flags of its own alone."""
    flags = type(DEFAULT_SERVER)(
        url=url, context=context, token=token, ca_file=Path(ca_file) if ca_file else None
    )
    env = {name: value for name, value in os.environ.items() if name not in _OF_THE_FIRST}
    return the_server(flags, env)


def pairs(flag: str, given: Sequence[str]) -> dict[str, str]:
    """What `KEY=VALUE KEY=VALUE` says."""
    found = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not key.strip() or not equals:
            raise SettingsError(f"{flag} takes KEY=VALUE, not {each!r}.")
        found[key.strip()] = value
    return found
