"""Answers of language models: put together from bodies cut anywhere, and never a failure."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol import llm_events
from holdfast.protocol.llm_events import (
    ModelResponse,
    ResponseDocument,
    ResponseEvents,
    response_reader,
)

SSE = {"content-type": "text/event-stream; charset=utf-8"}
JSON = {"content-type": "application/json"}


def data(*values):
    return b"".join(b"data: %s\n\n" % json.dumps(each).encode() for each in values)


def events(*values):
    """As the Responses and Messages APIs send them: with their names."""
    return b"".join(b"event: %s\n%s" % (each["type"].encode(), data(each)) for each in values)


def chunk(delta=None, reason=None, index=0, **more):
    choice = {"index": index, "delta": delta or {}, "finish_reason": reason}
    return {"object": "chat.completion.chunk", "model": "gpt-4o", "choices": [choice], **more}


USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
CHAT = (
    data(
        # Azure begins with this.
        {"choices": [], "model": "", "prompt_filter_results": []},
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Grüße"}),
        chunk({"content": "zweite Wahl"}, index=1),
        chunk({"reasoning_content": "hmm"}),
        chunk({"content": ", Welt 🌍"}),
        chunk({}, "stop"),
        {"object": "chat.completion.chunk", "choices": [], "usage": USAGE},
    )
    + b"data: [DONE]\n\n"
)
ANSWER = ModelResponse("openai", "Grüße, Welt 🌍", "gpt-4o", "stop", 12, 3, 15, 0)
MESSAGE = events(
    {
        "type": "message_start",
        "message": {
            "type": "message",
            "model": "claude-sonnet-4-5",
            "content": [],
            "usage": {
                "input_tokens": 10,
                "cache_creation_input_tokens": 200,
                "cache_read_input_tokens": 3000,
                "output_tokens": 1,
            },
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}},
    {"type": "ping"},
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "thinking_delta", "thinking": "What?"},
    },
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hel"}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "lo"}},
    {"type": "content_block_stop", "index": 1},
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "tool_use", "id": "a", "name": "look", "input": {}},
    },
    {
        "type": "content_block_delta",
        "index": 2,
        "delta": {"type": "input_json_delta", "partial_json": "{"},
    },
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use"},
        "usage": {"output_tokens": 25},
    },
    {"type": "message_stop"},
)
SAID = ModelResponse("anthropic", "Hello", "claude-sonnet-4-5", "tool_use", 3210, 25, 3235, 1)
RESPONSE = {
    "object": "response",
    "model": "gpt-5",
    "status": "completed",
    "output": [
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "name": "look"},
        {
            "type": "message",
            "content": [
                {"type": "output_text", "text": "A, "},
                {"type": "output_text", "text": "b"},
            ],
        },
    ],
    "usage": {"input_tokens": 7, "output_tokens": 4, "total_tokens": 11},
}
RESPONSES = events(
    {"type": "response.created", "response": {"status": "in_progress", "model": "gpt-5"}},
    {"type": "response.output_item.added", "item": {"type": "function_call"}},
    {"type": "response.output_item.added", "item": {"type": "message"}},
    {"type": "response.output_text.delta", "delta": "A, "},
    {"type": "response.output_text.delta", "delta": "b"},
    {"type": "response.output_text.done", "text": "A, b"},
    {"type": "response.completed", "response": RESPONSE},
)
ANSWERED = ModelResponse("openai", "A, b", "gpt-5", "completed", 7, 4, 11, 1)


def read(body, headers=SSE, pieces=1 << 30):
    reader = response_reader(headers)
    for at in range(0, len(body), pieces):
        reader.feed(body[at : at + pieces])
    return reader.response()


@pytest.mark.parametrize(
    ("body", "expected"), [(CHAT, ANSWER), (MESSAGE, SAID), (RESPONSES, ANSWERED)]
)
def test_streamed_answers_in_pieces_of_any_size(body, expected):
    for pieces in (1, 2, 7, 100, len(body)):
        assert read(body, pieces=pieces) == expected


def test_an_answer_that_was_cut_off_is_there_as_far_as_it_came():
    for end in range(len(CHAT)):
        found = read(CHAT[:end])
        assert found is None or ANSWER.text.startswith(found.text)
    assert read(MESSAGE[: MESSAGE.index(b"event: message_delta")]) == ModelResponse(
        "anthropic", "Hello", "claude-sonnet-4-5", None, 3210, 1, 3211, 1
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            {
                "object": "chat.completion",
                "model": "gpt-4o",
                "choices": [
                    {
                        "index": 0,
                        "message": {
                            "content": "Hi",
                            "tool_calls": [{"id": "a"}, {"id": "b"}],
                        },
                        "finish_reason": "tool_calls",
                    }
                ],
                "usage": USAGE,
            },
            ModelResponse("openai", "Hi", "gpt-4o", "tool_calls", 12, 3, 15, 2),
        ),
        (RESPONSE, ANSWERED),
        (
            {
                "type": "message",
                "role": "assistant",
                "model": "claude-x",
                "content": [{"type": "text", "text": "Hi"}, {"type": "tool_use", "id": "a"}],
                "stop_reason": "end_turn",
                "usage": {"input_tokens": 5, "output_tokens": 6},
            },
            ModelResponse("anthropic", "Hi", "claude-x", "end_turn", 5, 6, 11, 1),
        ),
        # Before there were chats.
        (
            {"object": "text_completion", "choices": [{"text": "Hi", "finish_reason": "length"}]},
            ModelResponse("openai", "Hi", None, "length"),
        ),
        ({"object": "list", "data": []}, None),
        ([RESPONSE], None),
    ],
)
def test_documents(value, expected):
    body = json.dumps(value).encode()
    assert read(body, JSON) == read(body, JSON, pieces=10) == expected
    assert read(body[:-1], JSON) is None


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ({"type": "response.incomplete"}, "max_output_tokens"),
        ({"type": "response.failed"}, "error"),
        ({"type": "error", "code": "server_error", "message": "no"}, "error"),
    ],
)
def test_responses_that_end_otherwise(last, reason):
    details = {
        "response.incomplete": {
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
        },
        "response.failed": {"status": "failed", "error": {"code": "server_error"}},
    }
    if last["type"] in details:
        last = last | {"response": details[last["type"]]}
    found = read(events({"type": "response.output_text.delta", "delta": "A"}, last))
    assert (found.api, found.text, found.finish_reason) == ("openai", "A", reason)


def test_errors_in_the_middle():
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    assert read(events(overloaded)) == ModelResponse("anthropic", "", None, "error")
    failed = read(data(chunk({"content": "A"}), {"error": {"message": "no"}}))
    assert (failed.text, failed.finish_reason) == ("A", "error")
    # Alone it may be anybody's.
    assert read(data({"error": {"message": "no"}})) is None


def test_tools_are_counted_once():
    body = data(
        chunk({"tool_calls": [{"index": 0, "function": {"name": "a"}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}),
        chunk({"tool_calls": [{"index": 1, "function": {"name": "b"}}]}),
        chunk({"function_call": {"name": "old"}}),
    )
    assert read(body).tool_calls == 2


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/jsonl"},
        SSE | {"content-encoding": "br"},
        JSON | {"content-encoding": "zstd"},
    ],
)
def test_what_is_no_answer_is_not_looked_at(headers):
    assert response_reader(headers) is None


def test_what_is_not_encoded_after_all_is():
    assert isinstance(response_reader(SSE | {"content-encoding": "identity"}), ResponseEvents)
    assert isinstance(response_reader({"content-type": "Application/JSON"}), ResponseDocument)


@pytest.mark.parametrize(
    "value",
    [
        {"choices": [None, 1, "x", {"index": 0}, {"delta": 3}, {"delta": {"content": 5}}]},
        {"choices": [{"delta": {"content": [{"text": 1}, None], "tool_calls": 3}}], "usage": 1},
        {"choices": [{"delta": {"tool_calls": [None, {"index": "a"}]}, "finish_reason": 4}]},
        {"choices": [], "model": 7, "usage": {"prompt_tokens": "many", "total_tokens": True}},
        {"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": 10**30}},
        {"type": "response.completed", "response": {"status": "completed", "output": [3, {}]}},
        {"type": "response.completed", "response": None},
        {"type": "response.output_text.delta", "delta": None},
        {"type": "message_start", "message": {"usage": {"input_tokens": None}, "model": []}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": 3}},
        {"type": "message_delta", "delta": {"stop_reason": 1}, "usage": []},
    ],
)
def test_fields_of_other_types_are_left_out(value):
    found = read(data(value))
    if found is not None:
        assert found == ModelResponse(found.api, "", finish_reason=found.finish_reason)
        assert found.finish_reason in {None, "completed"}


def test_events_that_are_no_json_are_passed_over():
    noise = b": comment\n\ndata: {\n\ndata: \xff\n\ndata: [1]\n\nretry: 5\n\n"
    deep = b"data: " + b'{"choices":' + b"[" * 100_000 + b"\n\n"
    surrogate = b'data: {"choices":[{"delta":{"content":"\\ud800"}}]}\n\n'
    whole = noise + CHAT[:200] + CHAT[200:].replace(b"data: [DONE]", noise + deep + surrogate)
    assert read(whole) == ANSWER


def test_what_is_too_long_is_no_answer(monkeypatch):
    monkeypatch.setattr(llm_events, "RESPONSE_BYTES_MAX", len(CHAT) - 1)
    assert read(CHAT, pieces=10) is None
    assert read(json.dumps(RESPONSE).encode() + b" " * 5000, JSON, pieces=10) is None


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "content", "type", "usage", "message", "response", "output"]
            )
            | st.text(max_size=3),
            inner
            | st.sampled_from(
                ["message", "message_start", "message_delta", "response.completed", "text"]
            ),
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.lists(values, max_size=5), st.binary(max_size=20))
def test_nothing_raises(found, noise):
    body = b"".join(b"data: %s\n\n" % json.dumps(each).encode() for each in found)
    for headers in (SSE, JSON):
        read(body + noise, headers)
        read(noise + body, headers, pieces=3)
    for each in found:
        answer = read(json.dumps(each).encode(), JSON)
        assert answer is None or isinstance(answer.text, str)
