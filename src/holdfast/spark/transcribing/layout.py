"""The columns of a table of responses, and how responses fill them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa

from holdfast.spark.archiving.layout import Layout
from holdfast.spark.transcribing.collecting import Response

_TIME: Final = pa.timestamp("us", tz="UTC")


def _time(at_ms: int | None) -> int | None:
    return None if at_ms is None else at_ms * 1000


def _of_answer(name: str) -> Callable[[Response], object]:
    return lambda each: getattr(each.answer, name) if each.answer else None


# In the order in which they come: the type, whether they can be null, and where they come from.
_COLUMNS: Final[dict[str, tuple[Any, bool, Callable[[Response], object]]]] = {
    "stream_id": (pa.string(), False, lambda each: each.stream_id),
    "response_id": (pa.int64(), False, lambda each: each.response_id),
    "status": (pa.int32(), True, lambda each: each.status),
    "content_type": (pa.string(), True, lambda each: (each.headers or {}).get("content-type")),
    "started_at": (_TIME, False, lambda each: _time(each.started_at_ms)),
    "ended_at": (_TIME, True, lambda each: _time(each.ended_at_ms)),
    "outcome": (pa.string(), False, lambda each: each.outcome.value),
    "error_code": (pa.string(), True, lambda each: each.error_code),
    "error_message": (pa.string(), True, lambda each: each.error_message),
    "bytes": (pa.int64(), False, lambda each: each.size_bytes),
    "api": (pa.string(), True, _of_answer("api")),
    "model": (pa.string(), True, _of_answer("model")),
    "finish_reason": (pa.string(), True, _of_answer("finish_reason")),
    "prompt_tokens": (pa.int64(), True, _of_answer("prompt_tokens")),
    "completion_tokens": (pa.int64(), True, _of_answer("completion_tokens")),
    "total_tokens": (pa.int64(), True, _of_answer("total_tokens")),
    "tool_calls": (pa.int32(), True, _of_answer("tool_calls")),
    "text": (pa.string(), True, _of_answer("text")),
    "headers": (
        pa.map_(pa.string(), pa.string()),
        True,
        lambda each: None if each.headers is None else list(each.headers.items()),
    ),
    "body": (pa.binary(), True, lambda each: each.body),
    "body_truncated": (pa.bool_(), False, lambda each: each.size_bytes > len(each.body or b"")),
}
NAMES: Final = tuple(_COLUMNS)
_SCHEMA: Final = pa.schema([pa.field(x, kind, null) for x, (kind, null, _) in _COLUMNS.items()])
_FEW_VALUES: Final = (
    *("stream_id", "content_type", "outcome", "error_code"),
    *("api", "model", "finish_reason"),
)


@dataclass(frozen=True)
class ResponseLayout(Layout):
    """What the rows of such a table look like: always the same."""

    # By the day on which they began: those that never end have no other.
    time_column: ClassVar[str] = "started_at"
    large_columns: ClassVar[tuple[str, ...]] = ("error_message", "text", "headers", "body")

    @property
    def schema(self) -> Any:
        """The Arrow schema of the files."""
        return _SCHEMA

    @property
    def dictionary_columns(self) -> list[str]:
        """Columns of few values, which a dictionary makes small."""
        return list(_FEW_VALUES)


def to_batch(responses: Sequence[Response]) -> Any:
    """Responses as a RecordBatch."""
    arrays = [
        pa.array([value(each) for each in responses], kind) for kind, _, value in _COLUMNS.values()
    ]
    return pa.record_batch(arrays, schema=_SCHEMA)
