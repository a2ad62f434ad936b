"""kill -9 between an append and its acknowledgement, again and again: the wake comes again."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import httpx
import pytest

from tests.crash.conftest import MakeServer
from tests.server_process import ServerProcess
from tests.webhook_receiver import WebhookReceiver

ALLOW = {"webhooks_allow": "http://127.0.0.1:*"}
CONTROL = "/v1/stream/__ds/subscriptions"
DEADLINE_S = 30.0
KILLS = 5
STREAMS = 5


def client_of(server: ServerProcess) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=10)


def until(reached: Callable[[], object]) -> None:
    ends = time.monotonic() + DEADLINE_S
    while not reached():
        assert time.monotonic() < ends, "waited too long"
        time.sleep(0.02)


def subscribe(client: httpx.Client, name: str, **body: Any) -> None:
    answer = client.put(f"{CONTROL}/{name}", json={"pattern": "events/*", **body})
    assert answer.status_code in {200, 201}, answer.text


def append(client: httpx.Client, path: str) -> str:
    headers = {"Content-Type": "application/json"}
    answer = client.post(f"/v1/stream/{path}", content=b"1", headers=headers)
    if answer.status_code == 404:
        answer = client.put(f"/v1/stream/{path}", content=b"1", headers=headers)
    assert answer.status_code in {201, 204}, answer.text
    return answer.headers["Stream-Next-Offset"]


def acked(client: httpx.Client, name: str) -> dict[str, str]:
    streams = client.get(f"{CONTROL}/{name}").json()["streams"]
    return {each["path"]: each["acked_offset"] for each in streams}


def test_a_wake_under_way_outlives_the_server(make_server: MakeServer) -> None:
    server = make_server(**ALLOW)
    with WebhookReceiver() as receiver:
        server.start()
        with client_of(server) as client:
            subscribe(client, "hook", type="webhook", webhook={"url": receiver.url})
            append(client, "events/a")
            wake = receiver.next().json
        server.kill()
        server.start()
        body = {
            "wake_id": wake["wake_id"],
            "generation": wake["generation"],
            "acks": [{"stream": "events/a", "offset": wake["streams"][0]["tail_offset"]}],
            "done": True,
        }
        headers = {"Authorization": f"Bearer {wake['callback_token']}"}
        with client_of(server) as client:
            answer = client.post(f"{CONTROL}/hook/callback", json=body, headers=headers)
            assert answer.json() == {"ok": True, "next_wake": False}
            assert acked(client, "hook") == {"events/a": wake["streams"][0]["tail_offset"]}


@pytest.mark.spec("subscriptions 7-1")
def test_a_wake_that_was_not_acknowledged_comes_again(make_server: MakeServer) -> None:
    server = make_server(**ALLOW)
    with WebhookReceiver() as receiver:
        server.start()
        with client_of(server) as client:
            subscribe(
                client, "hook", type="webhook", webhook={"url": receiver.url}, lease_ttl_ms=1000
            )
            tail = append(client, "events/a")
            first = receiver.next().json
        server.kill()
        receiver.answer = lambda _received: (200, b'{"done":true}')
        server.start()
        again = receiver.next().json
        assert again["generation"] >= first["generation"]
        assert again["streams"][0]["acked_offset"] == "-1"
        with client_of(server) as client:
            until(lambda: acked(client, "hook") == {"events/a": tail})


@pytest.mark.slow
@pytest.mark.spec("subscriptions 7.2-9", "subscriptions 7.3-9", "subscriptions 7.3-10")
def test_a_claim_outlives_the_server_and_its_lease_does_not(make_server: MakeServer) -> None:
    server = make_server().start()
    with client_of(server) as client:
        client.put("/v1/stream/wake/pool", headers={"Content-Type": "application/json"})
        subscribe(client, "pull", type="pull-wake", wake_stream="wake/pool", lease_ttl_ms=3000)
        append(client, "events/a")
        wake = client.post(f"{CONTROL}/pull/claim", json={"worker": "one"}).json()
    server.kill()
    server.start()
    with client_of(server) as client:
        busy = client.post(f"{CONTROL}/pull/claim", json={"worker": "two"}).json()
        assert busy["error"]["current_holder"] == "one"
        until(
            lambda: client.post(f"{CONTROL}/pull/claim", json={"worker": "two"}).status_code == 200
        )
        body = {"wake_id": wake["wake_id"], "generation": wake["generation"]}
        headers = {"Authorization": f"Bearer {wake['token']}"}
        stale = client.post(f"{CONTROL}/pull/ack", json=body, headers=headers)
        assert stale.json()["error"]["code"] == "FENCED"


def test_subscriptions_outlive_the_log_that_they_were_written_to(make_server: MakeServer) -> None:
    """Once everything is in packs the log is trimmed: documents are in the catalog then."""
    server = make_server(**ALLOW)
    with WebhookReceiver(lambda _received: (200, b'{"done":true}')) as receiver:
        server.start()
        with client_of(server) as client:
            subscribe(client, "hook", type="webhook", webhook={"url": receiver.url})
            tail = append(client, "events/a")
            until(lambda: acked(client, "hook") == {"events/a": tail})
            shown = client.get(f"{CONTROL}/hook").json()
            assert client.post("/cluster/flush").status_code == 204
        server.kill()
        server.start()
        with client_of(server) as client:
            assert client.get(f"{CONTROL}/hook").json() == shown
            tail = append(client, "events/a")
            until(lambda: acked(client, "hook") == {"events/a": tail})


class Worker:
    """Claims, acknowledges, and checks that nothing goes back, whoever is killed meanwhile."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.ends = threading.Event()
        self.generation = 0
        self.problems: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self.ends.set()
        self._thread.join()
        assert self.problems == []

    def _run(self) -> None:
        while not self.ends.is_set():
            with suppress(httpx.HTTPError), client_of(self._server) as client:
                while not self.ends.is_set():
                    self._work(client)
            time.sleep(0.02)

    def _work(self, client: httpx.Client) -> None:
        claimed = client.post(f"{CONTROL}/pull/claim", json={"worker": "worker"})
        if claimed.status_code != 200:
            time.sleep(0.01)
            return
        wake = claimed.json()
        if wake["generation"] < self.generation:
            self.problems.append(f"generation {wake['generation']} after {self.generation}")
        self.generation = wake["generation"]
        body = {
            "wake_id": wake["wake_id"],
            "generation": wake["generation"],
            "acks": [
                {"stream": each["path"], "offset": each["tail_offset"]}
                for each in wake["streams"]
                if each["has_pending"]
            ],
            "done": True,
        }
        headers = {"Authorization": f"Bearer {wake['token']}"}
        answer = client.post(f"{CONTROL}/pull/ack", json=body, headers=headers)
        if answer.status_code not in {200, 409, 503}:
            self.problems.append(answer.text)


@pytest.mark.slow
@pytest.mark.spec("subscriptions 7-1")
@pytest.mark.parametrize("seed", [1, 2])
def test_everything_is_processed_however_often_the_server_is_killed(
    make_server: MakeServer, seed: int
) -> None:
    random = Random(seed)
    server = make_server(**ALLOW)
    server.start()
    tails: dict[str, str] = {}
    seen: dict[str, str] = {}
    with WebhookReceiver(lambda _received: (200, b'{"done":true}')) as receiver:
        with client_of(server) as client:
            client.put("/v1/stream/wake/pool", headers={"Content-Type": "application/json"})
            lease = {"lease_ttl_ms": 1000}
            subscribe(client, "pull", type="pull-wake", wake_stream="wake/pool", **lease)
            subscribe(client, "hook", type="webhook", webhook={"url": receiver.url}, **lease)
        worker = Worker(server)
        worker.start()
        known: dict[str, dict[str, str]] = {"pull": {}, "hook": {}}
        try:
            for _ in range(KILLS):
                append_until_killed(server, random, tails)
                server.start()
                with client_of(server) as client:
                    for name, before in known.items():
                        present = acked(client, name)
                        assert all(present[path] >= offset for path, offset in before.items())
                        known[name] = {path: at for path, at in present.items() if at != "-1"}
            with client_of(server) as client:
                answered, tails = tails, present_tails(client)
                assert all(tails[path] >= tail for path, tail in answered.items())
                for name in known:
                    until(lambda name=name: acked(client, name) == tails)
        finally:
            worker.join()
        while not receiver.received.empty():
            for path, tail in receiver.received.get().tails().items():
                seen[path] = max(tail, seen.get(path, ""))
        assert seen == tails


def append_until_killed(server: ServerProcess, random: Random, tails: dict[str, str]) -> None:
    """Append until the server is gone, at some arbitrary moment."""
    killer = threading.Timer(random.uniform(0.05, 0.6), server.kill)
    killer.start()
    with suppress(httpx.HTTPError), client_of(server) as client:
        while True:
            path = f"events/{random.randrange(STREAMS)}"
            tails[path] = append(client, path)
    killer.join()


def present_tails(client: httpx.Client) -> dict[str, str]:
    """What is there, answered or not."""
    answers = {
        f"events/{each}": client.head(f"/v1/stream/events/{each}") for each in range(STREAMS)
    }
    return {
        path: answer.headers["Stream-Next-Offset"]
        for path, answer in answers.items()
        if answer.status_code == 200
    }
