"""Ids of proxy streams: random ones, and those that follow from a session's id.

Which of the two an id is can be seen from it (the UUID's version), so that nothing has to be kept
to know whether a session's id leads to a stream.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid5

from holdfast.protocol.names import PROXY_BUCKET

if TYPE_CHECKING:
    from holdfast.clock import Clock

# Fixed for all time: another one would lead sessions to other streams.
SESSIONS: Final = UUID("6c1d2f0a-7f4e-5b1c-9a53-0d6e8b7f2a41")
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-([0-9a-f])[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def new_stream_id(clock: Clock) -> str:
    """An id for a stream that belongs to no session."""
    return str(UUID(bytes=clock.random_bytes(16), version=4))


def session_stream_id(session_id: str) -> str:
    """The id of a session's stream; it does not give the session's id away."""
    return str(uuid5(SESSIONS, session_id))


def is_stream_id(text: str) -> bool:
    """Whether this can be a proxy stream's id."""
    return _UUID.fullmatch(text) is not None


def is_of_session(stream_id: str) -> bool:
    """Whether connecting with a session's id leads to the stream."""
    found = _UUID.fullmatch(stream_id)
    return found is not None and found[1] == "5"


def name_of(stream_id: str) -> str:
    """The name of the stream that has an id."""
    return f"{PROXY_BUCKET}/{stream_id}"
