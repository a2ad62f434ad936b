"""Callers of the proxy that know what they were promised, and check it after every crash.

Each has a stream of its own, a session's or one that was created, and has responses of an upstream
recorded there, several at a time. `call` goes on until the server is gone; `check` compares what is
there then with what was answered and read before.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random

import httpx

from holdfast.protocol.frames import DATA, START, TERMINAL, FrameParser, ResponseOrder
from tests.server_process import ServerProcess
from tests.storage_stats import until
from tests.upstreams import Upstream, pattern

SECRET = "f04d3c1b98a7465e8c21d70b5e9a3f62"
SETTINGS = {"proxy_secret": SECRET, "proxy_allowlist": "http://127.0.0.1:*"}
SERVICE = {"Authorization": f"Bearer {SECRET}"}
SIZES = (0, 1, 100, 5000, 40_000, 300_000)


def client_of(server: ServerProcess) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers=SERVICE, timeout=20)


class Caller:
    """Has responses recorded in one stream."""

    def __init__(self, upstream: Upstream, seed: int, session: str | None) -> None:
        self._upstream = upstream
        self._random = Random(seed)
        self._session = session
        self.stream_id = ""
        self._location = ""
        # The size of each response that was promised, by id.
        self._promised: dict[int, int] = {}
        self._seen = b""
        self.promises = 0

    def call(self, server: ServerProcess) -> None:
        """Ask for responses, and read what is there, until the server is gone."""
        with client_of(server) as client, suppress(httpx.TransportError):
            while True:
                self._ask(client)
                if self._random.random() < 0.3:
                    self._see(self._read(client))
                if self._promised and self._random.random() < 0.2:
                    chosen = self._random.choice(list(self._promised))
                    path = self._location.partition("/v1/")[2]
                    answer = client.patch(f"/v1/{path}&action=abort&response={chosen}")
                    assert answer.status_code == 204, answer.text

    def _ask(self, client: httpx.Client) -> None:
        if self._session is not None and not self._location:
            answer = client.post("/v1/proxy", headers={"Session-Id": self._session})
            assert answer.status_code in {200, 201}, answer.text
            self._find(answer.headers["location"])
        size = self._random.choice(SIZES)
        ways = ({}, {"delay_ms": 2}, {"gate": 1}, {"after": 1, "end": "cut"})
        url = self._upstream.url("/bytes", count=size, piece=1000, **self._random.choice(ways))
        headers = {"Upstream-URL": url, "Upstream-Method": "GET"}
        if self._location:
            headers["Use-Stream-URL"] = self._location
        answer = client.post("/v1/proxy", headers=headers)
        assert answer.status_code in {200, 201}, answer.text
        self._find(answer.headers["location"])
        self._promised[int(answer.headers["stream-response-id"])] = size
        self.promises += 1

    def _find(self, location: str) -> None:
        self._location = location
        self.stream_id = location.partition("?")[0].rpartition("/")[2]

    def _read(self, client: httpx.Client) -> bytes:
        data, offset = b"", "-1"
        while True:
            answer = client.get(f"/v1/proxy/{self.stream_id}?offset={offset}")
            assert answer.status_code == 200, answer.text
            data += answer.content
            offset = answer.headers["stream-next-offset"]
            if "stream-up-to-date" in answer.headers:
                return data

    def _see(self, data: bytes) -> None:
        assert data.startswith(self._seen), "what was read before has changed"
        self._seen = data

    def check(self, client: httpx.Client) -> None:
        """All that was promised is there and, in a moment, every response has ended."""
        if not self.stream_id:
            return
        until(lambda: not self._open_responses(client))
        self._check_bodies()

    def _open_responses(self, client: httpx.Client) -> set[int]:
        self._see(self._read(client))
        parser, order = FrameParser(), ResponseOrder()
        frames = parser.feed(self._seen)
        assert parser.is_between_frames, "half of a frame"
        for frame in frames:
            order.take(frame)
        ids = [frame.response_id for frame in frames if frame.type == START]
        assert ids == list(range(1, len(ids) + 1)), "ids are not 1, 2, 3…"
        assert set(self._promised) <= set(ids), "answered, but not there"
        return order.open

    def _check_bodies(self) -> None:
        bodies: dict[int, bytearray] = {}
        ends: dict[int, bytes] = {}
        for frame in FrameParser().feed(self._seen):
            body = bodies.setdefault(frame.response_id, bytearray())
            if frame.type == DATA:
                body += frame.payload
            elif frame.type in TERMINAL:
                ends[frame.response_id] = frame.type
        for response_id, body in bodies.items():
            assert body == pattern(len(body)), "not what the upstream sent"
            sizes = {self._promised[response_id]} if response_id in self._promised else set(SIZES)
            assert len(body) <= max(sizes)
            assert ends[response_id] != b"C" or len(body) in sizes, "complete, but not all of it"


def call_until(callers: list[Caller], server: ServerProcess, is_over) -> None:
    """Let all call at once until it is over, which ends the server; raise what went wrong."""
    with ThreadPoolExecutor(len(callers)) as pool:
        calls = [pool.submit(caller.call, server) for caller in callers]
        try:
            is_over()
        finally:
            if server.running:
                server.kill()
            for call in calls:
                call.result()
