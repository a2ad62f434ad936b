"""What `backup` and `restore` share: the place that a URL names, and how both end and report."""

import json
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.wording import as_bytes
from holdfast.errors import HoldfastError, SettingsError, StoreError
from holdfast.objects.store import ObjectStore
from holdfast.settings import StorageSettings, all_settings
from holdfast.storage.manifest import Manifest
from holdfast.storage.open_objects import open_objects

__all__ = ["AsJson", "BackupUrl", "careful", "contents", "open_place", "say"]

BackupUrl = Annotated[
    str,
    Parameter(
        help="Place of the backups: a directory, s3://bucket/prefix, gs://bucket/prefix or "
        "az://container/prefix. The s3_* settings and AWS_* variables apply to it too."
    ),
]
AsJson = Annotated[bool, Parameter(negative="", help="Print one JSON document.")]


def open_place(settings: StorageSettings, url: str) -> ObjectStore:
    """Return the store at a URL, reached as the server's own store is."""
    (setting,) = (item for item in all_settings() if item.name == "store")
    try:
        store = setting.convert(url, lax=True)
    except ValueError as error:
        raise SettingsError(f"{url!r} is no place for backups: {error}") from None
    if not store:
        raise SettingsError("a place for backups is missing: name a directory or a URL")
    return open_objects(replace(settings, store=store), Path(store))


@contextmanager
def careful() -> Iterator[None]:
    """Clean up after SIGTERM as after Ctrl-C, and say what has to change where a store fails."""

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except StoreError as error:
        raise HoldfastError(f"{error.message} {error.advice}".strip()) from None
    except OSError as error:
        # Of the stores' own nothing comes this far: these are local files.
        raise HoldfastError(f"{error.filename or 'A file'}: {error.strerror or error}.") from error
    finally:
        signal.signal(signal.SIGTERM, before)


def say(document: Mapping[str, object], line: str, *, as_json: bool) -> None:
    """Print what was done."""
    print(json.dumps(document, ensure_ascii=False) if as_json else line, flush=True)


def contents(manifest: Manifest) -> str:
    """Return what is in a backup, for people."""
    log_bytes = sum(segment.size_bytes for segment in manifest.log)
    return (
        f"{manifest.streams} streams in {len(manifest.packs)} packs "
        f"({as_bytes(manifest.pack_bytes)}), {len(manifest.snapshots)} snapshots "
        f"and a log of {as_bytes(log_bytes)}"
    )
