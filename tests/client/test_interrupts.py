"""Ctrl-C ends a program that waits for messages, at once and in the usual way."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.client.targets import Target, new_name

DEADLINE_S = 20

SYNC = """
import sys
from holdfast.client import SyncClient

with SyncClient(sys.argv[1]) as client:
    stream = client.stream(sys.argv[2])
    stream.create("text/plain", messages=["ready"])
    with stream.read(live={live!r}) as reading:
        for message in reading:
            print(message.text, flush=True)
"""

ASYNC = """
import asyncio, sys
from holdfast.client import Client

async def main():
    async with Client(sys.argv[1]) as client:
        stream = client.stream(sys.argv[2])
        await stream.create("text/plain", messages=["ready"])
        async with stream.read(live={live!r}) as reading:
            async for message in reading:
                print(message.text, flush=True)

asyncio.run(main())
"""

PRODUCING = """
import sys
from holdfast.client import SyncClient

with SyncClient(sys.argv[1]) as client:
    stream = client.stream(sys.argv[2])
    stream.create("text/plain")
    with stream.producer("writer") as producer:
        producer.append("x")
        producer.flush()
        print("ready", flush=True)
        while True:
            producer.append("x")
"""

LEFT_OPEN = """
import sys
from holdfast.client import SyncClient

client = SyncClient(sys.argv[1])
stream = client.stream(sys.argv[2])
stream.create("text/plain", messages=["ready"])
for message in stream.read(live=True):
    print(message.text, flush=True)
"""


@contextmanager
def running(code: str, url: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, url, new_name()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "code",
    [
        SYNC.format(live="sse"),
        SYNC.format(live="long-poll"),
        ASYNC.format(live="sse"),
        ASYNC.format(live="long-poll"),
        PRODUCING,
        LEFT_OPEN,
    ],
    ids=["sync-sse", "sync-long-poll", "async-sse", "async-long-poll", "producing", "left-open"],
)
def test_interrupted(ours: Target, code: str) -> None:
    with running(code, ours.url) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == -signal.SIGINT, stderr
        assert stderr.rstrip().endswith("KeyboardInterrupt")
        assert stderr.count("Traceback") == 1 or "CancelledError" in stderr
        assert "never retrieved" not in stderr
