"""kill -9 while a batch is published: with the next server it is there wholly, or not at all."""

import json
import signal
from random import Random
from threading import Timer
from uuid import uuid4

import httpx
import pytest

from holdfast import failpoints
from holdfast.protocol.parts import PartAppend, encode_append
from tests.crash.conftest import MakeServer
from tests.crash.storage_kills import check_data
from tests.storage_stats import flush

STREAMS = 5
JSON = "application/json"


def stage(client: httpx.Client, appends: list[PartAppend]) -> dict:
    """A part with these appends, a request for each."""
    part = uuid4().hex
    for seq, append in enumerate(appends):
        answer = client.post(
            "/v1/batch/part", params={"part": part, "seq": seq}, content=encode_append(append)
        )
        assert answer.status_code == 204
    return {"id": part, "bytes": int(answer.headers["Stream-Next-Offset"])}


def batch_of(numbers: list[int]) -> list[PartAppend]:
    return [PartAppend(f"demo/s{each % STREAMS}", b"%d" % each) for each in numbers]


def publish(client: httpx.Client, tasks: list[list[int]], epoch: int, **options: object) -> None:
    parts = [stage(client, batch_of(numbers)) for numbers in tasks]
    body = {"producer_id": "p", "epoch": epoch, "content_type": JSON, "parts": parts, **options}
    assert client.post("/v1/batch", json=body).json()["published"]


def stored(client: httpx.Client) -> dict[str, list[int]]:
    found = {}
    for at in range(STREAMS):
        answer = client.get(f"/v1/stream/demo/s{at}", params={"offset": "-1"})
        found[f"s{at}"] = json.loads(answer.content) if answer.status_code == 200 else []
    return found


def expected(numbers: list[int]) -> dict[str, list[int]]:
    return {f"s{at}": [each for each in numbers if each % STREAMS == at] for at in range(STREAMS)}


def write_before(client: httpx.Client, numbers: list[int]) -> None:
    for each in numbers:
        url = f"/v1/stream/demo/s{each % STREAMS}"
        client.put(url, headers={"Content-Type": JSON})
        client.post(url, headers={"Content-Type": JSON}, content=b"%d" % each)


def check_whole(
    make_server: MakeServer, monkeypatch, point: str, visit: int = 1, *, close: bool, cold: bool
) -> None:
    """Kill the server at a failpoint; the next one has the batch, and a repetition changes nothing.

    Before the decision the first attempt has stored nothing, so that the repetition is the batch.
    """
    monkeypatch.setenv(failpoints.VARIABLE, f"{point}=kill@{visit}")
    server = make_server()
    server.start()
    before, batch = list(range(7)), list(range(7, 40))
    with httpx.Client(base_url=server.url, timeout=30) as client:
        write_before(client, before)
        if cold:
            flush(client)
        with pytest.raises(httpx.TransportError):
            publish(client, [batch[:20], batch[20:]], 0, close_streams=close)
    assert server.wait() == -signal.SIGKILL
    monkeypatch.delenv(failpoints.VARIABLE)
    server.start()
    with httpx.Client(base_url=server.url, timeout=30) as client:
        if point == "batch.checked":
            assert stored(client) == expected(before)
            batch = batch[5:] + batch[:5]
            publish(client, [batch], 0, close_streams=close)
        else:
            publish(client, [batch[5:], batch[:5]], 0, close_streams=close)
        assert stored(client) == expected(before + batch)
        heads = [client.head(f"/v1/stream/demo/s{at}") for at in range(STREAMS)]
        assert {head.headers.get("Stream-Closed") for head in heads} == {"true" if close else None}
        if not close:
            publish(client, [[100]], 1)
            assert stored(client) == expected([*before, *batch, 100])
    assert server.stop() == 0
    check_data(server)


def test_kill_while_a_batch_is_published(make_server: MakeServer, monkeypatch) -> None:
    check_whole(make_server, monkeypatch, "batch.publishing", 12, close=False, cold=False)


@pytest.mark.slow
@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
@pytest.mark.parametrize("close", [False, True], ids=["open", "close"])
@pytest.mark.parametrize(
    ("point", "visit"),
    [
        ("batch.checked", 1),
        ("batch.decided", 1),
        ("batch.publishing", 1),
        ("batch.publishing", 33),
        ("batch.published", 1),
        ("batch.finished", 1),
    ],
)
def test_kill_at_every_step(
    make_server: MakeServer, monkeypatch, point, visit, close, cold
) -> None:
    check_whole(make_server, monkeypatch, point, visit, close=close, cold=cold)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_kill_at_any_time(make_server: MakeServer, seed) -> None:
    """Batches one after the other, each repeated until it is confirmed, and kills in between."""
    random = Random(seed)
    server = make_server(hot_bytes_soft=1_048_576)
    server.start()
    written: list[int] = []
    for epoch in range(8):
        batch = list(range(epoch * 1000, epoch * 1000 + 200))
        killer = Timer(random.uniform(0.05, 0.6), server.kill)
        killer.start()
        kills = 0
        while True:
            random.shuffle(tasks := [batch[:70], batch[70:150], batch[150:]])
            try:
                with httpx.Client(base_url=server.url, timeout=30) as client:
                    publish(client, tasks, epoch)
            except httpx.TransportError:
                killer.join()
                server.start()
                kills += 1
            else:
                break
        killer.join()
        if not kills:
            server.start()
        written += batch
        with httpx.Client(base_url=server.url, timeout=30) as client:
            found = stored(client)
        # The order of the tasks is that of the attempt that was decided.
        assert {name: sorted(rows) for name, rows in found.items()} == expected(written)
    assert server.stop() == 0
    check_data(server)
