"""What the headers of answers say, checked."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.client.messages import Batch, parse_lengths
from holdfast.errors import BadAnswerError
from holdfast.net.outbound import OutboundResponse


def is_set(headers: Mapping[str, str], name: str) -> bool:
    """Whether a flag of the protocol is set."""
    return headers.get(name, "").lower() == "true"


def next_offset(headers: Mapping[str, str]) -> str:
    """Where to go on; every answer to a read has it."""
    offset = headers.get("stream-next-offset", "")
    if not offset:
        raise BadAnswerError("The answer has no Stream-Next-Offset: is this a stream's URL?")
    return offset


def batch_of(answer: OutboundResponse, asked_from: str) -> Batch:
    """The batch in the answer to a catch-up or long-poll read."""
    headers = answer.headers
    offset = next_offset(headers)
    closed = is_set(headers, "stream-closed")
    at_tail = closed or is_set(headers, "stream-up-to-date") or answer.status == 204
    return Batch(
        b"" if answer.status == 204 else answer.body,
        headers.get("content-type", ""),
        headers.get("stream-start-offset", asked_from),
        offset,
        # An answer that leads nowhere is the end as well, whatever else it says.
        up_to_date=at_tail or offset == asked_from,
        closed=closed,
        cursor=headers.get("stream-cursor"),
        lengths=parse_lengths(headers.get("stream-message-lengths")),
    )
