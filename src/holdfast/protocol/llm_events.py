"""Answers of language models, put together from the bodies in which they were streamed.

Known are OpenAI's chat completions and Responses API, which many others speak as well, and
Anthropic's Messages API; each as Server-Sent Events or as one JSON document. Bodies come from
anywhere and may be cut off anywhere: what cannot be read is left out, and nothing here raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.errors import BadAnswerError
from holdfast.protocol.content import media_type
from holdfast.protocol.sse_parser import SseParser

__all__ = [
    "ANSWER_BYTES_MAX",
    "ANTHROPIC",
    "OPENAI",
    "Answer",
    "AnswerDocument",
    "AnswerEvents",
    "answer_reader",
]

OPENAI: Final = "openai"
ANTHROPIC: Final = "anthropic"
# What is longer is no answer that anybody reads.
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
# So that sums of some fit into 64 bits.
_COUNT_MAX: Final = 2**60
_ERROR: Final = "error"
# Anthropic counts what came from a cache, or went there, apart from other input.
_ANTHROPIC_INPUT: Final = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
)

_decode = msgspec.json.Decoder().decode


class Answer(msgspec.Struct, frozen=True):
    """What a model said. Reasoning is not part of the text; of several choices it is the first."""

    api: str
    text: str
    model: str | None = None
    # In the API's own word: `stop`, `end_turn`, `max_tokens`; `error` if it says that it failed.
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    tool_calls: int = 0


class AnswerEvents:
    """Takes the bytes of an event stream in pieces of any size."""

    def __init__(self) -> None:
        self._parser = SseParser()
        self._draft: _Draft | None = _Draft()
        self._left = ANSWER_BYTES_MAX

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body."""
        if self._draft is None:
            return
        self._left -= len(piece)
        if self._left < 0:
            self._draft = None
            return
        try:
            events = self._parser.feed(piece)
        except BadAnswerError:
            self._draft = None
            return
        for event in events:
            value = _decoded(event.data)
            if isinstance(value, dict):
                self._draft.take(value)

    def answer(self) -> Answer | None:
        """The answer as far as it came; None if these are no events of a known API."""
        return None if self._draft is None else self._draft.answer()


class AnswerDocument:
    """The same for a document that was not streamed; it is read when all of it is there."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._left = ANSWER_BYTES_MAX

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body."""
        self._left -= len(piece)
        if self._left < 0:
            self._pieces = []
        else:
            self._pieces.append(piece)

    def answer(self) -> Answer | None:
        """The answer; None if the document is cut off, or of no known API."""
        value = _decoded(b"".join(self._pieces))
        if not isinstance(value, dict):
            return None
        draft = _Draft()
        draft.take_whole(value)
        return draft.answer()


def answer_reader(headers: Mapping[str, str]) -> AnswerEvents | AnswerDocument | None:
    """What can read the body of a response with these headers; None if nothing can."""
    if headers.get("content-encoding", "").strip().lower() not in {"", "identity"}:
        return None
    match media_type(headers.get("content-type", "")):
        case "text/event-stream":
            return AnswerEvents()
        case "application/json":
            return AnswerDocument()
        case _:
            return None


class _Draft:
    """An answer that is not complete."""

    def __init__(self) -> None:
        self._api = ""
        self._text: list[str] = []
        self._model: str | None = None
        self._finish_reason: str | None = None
        self._prompt: int | None = None
        self._completion: int | None = None
        self._total: int | None = None
        self._input: dict[str, int] = {}
        # Chunks name a call again and again, by its index.
        self._calls: set[int] = set()

    def take_whole(self, value: dict[str, Any]) -> None:
        """Take a document."""
        match value:
            case {"object": "response", "output": list()}:
                self._api = OPENAI
                self._response(value)
            case {"type": "message", "content": list(blocks)}:
                self._api = ANTHROPIC
                self._message(value)
                for block in blocks:
                    self._block(block)
                self._finish_reason = _word(value, "stop_reason")
            case {"choices": list()}:
                self.take(value)

    def take(self, value: dict[str, Any]) -> None:
        """Take what an event holds."""
        match value:
            case {"choices": list(choices)}:
                self._api = self._api or OPENAI
                self._model = _word(value, "model") or self._model
                for choice in choices:
                    self._choice(choice)
                self._openai_usage(value.get("usage"), "prompt_tokens", "completion_tokens")
            case {"type": str(kind)} if kind.startswith("response."):
                self._api = self._api or OPENAI
                self._response_event(kind, value)
            case {"type": str(kind)}:
                self._message_event(kind, value)
            case {"error": dict()} if self._api:
                self._finish_reason = _ERROR

    def answer(self) -> Answer | None:
        """What there is so far."""
        if not self._api:
            return None
        prompt = self._prompt
        if self._input:
            prompt = sum(self._input.values())
        total = self._total
        if total is None and prompt is not None and self._completion is not None:
            total = prompt + self._completion
        return Answer(
            self._api,
            "".join(self._text),
            self._model,
            self._finish_reason,
            prompt,
            self._completion,
            total,
            len(self._calls),
        )

    def _choice(self, choice: object) -> None:
        """A choice of a chat completion: a part of one (`delta`), or all of it."""
        if not isinstance(choice, dict) or choice.get("index", 0) != 0:
            return
        self._finish_reason = _word(choice, "finish_reason") or self._finish_reason
        said = choice.get("delta") or choice.get("message")
        if not isinstance(said, dict):
            # What the API was before it knew of chats.
            self._add(choice.get("text"))
            return
        self._add(said.get("content"))
        calls = said.get("tool_calls")
        for at, call in enumerate(calls if isinstance(calls, list) else ()):
            index = call.get("index", at) if isinstance(call, dict) else None
            if isinstance(index, int):
                self._calls.add(index)
        if isinstance(said.get("function_call"), dict):
            self._calls.add(0)

    def _response_event(self, kind: str, value: dict[str, Any]) -> None:
        """An event of the Responses API."""
        match kind, value:
            case "response.output_text.delta", {"delta": delta}:
                self._add(delta)
            case "response.output_item.added", {"item": item}:
                self._count_call(item)
            case _, {"response": dict(response)}:
                self._response(response)

    def _response(self, value: dict[str, Any]) -> None:
        """What the Responses API says of the whole: at the beginning and at the end."""
        self._model = _word(value, "model") or self._model
        self._openai_usage(value.get("usage"), "input_tokens", "output_tokens")
        status = _word(value, "status")
        if status in {None, "queued", "in_progress"}:
            return
        details = value.get("incomplete_details")
        reason = _word(details, "reason") if isinstance(details, dict) else None
        self._finish_reason = _ERROR if status == "failed" else reason or status
        output = value.get("output")
        is_new = not self._text and not self._calls
        for item in output if isinstance(output, list) and is_new else ():
            self._count_call(item)
            if isinstance(item, dict) and item.get("type") == "message":
                self._add(item.get("content"))

    def _count_call(self, item: object) -> None:
        if isinstance(item, dict) and (_word(item, "type") or "").endswith("_call"):
            self._calls.add(len(self._calls))

    def _message_event(self, kind: str, value: dict[str, Any]) -> None:
        """An event of the Messages API."""
        match kind, value:
            case "message_start", {"message": dict(message)}:
                self._api = self._api or ANTHROPIC
                self._message(message)
            case "content_block_start", {"content_block": block}:
                self._api = self._api or ANTHROPIC
                self._block(block)
            case "content_block_delta", {"delta": {"type": "text_delta", "text": text}}:
                self._api = self._api or ANTHROPIC
                self._add(text)
            case "message_delta", {"delta": dict(delta)}:
                self._api = self._api or ANTHROPIC
                self._finish_reason = _word(delta, "stop_reason") or self._finish_reason
                self._anthropic_usage(value.get("usage"))
            case "error", _:
                # The Responses API has an event of this name, too.
                self._api = self._api or (ANTHROPIC if "error" in value else OPENAI)
                self._finish_reason = _ERROR

    def _message(self, message: dict[str, Any]) -> None:
        self._model = _word(message, "model") or self._model
        self._anthropic_usage(message.get("usage"))

    def _block(self, block: object) -> None:
        match block:
            case {"type": "text", "text": text}:
                self._add(text)
            case {"type": str(kind)} if kind.endswith("tool_use"):
                self._calls.add(len(self._calls))

    def _openai_usage(self, usage: object, prompt: str, completion: str) -> None:
        # Each is of all so far, so the last one counts.
        if isinstance(usage, dict):
            self._prompt = _count(usage, prompt, self._prompt)
            self._completion = _count(usage, completion, self._completion)
            self._total = _count(usage, "total_tokens", self._total)

    def _anthropic_usage(self, usage: object) -> None:
        if isinstance(usage, dict):
            self._completion = _count(usage, "output_tokens", self._completion)
            for name in _ANTHROPIC_INPUT:
                found = _count(usage, name, None)
                if found is not None:
                    self._input[name] = found

    def _add(self, text: object) -> None:
        """Add text, or the texts of parts."""
        if isinstance(text, str):
            self._text.append(text)
        for part in text if isinstance(text, list) else ():
            match part:
                case {"type": "text" | "output_text", "text": str(said)}:
                    self._text.append(said)


def _decoded(data: bytes) -> object:
    """JSON as Python has it; None for anything else, such as the `[DONE]` of OpenAI."""
    try:
        return _decode(data)
    except (ValueError, RecursionError):
        return None


def _word(value: dict[str, Any], name: str) -> str | None:
    found = value.get(name)
    return found if isinstance(found, str) else None


def _count(usage: dict[str, Any], name: str, known: int | None) -> int | None:
    found = usage.get(name)
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= _COUNT_MAX:
        return found
    return known
