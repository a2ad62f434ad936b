"""What every job returns: plain values that can be printed as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

__all__ = ["COMMON", "JobResult"]


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """The result of a job that ran to its end; each job adds its own figures.

    `ok` is False if the job found a problem: damage, or streams that it had to leave alone. What
    tells one run from another does not count when results are compared.
    """

    ok: bool = True
    job: str = field(default="", compare=False)
    # The name of the pipeline, and the id of the run; empty if it was not recorded.
    name: str = field(default="", compare=False)
    run: str = field(default="", compare=False)
    started_at: str = field(default="", compare=False)
    seconds: float = field(default=0.0, compare=False)
    # Requests to object stores in the cloud by kind, and the bytes, of the driver and all tasks.
    store_requests: dict[str, int] = field(default_factory=dict, compare=False)
    # What the user should know besides, such as why a run is not recorded.
    warnings: list[str] = field(default_factory=list, compare=False)

    def figures(self) -> dict[str, Any]:
        """The job's own figures as JSON values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return {key: value for key, value in values.items() if key not in COMMON}

    def document(self) -> dict[str, Any]:
        """The whole result as JSON values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        first = {key: values[key] for key in ("job", "ok")}
        return {**first, **self.figures(), **{key: values[key] for key in COMMON[2:]}}


# In the order in which they are printed: two before the figures, the others after them.
COMMON: Final = ("job", "ok", "name", "run", "started_at", "seconds", "store_requests", "warnings")
