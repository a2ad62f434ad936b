"""Reassembles the responses of language models from recorded response bodies.

Supports OpenAI's chat completions and Responses API, which many vendors offer, and Anthropic's
Messages API, each as Server-Sent Events or as one JSON document. Bodies are untrusted and may be
cut off anywhere: unreadable parts are skipped, and nothing here raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.errors import BadAnswerError
from holdfast.protocol.content import media_type
from holdfast.protocol.sse import SseParser

OPENAI: Final = "openai"
ANTHROPIC: Final = "anthropic"
# Longer bodies are not read.
RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024
# Keeps sums of token counts within 64 bits.
_COUNT_MAX: Final = 2**60
_ERROR: Final = "error"
# Anthropic counts tokens read from or written to a cache apart from other input.
_ANTHROPIC_INPUT: Final = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
)

_decode = msgspec.json.Decoder().decode


class ModelResponse(msgspec.Struct, frozen=True):
    """A model's response: the text of its first choice, without reasoning."""

    api: str
    text: str
    model: str | None = None
    # The API's own word, such as `stop`, `end_turn` or `max_tokens`; `error` if it failed.
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    tool_calls: int = 0


class ResponseEvents:
    """Reads a response from an event stream fed in pieces of any size."""

    def __init__(self) -> None:
        self._parser = SseParser()
        self._draft: _Draft | None = _Draft()
        self._left = RESPONSE_BYTES_MAX

    def feed(self, piece: bytes) -> None:
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
                self._draft.add_event(value)

    def response(self) -> ModelResponse | None:
        """The response so far; None if these are not events of a known API."""
        return None if self._draft is None else self._draft.response()


class ResponseDocument:
    """Reads a response from one JSON document fed in pieces."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._left = RESPONSE_BYTES_MAX

    def feed(self, piece: bytes) -> None:
        self._left -= len(piece)
        if self._left < 0:
            self._pieces = []
        else:
            self._pieces.append(piece)

    def response(self) -> ModelResponse | None:
        """The response; None if the document is cut off or not from a known API."""
        value = _decoded(b"".join(self._pieces))
        if not isinstance(value, dict):
            return None
        draft = _Draft()
        draft.add_document(value)
        return draft.response()


def response_reader(headers: Mapping[str, str]) -> ResponseEvents | ResponseDocument | None:
    """A reader for the body of a response with these headers; None if there is none."""
    if headers.get("content-encoding", "").strip().lower() not in {"", "identity"}:
        return None
    match media_type(headers.get("content-type", "")):
        case "text/event-stream":
            return ResponseEvents()
        case "application/json":
            return ResponseDocument()
        case _:
            return None


class _Draft:
    """A response under construction."""

    def __init__(self) -> None:
        self._api = ""
        self._text: list[str] = []
        self._model: str | None = None
        self._finish_reason: str | None = None
        self._prompt: int | None = None
        self._completion: int | None = None
        self._total: int | None = None
        self._input: dict[str, int] = {}
        # Chunks repeat the index of the tool call they belong to.
        self._calls: set[int] = set()

    def add_document(self, value: dict[str, Any]) -> None:
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
                self.add_event(value)

    def add_event(self, value: dict[str, Any]) -> None:
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

    def response(self) -> ModelResponse | None:
        if not self._api:
            return None
        prompt = self._prompt
        if self._input:
            prompt = sum(self._input.values())
        total = self._total
        if total is None and prompt is not None and self._completion is not None:
            total = prompt + self._completion
        return ModelResponse(
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
        """Add a choice of a chat completion: a part of it (`delta`), or all of it."""
        if not isinstance(choice, dict) or choice.get("index", 0) != 0:
            return
        self._finish_reason = _word(choice, "finish_reason") or self._finish_reason
        said = choice.get("delta") or choice.get("message")
        if not isinstance(said, dict):
            # The older completions API, without chats.
            self._add_text(choice.get("text"))
            return
        self._add_text(said.get("content"))
        calls = said.get("tool_calls")
        for at, call in enumerate(calls if isinstance(calls, list) else ()):
            index = call.get("index", at) if isinstance(call, dict) else None
            if isinstance(index, int):
                self._calls.add(index)
        if isinstance(said.get("function_call"), dict):
            self._calls.add(0)

    def _response_event(self, kind: str, value: dict[str, Any]) -> None:
        match kind, value:
            case "response.output_text.delta", {"delta": delta}:
                self._add_text(delta)
            case "response.output_item.added", {"item": item}:
                self._count_call(item)
            case _, {"response": dict(response)}:
                self._response(response)

    def _response(self, value: dict[str, Any]) -> None:
        """Add a response object, which the Responses API sends at the beginning and the end."""
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
                self._add_text(item.get("content"))

    def _count_call(self, item: object) -> None:
        if isinstance(item, dict) and (_word(item, "type") or "").endswith("_call"):
            self._calls.add(len(self._calls))

    def _message_event(self, kind: str, value: dict[str, Any]) -> None:
        match kind, value:
            case "message_start", {"message": dict(message)}:
                self._api = self._api or ANTHROPIC
                self._message(message)
            case "content_block_start", {"content_block": block}:
                self._api = self._api or ANTHROPIC
                self._block(block)
            case "content_block_delta", {"delta": {"type": "text_delta", "text": text}}:
                self._api = self._api or ANTHROPIC
                self._add_text(text)
            case "message_delta", {"delta": dict(delta)}:
                self._api = self._api or ANTHROPIC
                self._finish_reason = _word(delta, "stop_reason") or self._finish_reason
                self._anthropic_usage(value.get("usage"))
            case "error", _:
                # The Responses API also has an event of this name.
                self._api = self._api or (ANTHROPIC if "error" in value else OPENAI)
                self._finish_reason = _ERROR

    def _message(self, message: dict[str, Any]) -> None:
        self._model = _word(message, "model") or self._model
        self._anthropic_usage(message.get("usage"))

    def _block(self, block: object) -> None:
        match block:
            case {"type": "text", "text": text}:
                self._add_text(text)
            case {"type": str(kind)} if kind.endswith("tool_use"):
                self._calls.add(len(self._calls))

    def _openai_usage(self, usage: object, prompt: str, completion: str) -> None:
        # Counts are cumulative, so the last one wins.
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

    def _add_text(self, text: object) -> None:
        """Add a string, or the strings of a list of parts."""
        if isinstance(text, str):
            self._text.append(text)
        for part in text if isinstance(text, list) else ():
            match part:
                case {"type": "text" | "output_text", "text": str(said)}:
                    self._text.append(said)


def _decoded(data: bytes) -> object:
    """The parsed JSON; None for anything else, such as OpenAI's `[DONE]`."""
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
