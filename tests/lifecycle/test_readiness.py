"""Health, readiness, status and metrics, from the first moment of a server to the last."""

import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.http.streams import JSON, Stream, check_error, producer
from tests.lifecycle.test_shutdown import refuses_connections
from tests.server_process import ServerProcess

DEADLINE_S = 20.0


class PausedRecovery:
    """A server that recovers for as long as a test likes: the segment of its log is a pipe."""

    def __init__(self, server: ServerProcess) -> None:
        (self._pipe,) = (server.data_dir / "log").glob("*.seg")
        self._segment = self._pipe.read_bytes()
        self._pipe.unlink()
        os.mkfifo(self._pipe)
        self._stderr = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            server._arguments, stdout=subprocess.PIPE, stderr=self._stderr, text=True
        )
        # First the headers of all segments are read, then the address is bound, then the rest.
        self._feed(self._segment[:64])
        self.port = self._port()
        self.url = f"http://127.0.0.1:{self.port}"

    def _feed(self, data: bytes, *, with_file: bool = False) -> None:
        feeder = threading.Thread(target=self._write, args=(data, with_file), daemon=True)
        feeder.start()
        feeder.join(DEADLINE_S)
        assert not feeder.is_alive(), "the server does not read its log"

    def _write(self, data: bytes, with_file: bool) -> None:
        with self._pipe.open("wb") as pipe:
            if with_file:
                # The server has the pipe open by now; by its name it will find the file.
                file = self._pipe.with_suffix(".file")
                file.write_bytes(self._segment)
                file.replace(self._pipe)
            pipe.write(data)

    def stderr(self) -> str:
        """Everything the server has written to stderr."""
        self._stderr.seek(0)
        return self._stderr.read()

    def feed_rest(self) -> None:
        """Let recovery go on; the segment is a file again, as it is written to at the end."""
        self._feed(self._segment, with_file=True)

    def wait_until_draining(self) -> None:
        """Wait until the server accepts nobody any more."""
        ends_s = time.monotonic() + DEADLINE_S
        while not refuses_connections(self.port):
            assert time.monotonic() < ends_s

    def finish(self) -> None:
        """Let recovery come to its end, and wait until the server says so."""
        self.feed_rest()
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("Holdfast is listening on")

    def _port(self) -> int:
        """The port on which the process listens, which it has not said yet."""
        ends_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < ends_s:
            directory = Path(f"/proc/{self.process.pid}")
            sockets = {str(each.readlink()) for each in (directory / "fd").iterdir()}
            for line in (directory / "net/tcp").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                    return int(fields[1].partition(":")[2], 16)
        raise AssertionError("the server does not listen")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._stderr.close()


@pytest.fixture
def recovering(start_server, stream_on) -> Iterator[tuple[PausedRecovery, Stream]]:
    """A server that is recovering, and the stream in its log."""
    server = start_server(shutdown_timeout=0.5)
    stream = stream_on(server, body=b"recovered")
    server.kill()
    paused = PausedRecovery(server)
    with httpx.Client(base_url=paused.url, timeout=DEADLINE_S) as client:
        stream.client = client
        yield paused, stream
    paused.close()


def test_recovering_server_is_alive_but_not_ready(recovering) -> None:
    paused, stream = recovering
    client = stream.client
    assert client.get("/healthz").status_code == 200
    for path in ("/readyz/local", "/readyz/cluster"):
        refused = client.get(path)
        check_error(refused, 503, "unavailable", "recovering")
        assert int(refused.headers["Retry-After"]) > 0
    assert client.get("/cluster/status").json()["state"] == "recovering"
    assert client.get("/metrics").status_code == 200
    for request in (stream.create, stream.read, stream.delete, stream.close):
        check_error(request(), 503, "unavailable", "recovering")
    check_error(stream.append(b"early"), 503, "unavailable")
    assert stream.head().status_code == 503
    with stream.sse() as events:
        assert events.response.status_code == 503
    paused.finish()
    assert client.get("/readyz/local").status_code == 200
    assert client.get("/readyz/cluster").status_code == 200
    assert client.get("/cluster/status").json()["state"] == "ready"
    assert stream.read().content == b"recovered"


def test_signal_ends_recovery_between_two_batches(recovering) -> None:
    paused, _ = recovering
    paused.process.send_signal(signal.SIGTERM)
    paused.wait_until_draining()
    paused.feed_rest()
    assert paused.process.wait(timeout=10) == 0
    assert "Traceback" not in paused.stderr()
    assert "recovered" not in paused.stderr(), "it read the whole log first"
    assert paused.process.stdout.read() == ""


def test_signal_during_a_recovery_that_hangs_ends_the_server(recovering) -> None:
    paused, _ = recovering
    paused.process.send_signal(signal.SIGTERM)
    assert paused.process.wait(timeout=10) == 1
    assert "did not stop in time" in paused.stderr()


def test_ready_server_says_so(start_server, client_of) -> None:
    client = client_of(start_server())
    for path in ("/healthz", "/readyz/local", "/readyz/cluster", "/cluster/status"):
        response = client.get(path)
        assert response.status_code == 200
        assert response.headers["Content-Type"] == "application/json"
        assert response.headers["Cache-Control"] == "no-store"
        head = client.head(path)
        assert head.status_code == 200
        assert head.content == b""
        refused = client.post(path, content=b"x")
        check_error(refused, 405, "method_not_allowed")
        assert refused.headers["Allow"] == "GET, HEAD"
    status = client.get("/cluster/status").json()
    assert status["mode"] == "single"
    assert status["durability"] == "fsync"
    assert [shard["role"] for shard in status["shards"]] == ["owner"]


def metrics(client: httpx.Client) -> dict[str, float]:
    """All samples by name and labels, after the page was parsed as Prometheus does."""
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    return {
        sample.name
        + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): (
            sample.value
        )
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_counters_move(start_server, stream_on) -> None:
    stream = stream_on(start_server())
    client = stream.client
    before = metrics(client)
    stream.append(b"12345", **producer(0))
    stream.append(b"12345", **producer(0))
    stream.append(b"678")
    stream.append(b"x", **producer(7))
    stream.read()
    stream.client.get("/v1/stream/none/such")
    other = Stream(client, "other", JSON)
    other.create(b"[1,2]")
    other.delete()
    with stream.sse() as events:
        events.until_up_to_date()
        during = metrics(client)
    moved = {name: value - before.get(name, 0) for name, value in during.items()}
    assert moved["holdfast_appends_total"] == 2
    # The first content of `other` counts as well, in its stored form.
    assert moved["holdfast_append_bytes_total"] == 8 + 4
    assert moved["holdfast_duplicate_appends_total"] == 1
    assert moved["holdfast_streams_created_total"] == 1
    assert moved["holdfast_streams_deleted_total"] == 1
    assert during["holdfast_streams"] == 1
    assert during["holdfast_stored_bytes"] == 8
    assert during["holdfast_live_readers"] == 1
    assert moved["holdfast_commits_total"] == 4
    assert moved["holdfast_commit_seconds_count"] == 4
    assert moved["holdfast_batch_records_count"] == 4
    assert moved["holdfast_batch_bytes_sum"] > 12
    assert moved["holdfast_log_bytes"] > 12
    assert during["holdfast_log_segments"] == 1
    assert during["holdfast_commit_stalled"] == 0
    assert during["holdfast_http_connections"] >= 1
    assert moved["holdfast_http_requests_total route=append status=200"] == 1
    assert moved["holdfast_http_requests_total route=append status=204"] == 2
    assert moved["holdfast_http_requests_total route=append status=409"] == 1
    assert moved["holdfast_http_requests_total route=read status=200"] == 1
    assert moved["holdfast_http_requests_total route=read status=404"] == 1
    assert moved["holdfast_http_requests_total route=create status=201"] == 1
    assert moved["holdfast_http_request_seconds_count route=append"] == 4


def test_histograms_are_well_formed(start_server, stream_on) -> None:
    stream = stream_on(start_server())
    for size in (1, 1000, 100_000):
        stream.append(b"x" * size)
    samples = metrics(stream.client)
    for name in ("holdfast_commit_seconds", "holdfast_batch_bytes", "holdfast_batch_records"):
        counts = [count for _, count in buckets(samples, name)]
        assert counts == sorted(counts)
        assert counts[-1] == samples[f"{name}_count"] == 4
    sizes = dict(buckets(samples, "holdfast_batch_bytes"))
    assert [sizes[bound] for bound in (512, 2048, 65536, 131_072)] == [2, 3, 3, 4]


def test_bounds_of_buckets_belong_to_them(start_server, stream_on) -> None:
    stream = stream_on(start_server())
    samples = metrics(stream.client)
    assert dict(buckets(samples, "holdfast_batch_records"))[1] == 1


def buckets(samples: dict[str, float], name: str) -> list[tuple[float, float]]:
    """The cumulative counts of a histogram by their bounds."""
    return sorted(
        (float(found[1]), count)
        for sample, count in samples.items()
        if (found := re.fullmatch(rf"{name}_bucket le=(\S+)", sample))
    )


def test_live_reader_that_hangs_up_is_no_longer_counted(start_server, stream_on) -> None:
    stream = stream_on(start_server(sse_heartbeat=0.1), body=b"x")
    with stream.sse() as events:
        events.until_up_to_date()
        assert metrics(stream.client)["holdfast_live_readers"] == 1
    ends_s = time.monotonic() + DEADLINE_S
    while metrics(stream.client)["holdfast_live_readers"]:
        assert time.monotonic() < ends_s
