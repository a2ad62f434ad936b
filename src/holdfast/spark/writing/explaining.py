"""What went wrong with a request, in a sentence that says what to do about it."""

from __future__ import annotations

from holdfast.errors import (
    ContentTypeMismatchError,
    HoldfastError,
    PayloadTooLargeError,
    ProducerFencedError,
    ProducerGapError,
    StreamClosedError,
    StreamNotFoundError,
)
from holdfast.spark.session import rebuild_error
from holdfast.spark.writing.options import WriteOptions
from holdfast.spark.writing.report import BatchProducer
from holdfast.spark.writing.requests import Request


def explained(
    error: HoldfastError, request: Request, options: WriteOptions, producer: BatchProducer
) -> HoldfastError:
    """The same error with the stream and what to do in its message."""
    stream = f"the stream {request.name!r}"
    match error:
        case ProducerFencedError():
            said = (
                f"The producer {producer.producer_id!r} has written to {stream} under the epoch "
                f"{error.epoch}, and this is {producer.epoch}: another query has the same "
                "producerId, or the checkpoint was started anew; choose another producerId."
            )
        case StreamClosedError():
            said = f"The stream {request.name!r} is closed: {_rows(request)} cannot be appended."
        case ContentTypeMismatchError():
            said = (
                f"The stream {request.name!r} does not hold {options.content_type}: give its own "
                f"type as the option 'contentType'. ({error.message})"
            )
        case StreamNotFoundError() if request.seq:
            said = (
                f"The stream {request.name!r} was deleted while it was written to: "
                f"{_rows(request)} cannot follow those that went with it."
            )
        case StreamNotFoundError():
            said = (
                f"There is no stream {request.name!r}: create it first, "
                "or leave the option createStreams at true."
            )
        case PayloadTooLargeError():
            said = (
                f"{_rows(request).capitalize()} of {stream}, {len(request.body)} bytes, exceed "
                "what the server takes in one request: raise its setting body_bytes_max."
            )
        case ProducerGapError():
            said = (
                f"The server knows fewer requests of the producer {producer.producer_id!r} to "
                f"{stream} than were stored: was the stream deleted, or the server restored from "
                f"a backup? ({error.message})"
            )
        case _:
            said = f"Writing to {stream}: {error.message}"
    return rebuild_error(type(error), said)


def other_rows(request: Request, producer: BatchProducer, seq: int) -> str:
    """What to say if the stream has more of this batch than there is."""
    return (
        f"The stream {request.name!r} has {seq + 1} requests of the producer "
        f"{producer.producer_id!r} with the epoch {producer.epoch}, and these rows make "
        f"{request.seq + 1}: they are not the rows that were written under it. New rows need "
        "another producerEpoch or producerId; and rows of one stream must be in one task, as "
        "holdfast.spark.write_to_streams puts them."
    )


def _rows(request: Request) -> str:
    return "a row" if request.rows == 1 else f"{request.rows} rows"
