"""Idempotent producers: whether a stream accepts the next (epoch, seq) of a producer.

Rules, in order, for a producer whose last accepted pair on this stream is (E, S):

- never seen: seq 0 is accepted with any epoch, anything else is a gap that expects 0
- epoch < E: fenced
- epoch > E: accepted with seq 0, otherwise a malformed request
- seq = S, with another digest than that of S: refused
- seq <= S: a duplicate
- seq = S + 1: accepted
- seq > S + 1: a gap that expects S + 1

A digest is the client's, of all its requests of the epoch up to this one. It tells a repeated
request from another one under the same number. A request or a state without one matches any.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final, NamedTuple

from holdfast.errors import (
    InvalidRequestError,
    ProducerDigestError,
    ProducerFencedError,
    ProducerGapError,
)

NUMBER_MAX: Final = 2**53 - 1
_NUMBER_DIGITS_MAX: Final = 16
ID_BYTES_MAX: Final = 255
DIGEST_BYTES: Final = 8
_DIGEST: Final = re.compile(rb"[0-9a-fA-F]{16}")


class Producer(NamedTuple):
    """The producer headers of one request."""

    id: bytes
    epoch: int
    seq: int
    # `DIGEST_BYTES` bytes, or none.
    digest: bytes = b""


class ProducerState(NamedTuple):
    """The last pair accepted from one producer on one stream, and when that was."""

    epoch: int
    seq: int
    # 0 in replies, and in rows of versions that did not record it.
    used_ms: int = 0
    # Of the request with this pair; empty if it had none.
    digest: bytes = b""


def is_duplicate(state: ProducerState | None, producer: Producer) -> bool:
    """Whether this request was accepted before; raises if it must be rejected."""
    if state is None:
        if producer.seq != 0:
            raise ProducerGapError(0, producer.seq)
        return False
    if producer.epoch < state.epoch:
        raise ProducerFencedError(state.epoch)
    if producer.epoch > state.epoch:
        if producer.seq != 0:
            raise InvalidRequestError("A new producer epoch must start with Producer-Seq 0.")
        return False
    if producer.seq <= state.seq:
        if producer.seq == state.seq:
            check_digest(producer, state.digest)
        return True
    if producer.seq != state.seq + 1:
        raise ProducerGapError(state.seq + 1, producer.seq)
    return False


def check_digest(producer: Producer, stored: bytes) -> None:
    """Raise if a repeated request has another digest than the one that is stored."""
    if producer.digest and stored and producer.digest != stored:
        raise ProducerDigestError(producer.epoch, producer.seq, stored.hex())


def chained_digest(before: str, body: bytes) -> str:
    """The digest of a request, given that of the request before it: "" for the first of an epoch.

    The server compares digests and computes none, so other clients may have other functions.
    """
    digest = blake2b(bytes.fromhex(before), digest_size=DIGEST_BYTES)
    digest.update(body)
    return digest.hexdigest()


def parse_producer(
    producer_id: bytes | None,
    epoch: bytes | None,
    seq: bytes | None,
    digest: bytes | None = None,
) -> Producer | None:
    """Parse the producer headers of a request: all three or none, and perhaps a digest."""
    if producer_id is None and epoch is None and seq is None and digest is None:
        return None
    if producer_id is None or epoch is None or seq is None:
        raise InvalidRequestError(
            "Producer-Id, Producer-Epoch and Producer-Seq must be sent together or not at all, and "
            "Producer-Digest only with them."
        )
    if not producer_id or len(producer_id) > ID_BYTES_MAX:
        raise InvalidRequestError(f"Producer-Id must have 1 to {ID_BYTES_MAX} bytes.")
    return Producer(
        producer_id,
        _parse_number("Producer-Epoch", epoch),
        _parse_number("Producer-Seq", seq),
        b"" if digest is None else _parse_digest(digest),
    )


def _parse_digest(raw: bytes) -> bytes:
    if _DIGEST.fullmatch(raw):
        return bytes.fromhex(raw.decode())
    text = raw[:40].decode("latin-1")
    raise InvalidRequestError(
        f"Producer-Digest must have {2 * DIGEST_BYTES} hexadecimal digits, not {text!r}."
    )


def _parse_number(header: str, raw: bytes) -> int:
    if raw.isdigit() and len(raw) <= _NUMBER_DIGITS_MAX:
        number = int(raw)
        if number <= NUMBER_MAX:
            return number
    text = raw[:40].decode("latin-1")
    raise InvalidRequestError(
        f"{header} must be a whole number from 0 to {NUMBER_MAX}, not {text!r}."
    )
