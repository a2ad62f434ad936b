"""Bodies of snapshots that are too many or too slow: somebody is told, and the others go on."""

from collections.abc import Iterator

import pytest

from holdfast.storage.snapshot_store import LARGE_AT_ONCE_MAX, SMALL_BYTES_MAX
from tests.http.bucketed import BucketStream, bucket_stream, offset
from tests.http.raw import RawConnection
from tests.http.streams import check_error
from tests.http.test_snapshot_uploads import LARGE_BYTES, SMALL_BYTES, Upload, objects
from tests.server_process import ServerProcess
from tests.storage_stats import until


class Crowd:
    """As many large uploads as there may be, all half-way, and one that has not begun."""

    def __init__(self, server: ServerProcess, stream: BucketStream) -> None:
        self.server = server
        self.stream = stream
        self.connections = [RawConnection(server.port) for _ in range(LARGE_AT_ONCE_MAX + 1)]
        *self.uploads, self.next = [
            Upload(each, stream, 5, LARGE_BYTES) for each in self.connections
        ]
        for upload in self.uploads:
            upload.send_half()
        until(lambda: len(objects(server)) == LARGE_AT_ONCE_MAX)

    def leave(self) -> None:
        """All clients go away."""
        for connection in self.connections:
            connection.__exit__()


@pytest.fixture
def crowd(start_server, client_of) -> Iterator[Crowd]:
    server = start_server()
    crowd = Crowd(server, bucket_stream(client_of(server), b"12345"))
    yield crowd
    crowd.leave()


def test_one_large_upload_too_many_is_503(crowd) -> None:
    refused = crowd.connections[-1]
    refused.send(crowd.next.body[: SMALL_BYTES_MAX + 1])
    answer = refused.response()
    assert answer.status == 503
    assert b'"overloaded"' in answer.body
    assert answer.headers["retry-after"]
    assert refused.ended()
    # Those that are under way come to their end, and make room.
    for upload in crowd.uploads:
        assert upload.finish().status == 204
    assert crowd.stream.publish(offset(5), bytes(LARGE_BYTES)).status_code == 204


def test_small_ones_are_not_held_up(crowd) -> None:
    stream = crowd.stream
    for number in range(5):
        assert stream.publish(offset(5), b"state %d" % number).status_code == 204
    assert stream.snapshot(offset(5)).content == b"state 4"
    assert stream.append(b"6").status_code == 204


def test_clients_that_go_away_make_room(crowd) -> None:
    crowd.leave()
    until(lambda: not objects(crowd.server))
    body = bytes(LARGE_BYTES)
    assert crowd.stream.publish(offset(5), body).status_code == 204
    assert crowd.stream.snapshot(offset(5)).content == body


@pytest.mark.parametrize("size", [SMALL_BYTES, LARGE_BYTES], ids=["small", "large"])
def test_body_that_takes_too_long_is_408(start_server, client_of, size) -> None:
    """Even if something comes every now and then: silence alone has a limit of its own."""
    server = start_server(snapshot_timeout=0.5)
    stream = bucket_stream(client_of(server), b"12345")
    with RawConnection(server.port) as connection:
        Upload(connection, stream, 5, size).send_half()
        answer = connection.response()
        assert answer.status == 408
        assert b'"request_timeout"' in answer.body
        assert connection.ended()
    check_error(stream.snapshot(), 404, "snapshot_not_found")
    until(lambda: not objects(server))
    # One that comes in time is taken.
    assert stream.publish(offset(5), b"state").status_code == 204
