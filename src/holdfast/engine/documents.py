"""Documents: small durable values by key, for what is not a stream.

Published documents are what the log adds up to. Whoever keeps a view of its own that is ahead of
them has to be told when what it wrote will never be: `on_drop`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.format.records import Kind, Record, encode, encode_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from holdfast.clock import Clock
    from holdfast.engine.commit import CommitLoop, Reply
    from holdfast.engine.state import State


class Documents:
    """The documents of a shard."""

    def __init__(self, state: State, commits: CommitLoop, clock: Clock) -> None:
        self._state = state
        self._commits = commits
        self._clock = clock
        # Called when a batch failed, and with it every later one.
        self.on_drop: list[Callable[[], None]] = []

    def items(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """The published documents whose keys start so, in the order of their keys."""
        documents = self._state.documents
        for key in sorted(key for key in documents if key.startswith(prefix)):
            yield key, documents[key]

    def commit(self, changes: Mapping[str, bytes | None], reply: Reply, context: Any) -> None:
        """Change documents, all or none; None lets go of one.

        Raises if the log takes nothing now. Otherwise `reply(context, None)` comes once they are
        durable, or `reply(context, error)` if that fails.
        Like a deletion this is taken where memory is full: it makes no stream larger.
        """
        self._commits.check_log()
        record = Record(Kind.DOCUMENTS, 0, self._clock.now_ms(), encode_documents(dict(changes)))
        batch = self._commits.add(record, encode(record))
        batch.answers.append((reply, context, None))
