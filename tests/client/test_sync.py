"""The client for code that is not async."""

from collections.abc import Iterator
from itertools import islice
from threading import Event, Thread

import pytest

from holdfast.client import Snapshot, SyncClient
from holdfast.errors import StreamClosedError, StreamNotFoundError
from tests.client.targets import BINARY, JSON, TEXT, Target, new_name

DEADLINE_S = 20


@pytest.fixture
def sync_client(target: Target) -> Iterator[SyncClient]:
    with SyncClient(target.url) as client:
        yield client


@pytest.fixture
def our_client(ours: Target) -> Iterator[SyncClient]:
    with SyncClient(ours.url) as client:
        yield client


def test_the_quick_scenario(sync_client: SyncClient) -> None:
    stream = sync_client.stream(new_name())
    with pytest.raises(StreamNotFoundError):
        stream.head()
    assert stream.create(JSON).created
    stream.append({"hello": "world"})
    stream.append_many([1, [2]])
    with stream.producer("writer") as producer:
        producer.append_many(range(100))
        producer.flush()
        assert producer.acknowledged == 100
    expected = [{"hello": "world"}, 1, [2], *range(100)]
    assert [message.json for message in stream.read()] == expected
    assert stream.read().read_json() == expected
    reading = stream.read()
    assert [value for batch in reading.batches() if batch.data for value in batch.json] == expected
    assert reading.up_to_date
    assert reading.offset == stream.head().next_offset
    assert stream.close().closed
    with pytest.raises(StreamClosedError):
        stream.append("more")
    assert [message.json for message in stream.read(live=True)] == expected
    fork = sync_client.stream(new_name())
    assert fork.fork(stream).created
    stream.delete()


def test_a_tail_in_a_thread(sync_client: SyncClient) -> None:
    stream = sync_client.stream(new_name())
    stream.create(TEXT)
    seen: list[str] = []
    arrived = Event()

    def tail() -> None:
        with stream.read(live=True) as reading:
            for message in reading:
                seen.append(message.text)
                arrived.set()

    thread = Thread(target=tail)
    thread.start()
    for number in range(5):
        arrived.clear()
        stream.append(f"{number}")
        assert arrived.wait(DEADLINE_S)
    stream.close()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert seen == ["0", "1", "2", "3", "4"]


def test_leaving_a_tail_early(sync_client: SyncClient, target: Target) -> None:
    stream = sync_client.stream(new_name())
    stream.create(JSON, messages=[1, 2, 3])
    with stream.read(live=True) as reading:
        for message in reading:
            if message.json == 2:
                break
    if target.tells_boundaries:
        assert [message.json for message in stream.read(reading.offset)] == [3]
    with stream.read(live=True) as reading:
        assert [message.json for message in islice(reading, 3)] == [1, 2, 3]


def test_what_is_ours(our_client: SyncClient) -> None:
    bucket = our_client.bucket(f"sync-{new_name()[5:20]}")
    assert bucket.create()
    stream = our_client.stream(f"{bucket._inner.bucket_id}/a")
    end = stream.create(BINARY, messages=[b"one"]).next_offset
    stream.snapshots.publish(end, b"state", content_type=TEXT)
    stream.append(b"two", close=True)
    assert stream.snapshots.get() == Snapshot(b"state", TEXT, end)
    with stream.bootstrap() as bootstrap:
        assert bootstrap.snapshot().text == "state"
        assert [message.bytes for message in bootstrap.messages()] == [b"two"]
        assert bootstrap.closed
    assert [item.bytes for item in stream.bootstrap_and_follow()] == [b"state", b"two"]
    assert [found.stream_id for found in bucket.streams()] == ["a"]
    assert [change.length for page in bucket.changes() for change in page.changes] == [3, 3]
    assert bucket.info().streams == 1
    plan = bucket.scan()
    [hot] = plan.hot
    assert b"two" in [record.payload for record in bucket.records(after=hot.after)]
    assert our_client.request("GET", "/healthz").status == 200


def test_several_threads_share_a_client(our_client: SyncClient) -> None:
    stream = our_client.stream(new_name())
    stream.create(JSON)

    def write(name: int) -> None:
        for number in range(20):
            stream.append([name, number])

    threads = [Thread(target=write, args=(name,)) for name in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    found = stream.read().read_json()
    assert len(found) == 100
    for name in range(5):
        assert [number for by, number in found if by == name] == list(range(20))


def test_a_closed_client_says_so(ours: Target) -> None:
    client = SyncClient(ours.url)
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.stream("a").head()


def test_closing_while_a_thread_tails(ours: Target) -> None:
    client = SyncClient(ours.url)
    stream = client.stream(new_name())
    stream.create(TEXT, messages=["x"])
    arrived, ended = Event(), Event()

    def tail() -> None:
        try:
            for _ in stream.read(live=True):
                arrived.set()
        except Exception:  # noqa: BLE001 - any is fine, as long as it ends
            ended.set()

    thread = Thread(target=tail, daemon=True)
    thread.start()
    assert arrived.wait(DEADLINE_S)
    client.close()
    assert ended.wait(DEADLINE_S)
    thread.join(DEADLINE_S)
