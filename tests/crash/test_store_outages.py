"""A store that is away, silent, slow, full or wrong: what is hot goes on, and nothing is lost."""

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.crash.conftest import MakeServer
from tests.crash.small_disk import read_only, take_the_rest
from tests.crash.storage_kills import check_data, child_of, is_running
from tests.http.streams import Stream, check_error
from tests.moto_server import MotoServer
from tests.server_process import ServerProcess
from tests.storage.canned_s3 import CannedS3, error_body
from tests.storage_stats import flush, metrics, stats, until
from tests.tcp_proxy import TcpProxy

SOFT_BYTES, HARD_BYTES = 20_000, 100_000
LIMITS = {"hot_bytes_soft": SOFT_BYTES, "hot_bytes_hard": HARD_BYTES, "block_cache_bytes": 0}
BODY_BYTES = 1000
READERS = 50
# A read gives up after about 10 s, the start after 3 s, an upload is tried for about 10 s.
CLIENT_DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def moto() -> Iterator[MotoServer]:
    with MotoServer() as server:
        yield server


@pytest.fixture
def client_of() -> Iterator[Callable[[ServerProcess], httpx.Client]]:
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(
            httpx.Client(base_url=server.url, timeout=CLIENT_DEADLINE_S)
        )


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    """Threads, for what takes long."""
    with ThreadPoolExecutor(READERS) as threads:
        yield threads


class Author:
    """Appends to a stream, and remembers what was acknowledged."""

    def __init__(self, client: httpx.Client, path: str = "author") -> None:
        self.stream = Stream(client, path)
        assert self.stream.create().status_code == 201
        self.acknowledged = b""

    def append(self) -> httpx.Response:
        body = b"%d;" % len(self.acknowledged)
        body += b"." * (BODY_BYTES - len(body))
        answer = self.stream.append(body)
        if answer.status_code == 204:
            self.acknowledged += body
        return answer

    def fill_up(self) -> httpx.Response:
        """Append until that is refused; the refusal is returned."""
        while (answer := self.append()).status_code == 204:
            assert len(self.acknowledged) < 10 * HARD_BYTES, "the limit is not kept"
        return answer

    def check(self) -> None:
        answer = self.stream.read()
        assert answer.status_code == 200, answer.text
        assert answer.content == self.acknowledged
        assert answer.headers["Stream-Up-To-Date"] == "true"


def check_refusal(answer: httpx.Response, code: str) -> None:
    check_error(answer, 503, code)
    assert int(answer.headers["Retry-After"]) >= 1


def check_full(client: httpx.Client) -> None:
    """The server says that it takes no more."""
    found = stats(client)
    assert found["backpressure"]["active"] is True
    assert "the hot limit is reached" in found["backpressure"]["reason"]
    assert found["backpressure"]["refused"] >= 1
    assert found["hot"]["cost_bytes"] > HARD_BYTES
    assert found["flush"]["in_progress"] is True
    samples = metrics(client)
    assert samples["holdfast_write_backpressure"] == 1
    assert samples["holdfast_write_backpressure_refusals_total"] >= 1


def until_trouble_is_told(client: httpx.Client, words: str) -> None:
    """The reason shows where an operator looks, and in what writers are told."""
    until(lambda: stats(client)["flush"]["trouble"])
    found = stats(client)
    assert words in found["flush"]["trouble"]
    assert words in found["backpressure"]["reason"]
    assert found["flush"]["retries"] >= 1
    assert metrics(client)["holdfast_flush_retries_total"] >= 1


def until_well_again(author: Author) -> None:
    client = author.stream.client
    until(lambda: author.append().status_code == 204)
    until(lambda: client.post("/cluster/flush").status_code == 204)
    found = stats(client)
    assert found["flush"]["trouble"] is None
    assert found["backpressure"]["active"] is False
    assert found["backpressure"]["reason"] is None
    assert found["hot"]["bytes"] == 0
    assert metrics(client)["holdfast_write_backpressure"] == 0
    author.check()


@pytest.mark.slow
def test_store_that_is_away_for_a_while(
    make_server: MakeServer, client_of, moto, elsewhere
) -> None:
    server = make_server(**LIMITS, **moto.settings(moto.new_bucket())).start()
    client = client_of(server)
    old, author = Author(client, "old"), Author(client)
    old.append()
    flush(client)
    with moto.outage():
        cold_reads = [
            elsewhere.submit(old.stream.read),
            elsewhere.submit(old.stream.long_poll, "-1"),
            elsewhere.submit(old.stream.get, {"offset": "-1", "live": "sse"}),
        ]
        refusal = author.fill_up()
        assert len(author.acknowledged) > (HARD_BYTES - SOFT_BYTES) / 2
        check_refusal(refusal, "overloaded")
        check_full(client)
        flushing = elsewhere.submit(client.post, "/cluster/flush")
        author.check()
        assert old.stream.tail() == f"{len(old.acknowledged):020d}"
        until_trouble_is_told(client, "refused")
        check_refusal(flushing.result(), "store_unavailable")
        check_refusal(author.append(), "overloaded")
        for read in cold_reads:
            check_refusal(read.result(), "store_unavailable")
        assert metrics(client)["holdfast_cold_fetch_failures_total"] >= 1
        # What makes room later is taken all the same.
        assert old.stream.delete().status_code == 204
    until_well_again(author)
    assert old.stream.head().status_code == 404
    assert server.stop() == 0
    check_data(server)


@pytest.mark.slow
def test_start_while_the_store_is_away(make_server: MakeServer, client_of, moto, elsewhere) -> None:
    settings = moto.settings(moto.new_bucket())
    with make_server(**LIMITS, **settings) as server:
        old = Author(client_of(server), "old")
        old.append()
        flush(old.stream.client)
    with moto.outage():
        server = make_server(**LIMITS, **settings).start()
        assert "the object store cannot be reached, starting without it" in server.stderr()
        client = client_of(server)
        author = Author(client)
        assert author.append().status_code == 204
        author.check()
        old.stream.client = client
        assert old.append().status_code == 204
        cold_read = elsewhere.submit(old.check)
        until(lambda: metrics(client)["holdfast_cold_reads_total"] == 1)
        assert not cold_read.done()
    # The store came back before its reader lost patience.
    cold_read.result()
    until_well_again(author)
    old.check()
    assert server.stop() == 0
    check_data(server)


@pytest.mark.slow
def test_store_that_takes_connections_and_says_nothing(
    make_server: MakeServer, client_of, moto, elsewhere
) -> None:
    settings = moto.settings(moto.new_bucket())
    with TcpProxy(moto.port) as proxy:
        settings["s3_endpoint"] = f"http://127.0.0.1:{proxy.port}"
        server = make_server(shutdown_timeout=2, **LIMITS, **settings).start()
        client = client_of(server)
        old, author = Author(client, "old"), Author(client)
        old.append()
        flush(client)
        with proxy.silence():
            cold_read = elsewhere.submit(old.stream.read)
            check_refusal(author.fill_up(), "overloaded")
            check_full(client)
            check_refusal(cold_read.result(), "store_unavailable")
        until_well_again(author)
        with proxy.silence():
            author.fill_up()
            reads_before = metrics(client)["holdfast_cold_reads_total"]
            cold_read = elsewhere.submit(old.stream.read)
            until(lambda: metrics(client)["holdfast_cold_reads_total"] > reads_before)
            check_ends_soon(server)
            assert isinstance(cold_read.exception(), httpx.RemoteProtocolError)
        server.start()
        old.stream.client = author.stream.client = client_of(server)
        until_well_again(author)
        old.check()
        assert server.stop() == 0


def check_ends_soon(server: ServerProcess) -> None:
    """An upload that hangs keeps neither the server nor its child."""
    child = child_of(server)
    assert child is not None
    started_s = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert time.monotonic() - started_s < 10, "the promise is 10 s"
    assert not is_running(child)


@pytest.mark.slow
def test_slow_store_is_asked_once_and_keeps_nobody_else_waiting(
    make_server: MakeServer, client_of, moto, elsewhere
) -> None:
    with TcpProxy(moto.port) as proxy:
        settings = moto.settings(moto.new_bucket())
        settings["s3_endpoint"] = f"http://127.0.0.1:{proxy.port}"
        server = make_server(**LIMITS, **settings).start()
        client = client_of(server)
        old, author = Author(client, "old"), Author(client)
        old.append()
        flush(client)
        proxy.delay_s = 1.0
        cold_reads = [elsewhere.submit(old.check) for _ in range(READERS)]
        until(lambda: metrics(client)["holdfast_cold_reads_total"] == READERS)
        for _ in range(20):
            assert author.append().status_code == 204
        author.check()
        assert not any(each.done() for each in cold_reads)
        for each in cold_reads:
            each.result()
        samples = metrics(client)
        assert samples["holdfast_cold_fetches_total"] == 1
        assert samples["holdfast_cold_fetches_shared_total"] == READERS - 1
        proxy.delay_s = 0.05
        until_well_again(author)
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [(403, "InvalidAccessKeyId", "s3_access_key_id"), (404, "NoSuchBucket", "setting `store`")],
)
def test_wrong_store_ends_the_start_with_words(
    make_server: MakeServer, status: int, code: str, advice: str
) -> None:
    canned = CannedS3()
    try:
        canned.answer(status, error_body(code))
        keys = {"s3_access_key_id": "the-key-id", "s3_secret_access_key": "the-secret-key"}
        server = make_server(store="s3://bucket", s3_endpoint=canned.endpoint, **keys)
        with pytest.raises(AssertionError) as refused:
            server.start()
    finally:
        canned.close()
    assert "(exit status 2)" in str(refused.value)
    stderr = str(refused.value).partition("its stderr:\n")[2]
    assert stderr.startswith("holdfast: The object store s3://bucket fails")
    assert stderr.count("\n") == 1
    assert code in stderr
    assert advice in stderr
    assert "the-secret-key" not in stderr


@pytest.mark.slow
def test_missing_bucket_and_foreign_store(make_server: MakeServer, tmp_path: Path, moto) -> None:
    settings = moto.settings(moto.new_bucket())
    with make_server(**settings):
        pass
    with pytest.raises(AssertionError, match="NoSuchBucket"):
        make_server(**{**settings, "store": "s3://no-such-bucket"}).start()
    with make_server(tmp_path / "other", **moto.settings(moto.new_bucket())):
        pass
    with pytest.raises(AssertionError, match="belongs to another data directory"):
        make_server(tmp_path / "other", **settings).start()


@pytest.mark.slow
def test_directory_that_is_full(make_server: MakeServer, client_of, disk: Path) -> None:
    server = make_server(store=disk / "objects", **LIMITS).start()
    client = client_of(server)
    old, author = Author(client, "old"), Author(client)
    old.append()
    flush(client)
    take_the_rest(disk / "other")
    check_refusal(author.fill_up(), "overloaded")
    check_full(client)
    until_trouble_is_told(client, "No space left on device")
    old.check()
    author.check()
    (disk / "other").unlink()
    until_well_again(author)
    old.check()
    assert server.stop() == 0
    check_data(server)


@pytest.mark.slow
def test_directory_that_cannot_be_written(make_server: MakeServer, client_of, disk: Path) -> None:
    server = make_server(store=disk / "objects", **LIMITS).start()
    client = client_of(server)
    old, author = Author(client, "old"), Author(client)
    old.append()
    flush(client)
    with read_only(disk):
        check_refusal(author.fill_up(), "overloaded")
        until_trouble_is_told(client, "Read-only file system")
        check_refusal(client.post("/cluster/flush"), "store_unavailable")
        old.check()
        author.check()
    until_well_again(author)
    assert server.stop() == 0
    check_data(server)


@pytest.mark.slow
def test_disk_with_everything_on_it_is_full(make_server: MakeServer, client_of, disk: Path) -> None:
    """Log, catalog and packs compete for the room; whoever loses comes back when there is some."""
    wal = {"wal_segment_bytes": 262_144, "wal_ballast_bytes": 65_536, "wal_zero_ahead_bytes": 4096}
    server = make_server(disk / "data", **LIMITS, **wal).start()
    client = client_of(server)
    old, author = Author(client, "old"), Author(client)
    old.append()
    flush(client)
    take_the_rest(disk / "other")
    refusal = author.fill_up()
    assert refusal.status_code == 503
    assert int(refusal.headers["Retry-After"]) >= 1
    old.check()
    author.check()
    server.kill()
    (disk / "other").unlink()
    server.start()
    old.stream.client = author.stream.client = client_of(server)
    until_well_again(author)
    old.check()
    assert server.stop() == 0
    check_data(server)
