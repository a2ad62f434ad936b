"""What was acknowledged is there after a crash of the process."""

import pytest

from tests.http.streams import JSON, Stream, check_error, producer


@pytest.fixture
def restart(start_server, client_of):
    """Start a server; calling the fixture kills it and starts another on the same data."""
    servers = [start_server()]

    def kill_and_start(*streams: Stream) -> None:
        servers[-1].kill()
        servers.append(start_server())
        client = client_of(servers[-1])
        for stream in streams:
            stream.client = client

    kill_and_start.server = servers[0]
    return kill_and_start


@pytest.mark.spec("base 4-2", "base 4-3", "base 6-28")
def test_bytes_offsets_and_etags_survive(restart, stream_on) -> None:
    stream = stream_on(restart.server, body=b"one,")
    middle = stream.append(b"two,").headers["Stream-Next-Offset"]
    stream.append(b"three")
    before = stream.read(), stream.read(middle), stream.head()
    restart(stream)
    after = stream.read(), stream.read(middle), stream.head()
    for old, new in zip(before, after, strict=True):
        assert new.content == old.content
        for name in ("Content-Type", "Stream-Next-Offset", "ETag"):
            assert new.headers.get(name) == old.headers.get(name)
    assert (
        stream.append(b"!").headers["Stream-Next-Offset"] > before[2].headers["Stream-Next-Offset"]
    )


@pytest.mark.spec("base 4-2")
def test_configuration_survives(restart, stream_on) -> None:
    stream = stream_on(restart.server, JSON, b"[1]", stream_ttl="3600")
    restart(stream)
    assert stream.create(stream_ttl="3600").status_code == 200
    check_error(stream.create(stream_ttl="60"), 409, "stream_exists")
    assert stream.append(b"[2,3]").status_code == 204
    assert stream.read().json() == [1, 2, 3]


@pytest.mark.spec("base 4.1-4")
def test_closure_survives(restart, stream_on) -> None:
    stream = stream_on(restart.server, body=b"x")
    stream.append(b"end", stream_closed="true", **producer(0))
    restart(stream)
    assert stream.read().headers["Stream-Closed"] == "true"
    check_error(stream.append(b"more"), 409, "stream_closed")
    assert stream.append(b"end", stream_closed="true", **producer(0)).status_code == 204


@pytest.mark.spec("base 5.2.1-7", "base 5.2.1-18")
def test_producers_and_sequences_survive(restart, stream_on) -> None:
    stream = stream_on(restart.server)
    stream.append(b"0", stream_seq="5", **producer(0, epoch=3))
    stream.append(b"1", producer_digest="12" * 8, **producer(1, epoch=3))
    restart(stream)
    again = stream.append(b"1", **producer(1, epoch=3))
    assert (again.status_code, again.headers["Producer-Digest"]) == (204, "12" * 8)
    check_error(stream.append(b"x", **producer(0, epoch=2)), 403, "stale_producer_epoch")
    check_error(stream.append(b"x", **producer(3, epoch=3)), 409, "producer_sequence_gap")
    check_error(stream.append(b"x", stream_seq="5"), 409, "stream_seq_regression")
    assert stream.append(b"2", **producer(2, epoch=3)).status_code == 200
    assert stream.read().content == b"012"


@pytest.mark.spec("base 4-2", "base 5.4-1")
def test_deletion_survives(restart, stream_on) -> None:
    deleted, recreated = stream_on(restart.server, body=b"x"), stream_on(restart.server, body=b"x")
    deleted.delete()
    recreated.delete()
    recreated.create(b"again")
    etag = recreated.read().headers["ETag"]
    restart(deleted, recreated)
    assert deleted.head().status_code == 404
    assert recreated.read().content == b"again"
    assert recreated.read().headers["ETag"] == etag


def test_memory_mode_forgets(start_server, stream_on, client_of) -> None:
    server = start_server(durability="memory")
    stream = stream_on(server, body=b"x")
    assert stream.read().content == b"x"
    server.stop()
    stream.client = client_of(start_server(durability="memory"))
    assert stream.head().status_code == 404


def test_second_server_on_the_same_data_is_told_why_not(start_server, stream_on) -> None:
    server = start_server()
    stream = stream_on(server, body=b"x")
    with pytest.raises(AssertionError, match=r"(?i)another (process|server)"):
        start_server()
    assert stream.read().content == b"x"
