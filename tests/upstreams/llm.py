"""Answers of language models as OpenAI and Anthropic stream them: one event is one piece."""

import json
import re
from typing import Any

from tests.upstreams.replies import Reply
from tests.upstreams.requests import Request

SSE = "text/event-stream; charset=utf-8"
CREATED = 1_760_000_000


def chat_completions(request: Request) -> Reply:
    """OpenAI's `/v1/chat/completions`: chunks, the usage in the last of them, and `[DONE]`.

    The query's `text` is the answer, otherwise the question is repeated; `finish` is the reason.
    """
    asked = _asked(request)
    words = _words(request, asked)
    model, finish = asked.get("model", "gpt-test"), _one(request, "finish", "stop")
    usage = {
        "prompt_tokens": len(_prompt(asked).split()),
        "completion_tokens": len(words),
        "total_tokens": len(_prompt(asked).split()) + len(words),
    }
    envelope = {"id": "chatcmpl-test", "created": CREATED, "model": model}
    if asked.get("stream") is False:
        message = {"role": "assistant", "content": "".join(words)}
        choices = [{"index": 0, "message": message, "finish_reason": finish}]
        whole = {**envelope, "object": "chat.completion", "choices": choices, "usage": usage}
        return Reply(json.dumps(whole).encode(), content_type="application/json")

    def chunk(choices: list[dict[str, Any]], **more: object) -> bytes:
        return _data({**envelope, "object": "chat.completion.chunk", "choices": choices, **more})

    def choice(delta: dict[str, str], reason: str | None = None) -> list[dict[str, Any]]:
        return [{"index": 0, "delta": delta, "finish_reason": reason}]

    events = [
        chunk(choice({"role": "assistant", "content": ""})),
        *(chunk(choice({"content": word})) for word in words),
        chunk(choice({}, finish)),
        chunk([], usage=usage),
        b"data: [DONE]\n\n",
    ]
    return Reply(events, content_type=SSE, headers=[("x-request-id", "req-test")])


def messages(request: Request) -> Reply:
    """Anthropic's `/v1/messages`: named events from `message_start` to `message_stop`."""
    asked = _asked(request)
    words = _words(request, asked)
    usage = {"input_tokens": len(_prompt(asked).split()), "output_tokens": 1}
    message: dict[str, Any] = {
        "id": "msg_test",
        "type": "message",
        "role": "assistant",
        "model": asked.get("model", "claude-test"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    reason = _one(request, "finish", "end_turn")
    if asked.get("stream") is False:
        usage["output_tokens"] = len(words)
        content = [{"type": "text", "text": "".join(words)}]
        whole = {**message, "content": content, "stop_reason": reason}
        return Reply(json.dumps(whole).encode(), content_type="application/json")
    text = [
        _event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
        for word in words
    ]
    events = [
        _event("message_start", message=message),
        _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        _event("ping"),
        *text,
        _event("content_block_stop", index=0),
        _event(
            "message_delta",
            delta={"stop_reason": reason, "stop_sequence": None},
            usage={"output_tokens": len(words)},
        ),
        _event("message_stop"),
    ]
    return Reply(events, content_type=SSE, headers=[("request-id", "req_test")])


def _asked(request: Request) -> dict[str, Any]:
    return request.json if request.body else {}


def _prompt(asked: dict[str, Any]) -> str:
    turns = asked.get("messages") or [{"content": ""}]
    return str(turns[-1]["content"])


def _words(request: Request, asked: dict[str, Any]) -> list[str]:
    """The answer word by word; the blanks belong to the words after them, as tokens have it."""
    text = _one(request, "text", f"You asked: {_prompt(asked)}")
    return re.findall(r"\s*\S+", text)


def _one(request: Request, name: str, default: str) -> str:
    return request.query.get(name, [default])[-1]


def _data(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def _event(name: str, **fields: object) -> bytes:
    return f"event: {name}\n".encode() + _data({"type": name, **fields})
