"""What a job's summary looks like: a document for programs, a few lines for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from holdfast.cli.progress import steps
from holdfast.cli.wording import NOTHING, as_bytes, as_count, printable
from holdfast.spark.jobs.progress import UNSEEN, Progress

__all__ = ["as_document", "as_text", "showing"]

_SHOWN_MAX = 20


@contextmanager
def showing(*, quiet: bool) -> Iterator[Progress]:
    """Progress on stderr, if somebody looks at it."""
    if quiet or not sys.stderr.isatty():
        yield UNSEEN
        return
    with steps() as shown:
        yield shown


def as_document(job: str, summary: Any, seconds: float) -> dict[str, Any]:
    """The summary as `--json` prints it."""
    return {"job": job, **msgspec.to_builtins(summary), "seconds": round(seconds, 3)}


def as_text(job: str, summary: Any, seconds: float) -> str:
    """The summary in lines: the job's own, or one for each of its fields."""
    own = getattr(summary, "lines", None)
    said = own() if callable(own) else list(_lines(msgspec.to_builtins(summary)))
    return "\n".join(
        [f"{job}: done in {seconds:.1f} s", *(f"  {printable(each)}" for each in said)]
    )


def _lines(fields: dict[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        said = name.replace("_", " ")
        if isinstance(value, list):
            yield f"{said}: {len(value):,}"
            yield from (f"  {_plain(name, each)}" for each in value[:_SHOWN_MAX])
            if len(value) > _SHOWN_MAX:
                yield f"  and {len(value) - _SHOWN_MAX:,} more; --json has them all"
        else:
            yield f"{said}: {_plain(name, value)}"


def _plain(name: str, value: object) -> str:
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        is_size = name == "bytes" or name.endswith("_bytes") or name.startswith("bytes_")
        return as_bytes(value) if is_size else as_count(value)
    if isinstance(value, float):
        return f"{value:,.3g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(key, each)}" for key, each in value.items()) or NOTHING
    return str(value)
