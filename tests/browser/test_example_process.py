"""The example as `make example-chat` starts it, with its own server and model; no browser yet."""

import signal
import uuid
from pathlib import Path

import httpx
import pytest

from holdfast.protocol.frames import COMPLETE, DATA, START, FrameParser
from tests.browser.example import Example

QUESTION = {"messages": [{"role": "user", "content": "What is a holdfast?"}]}


def frames_of(client: httpx.Client, url: str, last: bytes) -> dict[bytes, bytes]:
    """What a stream has up to a frame of this type, by type."""
    parser, found, offset = FrameParser(), {}, "-1"
    while last not in found:
        read = client.get(f"{url}&offset={offset}&live=long-poll").raise_for_status()
        offset = read.headers["stream-next-offset"]
        for frame in parser.feed(read.content):
            found[frame.type] = found.get(frame.type, b"") + frame.payload
    return found


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_and_ends_when_told_to(tmp_path: Path, how: signal.Signals):
    with Example(HOLDFAST_DATA_DIR=tmp_path) as example, httpx.Client(timeout=20) as client:
        assert "<title>Resumable chat</title>" in client.get(example.url).text
        session = f"{example.url}sessions/{uuid.uuid4()}"
        connected = client.post(session).raise_for_status().json()["url"]
        said = client.post(f"{session}/messages", json=QUESTION).raise_for_status().json()
        assert said["response"] == 1
        assert said["url"].partition("?")[0] == connected.partition("?")[0]
        frames = frames_of(client, said["url"], DATA)
        assert b"text/event-stream" in frames[START]
        assert COMPLETE not in frames
        status, stderr = example.stop(how)
        assert status == 0
        assert "Traceback" not in stderr
        with pytest.raises(httpx.ConnectError):
            client.get(said["url"])


def test_what_is_not_there_is_said(tmp_path: Path):
    with Example(HOLDFAST_URL="http://127.0.0.1:1", HOLDFAST_PROXY_SECRET="any") as example:
        answer = httpx.post(f"{example.url}sessions/{uuid.uuid4()}")
        assert (answer.status_code, answer.json()) == (
            502,
            {"error": "The server cannot be reached."},
        )
        assert httpx.get(f"{example.url}favicon.ico").status_code == 404
        assert httpx.post(f"{example.url}sessions/../etc").status_code == 404
        assert example.stop() == (0, "")
