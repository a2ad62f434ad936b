"""Forks in packs: they copy nothing, and hold what they need of their sources."""

from pathlib import Path

import httpx
import pytest

from tests.http.bucketed import bucket_stream, offset, parts
from tests.http.cold import IDLE
from tests.http.streams import BINARY, TEXT, check_error
from tests.http.test_forks import TIDY, collect, fork_of, read_whole
from tests.server_process import ServerProcess
from tests.storage_stats import flush, metrics, until


def size_on_disk(server: ServerProcess) -> int:
    """All blocks of all files, but for those that the log has zeroed ahead."""
    paths = [*Path(server.data_dir).rglob("*")]
    return sum(path.stat().st_size for path in paths if path.is_file() and path.suffix != ".seg")


def test_large_fork_copies_nothing(start_server, client_of) -> None:
    server = start_server(**IDLE)
    client = client_of(server)
    source = bucket_stream(client, *[bytes(5_000_000)] * 10, content_type=BINARY)
    flush(client)
    before = size_on_disk(server)
    assert before > 50_000_000
    fork = fork_of(source)
    fork.append(b"and a bit more")
    flush(client)
    assert size_on_disk(server) - before < 100_000
    answer = fork.read(offset(50_000_000))
    assert answer.content == b"and a bit more"
    assert fork.read(offset(49_999_999)).content == b"\0and a bit more"


def snapshot_files(server: ServerProcess) -> int:
    paths = (server.data_dir / "objects/snapshots").rglob("*")
    return sum(path.is_file() for path in paths)


def test_snapshots_go_once_nobody_has_them(start_server, client_of) -> None:
    """Neither the stream that they were published for, nor a fork."""
    server = start_server(**TIDY)
    client = client_of(server)
    source = bucket_stream(client, b"12345", b"678")

    def files_after_collection() -> int:
        flush(client)
        collect(client)
        return snapshot_files(server)

    source.publish(offset(5), b"first")
    assert files_after_collection() == 1
    source.publish(offset(5), b"second")
    until(lambda: files_after_collection() == 1)
    fork = fork_of(source)
    source.publish(offset(8), b"third")
    assert files_after_collection() == 2
    source.delete()
    assert files_after_collection() >= 1
    assert parts(fork.bootstrap()) == [(BINARY, b"second"), (TEXT, b"678")]
    server.stop()
    server = start_server(**TIDY)
    fork.client = client = client_of(server)
    collect(client)
    assert parts(fork.bootstrap()) == [(BINARY, b"second"), (TEXT, b"678")]
    fork.delete()
    until(lambda: files_after_collection() == 0)


def merged(client: httpx.Client, at_least: int) -> None:
    until(lambda: metrics(client)["holdfast_merges_total"] >= at_least)


@pytest.mark.spec("forks 4.2-34", "forks 4.2-35")
def test_bytes_outlive_flush_merge_collection_and_restart(start_server, client_of) -> None:
    server = start_server(**TIDY)
    client = client_of(server)
    source = bucket_stream(client, b"12345", content_type=BINARY)
    flush(client)
    source.append(b"678")
    flush(client)
    fork = fork_of(source, stream_fork_offset=offset(5))
    fork.append(b"abc")
    trimmed = fork_of(source)
    trimmed.publish(offset(5), b"state")
    flush(client)
    source.publish(offset(8), b"of the source")
    flush(client)
    source.delete()
    for number in range(4):
        fork.append(b"%d" % number)
        flush(client)
        collect(client)
    merged(client, 1)

    def check() -> None:
        read_whole(fork, b"12345abc0123")
        check_error(trimmed.read("-1"), 410, "offset_gone")
        assert trimmed.read(offset(5)).content == b"678"
        assert parts(trimmed.bootstrap()) == [(BINARY, b"state"), (BINARY, b"678")]
        check_error(source.read("-1"), 410, "stream_deleted")

    check()
    server.stop()
    client = client_of(start_server(**TIDY))
    for each in (source, fork, trimmed):
        each.client = client
    check()
    collect(client)
    check()
    fork.delete()
    trimmed.delete()
    assert source.head().status_code == 404
    flush(client)
    collect(client)
    assert source.create(b"new").status_code == 201
