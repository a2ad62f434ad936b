"""Offsets and cursors are printed with 20 digits, and accepted as plain decimal numbers."""

import pytest

from tests.http.bucketed import BucketStream, bucket_stream, offset
from tests.http.streams import TEXT

SUBSCRIPTION = "/v1/stream/__ds/subscriptions/plain-offsets"


@pytest.fixture
def stream(client) -> BucketStream:
    return bucket_stream(client, b"12345", b"6789", content_type=TEXT)


@pytest.mark.parametrize("plain", ["5", "05", "0" * 18 + "5", offset(5)])
def test_reads_and_snapshots(client, stream, plain) -> None:
    read = stream.get({"offset": plain})
    assert (read.content, read.headers["Stream-Next-Offset"]) == (b"6789", offset(9))
    assert stream.get({"offset": plain, "live": "long-poll"}).content == b"6789"
    url = f"{stream.url}/snapshot"
    assert client.put(f"{url}/{plain}", content=b"state").status_code == 204
    assert client.get(url).headers["Location"].endswith(f"/snapshot/{offset(5)}")
    assert client.get(f"{url}/{plain}").content == b"state"
    assert client.delete(f"{url}/{plain}").status_code == 409
    assert stream.get({"offset": "4"}).status_code == 410


def test_forks(client, stream) -> None:
    fork = BucketStream(client, stream.bucket, "fork")
    assert fork.fork(stream, stream_fork_offset="5").status_code == 201
    assert fork.tail() == offset(5)


def test_cursors(client, stream) -> None:
    changes, scan = f"/{stream.bucket}/streams/changes", f"/{stream.bucket}/streams/scan"
    cursor = client.get(changes, params={"after": "now"}).json()["next_cursor"]
    assert client.get(changes, params={"after": str(int(cursor))}).json()["changes"] == []
    assert client.get(scan, params={"until": str(int(cursor))}).json()["until"] == cursor


def test_acknowledgements(client, stream) -> None:
    path = stream.path
    body = {"type": "pull-wake", "streams": [path], "wake_stream": f"{stream.bucket}/wakes"}
    assert client.put(SUBSCRIPTION, json=body).status_code == 201
    stream.append(b"0")
    claim = client.post(f"{SUBSCRIPTION}/claim", json={"worker": "one"}).json()
    acks = {"acks": [{"stream": path, "offset": "10"}]}
    body = {"wake_id": claim["wake_id"], "generation": claim["generation"]} | acks
    token = {"Authorization": f"Bearer {claim['token']}"}
    answer = client.post(f"{SUBSCRIPTION}/ack", json=body, headers=token)
    assert answer.status_code == 200, answer.text
    (link,) = client.get(SUBSCRIPTION).json()["streams"]
    assert link["acked_offset"] == offset(10)
    assert client.delete(SUBSCRIPTION).status_code == 204
