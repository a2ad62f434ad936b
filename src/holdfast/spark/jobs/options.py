"""Options that several jobs share: runs, server, object store, selection of streams, tables.

Jobs declare their options with `holdfast.settings.options.option`. Types are str, int, float, bool,
Literal, list[str], dict[str, str], those or None, and SparkConnection; Any is text on the command
line and in files, and may be something else in Python, such as a function. Whatever types cannot
express (a range, two options that exclude one another) is checked in `__post_init__`, which raises
SettingsError.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import get_annotations
from typing import Any, Final, Literal

from holdfast.errors import SettingsError
from holdfast.objects.locations import StoreLocation
from holdfast.settings.options import Option, option, options_of
from holdfast.spark.connection import SparkConnection, parse_size
from holdfast.spark.reading.selection import Selection, make_selection

__all__ = [
    "JobOptions",
    "SelectionOptions",
    "StoreOptions",
    "TableOptions",
    "is_server",
    "job_options",
    "server_option",
]


_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,80}")
_WAIT_S_MAX: Final = 31_536_000


def server_option(help: str = "The server.") -> Any:  # noqa: A002 (as in `option`)
    """Declare a server. A field `server` uses the flags that all commands share.

    Another field has flags of its own: `target` has `--target-url`, `--target-context`,
    `--target-token` and `--target-ca-file`. In a TOML file it is a table `target`.
    """
    return option(help, SparkConnection())


def job_options(declared: type[Any]) -> list[Option]:
    """The options of a job as they are listed: required ones, its own, and those it shares."""
    order = {name: at for at, cls in enumerate(declared.__mro__) for name in get_annotations(cls)}
    return sorted(options_of(declared), key=lambda each: (not each.required, order[each.attribute]))


def is_server(each: Option) -> bool:
    """Whether an option is a server rather than a value."""
    return each.type is SparkConnection


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """A job that works on a server, which locks and records its runs."""

    name: str = option(
        "Name of the pipeline, one run of which is in progress at a time. (default: made of the "
        "job, its bucket and its target)",
        "",
    )
    wait_s: float = option("Seconds to wait for another run of the pipeline to end.", 0.0)
    record: bool = option(
        "Lock the pipeline, and record the run in the stream _jobs/NAME of the server.", True
    )
    server: SparkConnection = server_option()

    def __post_init__(self) -> None:
        if self.name and (not _NAME.fullmatch(self.name) or self.name.endswith(".lock")):
            raise SettingsError(
                "'name' is up to 80 letters, digits, '-', '_' and '.', and does not end in .lock, "
                f"not {self.name!r}."
            )
        if not 0 <= self.wait_s <= _WAIT_S_MAX:
            raise SettingsError(
                f"'wait' is a number of seconds from 0 to {_WAIT_S_MAX}, not {self.wait_s:g}."
            )


@dataclass(frozen=True, kw_only=True)
class StoreOptions(JobOptions):
    """The object store, and its keys, as executors see it.

    Defaults come from the server and from the executors' `AWS_*` variables. Keys are given by the
    names of environment variables, which the driver reads.
    """

    store: str = option(
        "Object store as executors see it, a path or a URL. (default: the server's)", ""
    )
    store_endpoint: str = option("URL of an S3 service other than Amazon's.", "")
    store_region: str = option("Region of the S3 bucket.", "")
    store_addressing: Literal["auto", "path", "virtual"] = option(
        "Whether the S3 bucket's name is in the path or in the host.", "auto"
    )
    store_access_key_id_env: str = option("Environment variable with the S3 access key's id.", "")
    store_secret_access_key_env: str = option(
        "Environment variable with the S3 access key's secret.", ""
    )
    store_session_token_env: str = option("Environment variable with the S3 session token.", "")

    def place(self, named: str, env: Mapping[str, str] = os.environ) -> StoreLocation:
        """Return the store to use; `named` is the server's name for it."""
        return StoreLocation(
            self.store.strip() or named,
            endpoint=self.store_endpoint.strip(),
            region=self.store_region.strip(),
            addressing=self.store_addressing,
            access_key_id=self._secret("store_access_key_id_env", env),
            secret_access_key=self._secret("store_secret_access_key_env", env),
            session_token=self._secret("store_session_token_env", env),
        )

    def _secret(self, option_name: str, env: Mapping[str, str]) -> str:
        variable = str(getattr(self, option_name)).strip()
        if not variable:
            return ""
        if not env.get(variable):
            raise SettingsError(
                f"{option_name!r} names the environment variable {variable}, which is not set."
            )
        return env[variable]


@dataclass(frozen=True, kw_only=True)
class SelectionOptions(StoreOptions):
    """Which streams of the bucket a job reads; without options all of them."""

    streams: list[str] = option("Only these streams.", [], flag="stream")
    stream_pattern: str = option("Only streams whose ids match this expression as a whole.", "")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.selection()

    def selection(self) -> Selection:
        try:
            return make_selection(self.streams, self.stream_pattern)
        except SettingsError as error:
            # Readers have the same options under Spark's kind of names.
            message = error.message.removeprefix("The option ")
            raise SettingsError(message.replace("'streamPattern'", "'stream_pattern'")) from None


@dataclass(frozen=True, kw_only=True)
class TableOptions(SelectionOptions):
    """A job that brings a bucket into a table."""

    bucket: str = option("The bucket to copy.")
    to: str = option("Where the table is: a path or s3://BUCKET/PREFIX.", path=True)
    format: Literal["parquet", "delta", "iceberg"] = option("Format of the table.", "parquet")
    file_size: str = option("Size of the files.", "128m")
    max_bytes: str = option("Commit after about this much.", "16g")
    compact_files: int = option(
        "Merge the small files of a day once there are this many. 0: never.", 0
    )
    compression: Literal["zstd", "snappy", "none"] = option("Compression of the files.", "zstd")
    fail_on_data_loss: bool = option("Fail if messages were deleted before they were read.", True)
    via: Literal["auto", "store", "server"] = option(
        "Read packs from the object store, through the server, or from whichever is reachable.",
        "auto",
    )
    to_endpoint: str = option("URL of the S3 service that the table is in.", "")
    to_region: str = option("Region of the table's S3 bucket.", "")
    catalog: str = option("Iceberg: the catalog, by its name in PyIceberg's settings.", "")
    catalog_options: dict[str, str] = option("Iceberg: properties of the catalog.", {})
    catalog_table: str = option("Iceberg: the table's name in the catalog.", "")
    catalog_uri: str = option("Iceberg: URL of a REST catalog.", "")
    catalog_warehouse: str = option("Iceberg: warehouse in the REST catalog.", "")
    catalog_token_env: str = option("Environment variable with the REST catalog's token.", "")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("file_size", "max_bytes"):
            parse_size(getattr(self, name), f"{name!r}")
        if self.compact_files < 0 or self.compact_files == 1:
            raise SettingsError("'compact_files' is 0, or at least 2.")
        of_catalog = [getattr(self, name) for name in vars(self) if name.startswith("catalog")]
        if self.format != "iceberg" and any(of_catalog):
            raise SettingsError("'catalog' and its options are for format = \"iceberg\".")
        if not self.catalog_uri.startswith(("http://", "https://")) and (
            self.catalog_uri or self.catalog_warehouse or self.catalog_token_env
        ):
            raise SettingsError("'catalog_uri' is the URL of a REST catalog, http:// or https://.")

    def catalog_properties(self, env: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The catalog's properties, under PyIceberg's names."""
        if not self.catalog_uri:
            return self.catalog_options
        given = {
            "type": "rest",
            "uri": self.catalog_uri,
            "warehouse": self.catalog_warehouse,
            "token": self._secret("catalog_token_env", env),
        }
        return {name: value for name, value in given.items() if value} | self.catalog_options
