"""Errors of the client, in the words of the upstream suite."""

from typing import Any

from holdfast.errors import (
    BadAnswerError,
    ConflictError,
    HoldfastError,
    InvalidOffsetError,
    InvalidRequestError,
    NotFoundError,
    OutboundError,
    PreconditionFailedError,
    ProducerFencedError,
    ProducerGapError,
    StreamClosedError,
    StreamSeqError,
)

Command = dict[str, Any]
Result = dict[str, Any]


class NotSupportedError(Exception):
    """The client has nothing of the kind."""


def error_result(command: Command, error: Exception) -> Result:
    """The result of a command that failed."""
    result = {
        "type": "error",
        "success": False,
        "commandType": command.get("type", "unknown"),
        "errorCode": _code_of(command, error),
        "message": str(error) or type(error).__name__,
    }
    if isinstance(error, HoldfastError) and not _is_without_answer(error):
        result["status"] = error.status
    details = _details(error)
    return result | ({"details": details} if details else {})


def _code_of(command: Command, error: Exception) -> str:
    match error:
        case NotSupportedError():
            return "NOT_SUPPORTED"
        case TimeoutError():
            return "TIMEOUT"
        case OutboundError():
            return "NETWORK_ERROR"
        case InvalidRequestError() if command.get("type") == "validate":
            return "INVALID_ARGUMENT"
        case BadAnswerError() if _is_without_answer(error):
            return "PARSE_ERROR"
        case HoldfastError():
            return _code_of_answer(command, error)
        case _:
            return "INTERNAL_ERROR"


def _code_of_answer(command: Command, error: HoldfastError) -> str:
    match error:
        case StreamClosedError():
            return "STREAM_CLOSED"
        case StreamSeqError() | ProducerGapError():
            return "SEQUENCE_CONFLICT"
        case ConflictError() if "sequence" in str(error).lower():
            # A server without codes of its own says it in words.
            return "SEQUENCE_CONFLICT"
        case ConflictError():
            return "CONFLICT"
        case NotFoundError():
            return "NOT_FOUND"
        case PreconditionFailedError():
            return "PRECONDITION_FAILED"
        case InvalidOffsetError():
            return "INVALID_OFFSET"
        case InvalidRequestError() if command.get("type") == "read" and _names_offset(error):
            return "INVALID_OFFSET"
        case _:
            return "UNEXPECTED_STATUS"


def _names_offset(error: HoldfastError) -> bool:
    return "offset" in str(error).lower()


def _is_without_answer(error: HoldfastError) -> bool:
    """Whether no status was answered: the class's own stands in for it then."""
    lacks = isinstance(error, BadAnswerError) and error.status == BadAnswerError.status
    return lacks or isinstance(error, OutboundError)


def _details(error: Exception) -> dict[str, int]:
    match error:
        case ProducerFencedError():
            return {"producerEpoch": error.epoch}
        case ProducerGapError():
            return {"producerExpectedSeq": error.expected, "producerReceivedSeq": error.received}
        case _:
            return {}
