"""`last=N`: reads that start so many messages before the tail."""

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.http.bucketed import bucket_stream, offset
from tests.http.cold import IDLE, KINDS, flush_and_forget, small_bodies, write
from tests.http.conftest import DEADLINE_S, MakeStream, _create_stream
from tests.http.messages import lengths_of, messages_of
from tests.http.raw import RawConnection
from tests.http.streams import BINARY, JSON, TEXT, check_error
from tests.http.test_forks import fork_of
from tests.server_process import ServerProcess
from tests.storage_stats import flush, metrics, until
from tests.thorough import for_each

START = "Stream-Start-Offset"
STATES = ("hot", "cold", "both")
WINDOW_BYTES = 64 * 1024


@pytest.fixture(scope="module")
def cold_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that is flushed on demand, and whose long-polls outlast every deadline here."""
    data_dir = tmp_path_factory.mktemp("cold") / "data"
    with ServerProcess(data_dir, long_poll_timeout=600, **IDLE) as server:
        yield server


@pytest.fixture(scope="module")
def cold_client(cold_server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cold_server.url, timeout=DEADLINE_S) as client:
        yield client


@pytest.fixture
def new_cold_stream(cold_client: httpx.Client) -> MakeStream:
    return lambda *arguments, **headers: _create_stream(cold_client, *arguments, **headers)


def write_in(state: str, stream, bodies: list[bytes]) -> list[int]:
    """Append each; the offsets where they start. All, some or none of them are in packs then."""
    middle = len(bodies) // 2
    ends = write(stream, bodies[:middle])
    if state == "both":
        flush(stream.client)
    ends += write(stream, bodies[middle:])
    if state == "cold":
        flush_and_forget(stream)
    return [0, *ends[:-1]]


@pytest.mark.parametrize("kind", [TEXT, BINARY])
@pytest.mark.parametrize("state", STATES)
def test_last_messages(new_cold_stream, kind: str, state: str) -> None:
    stream, bodies = new_cold_stream(kind), small_bodies(kind)
    starts = write_in(state, stream, bodies)
    for count in (1, 2, 3, 4, 5, 6, 10_000):
        answer = stream.get({"last": count})
        assert answer.status_code == 200
        assert answer.content == b"".join(bodies[-count:])
        assert answer.headers[START] == offset(starts[max(0, len(bodies) - count)])
        assert answer.headers["Stream-Next-Offset"] == stream.tail()
        assert answer.headers["Stream-Up-To-Date"] == "true"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "ETag" not in answer.headers
        counted = stream.get({"last": count, "lengths": "true"})
        assert lengths_of(counted) == [len(body) for body in bodies[-count:]]


@pytest.mark.parametrize("state", STATES)
def test_json_counts_elements(new_cold_stream, state: str) -> None:
    stream = new_cold_stream(JSON)
    write_in(state, stream, small_bodies(JSON))
    whole = stream.read().json()
    for count in range(1, len(whole) + 2):
        assert stream.get({"last": count}).json() == whole[-count:]


@pytest.mark.parametrize("kind", KINDS)
def test_empty_stream(new_stream, kind: str) -> None:
    stream = new_stream(kind)
    answer = stream.get({"last": 3})
    assert (answer.status_code, answer.headers[START]) == (200, offset(0))
    assert answer.content == (b"[]" if kind == JSON else b"")
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("kind", [TEXT, JSON])
@pytest.mark.parametrize("state", STATES)
def test_over_many_windows(new_cold_stream, kind: str, state: str) -> None:
    """Messages of all sizes, larger than a window and much larger than the next."""
    stream = new_cold_stream(kind)
    sizes = [5, WINDOW_BYTES * 9, 7, WINDOW_BYTES, WINDOW_BYTES - 1, 3, WINDOW_BYTES * 3, 2, 20_000]
    starts = write_in(state, stream, [b"1" * size for size in sizes])
    for count in range(1, len(sizes) + 2):
        answer = stream.get({"last": count, "max_bytes": 1})
        assert answer.headers[START] == offset(starts[max(0, len(sizes) - count)])


@pytest.mark.parametrize("state", ["hot", "cold"])
def test_it_costs_the_messages_asked_for(new_cold_stream, state: str) -> None:
    """A long stream before them makes no difference: nothing of it is fetched."""
    stream = new_cold_stream(BINARY)
    for _ in range(4):
        write(stream, [b"y" * 1_000_000] * 5)
        if state == "cold":
            flush(stream.client)
    write(stream, [b"last"])
    if state == "cold":
        flush(stream.client)
    before = metrics(stream.client)["holdfast_cold_fetch_bytes_total"]
    assert stream.get({"last": 1}).content == b"last"
    assert metrics(stream.client)["holdfast_cold_fetch_bytes_total"] - before < 1000


@pytest.mark.parametrize("state", ["hot", "cold"])
def test_thousands(new_cold_stream, state: str) -> None:
    stream = new_cold_stream(JSON)
    write(stream, [json.dumps(list(range(30_000))).encode()])
    if state == "cold":
        flush(stream.client)
    for count in (1, 9_999, 10_000):
        assert stream.get({"last": count}).json() == list(range(30_000))[-count:]


@pytest.mark.parametrize("state", ["hot", "cold"])
@pytest.mark.parametrize("kind", [TEXT, JSON])
def test_stream_that_a_snapshot_has_trimmed(cold_client, kind: str, state: str) -> None:
    stream = bucket_stream(cold_client, b"1234", b"567", b"89", content_type=kind)
    if state == "cold":
        flush(cold_client)
    at = 5 if kind == JSON else 4
    assert stream.publish(offset(at)).status_code == 204
    for count in (2, 3, 100):
        answer = stream.get({"last": count})
        assert answer.headers[START] == offset(at)
        assert answer.content == (b"[567,89]" if kind == JSON else b"56789")
    assert stream.get({"last": 1}).content in {b"89", b"[89]"}
    assert stream.publish(stream.tail()).status_code == 204
    assert stream.get({"last": 1}).headers[START] == stream.tail()


@pytest.mark.parametrize("state", ["hot", "cold"])
def test_fork_counts_into_its_source(cold_client, state: str) -> None:
    source = bucket_stream(cold_client, b"12345", b"6789", content_type=BINARY)
    fork = fork_of(source, stream_fork_offset=offset(7))
    write(fork, [b"abc"])
    if state == "cold":
        flush(cold_client)
    found = [fork.get({"last": count}).content for count in (1, 2, 3, 4)]
    assert found == [b"abc", b"67abc", b"1234567abc", b"1234567abc"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", ["hot", "cold"])
def test_events(new_cold_stream, kind: str, state: str) -> None:
    stream = new_cold_stream(kind)
    write(stream, [b"11", b"22", b"33"])
    if state == "cold":
        flush_and_forget(stream)
    given = {"live": "sse", "last": "2"}
    with stream.client.stream("GET", stream.url, params=given) as response:
        width = 3 if kind == JSON else 2
        assert response.headers[START] == offset(width)
        assert response.headers["Cache-Control"] == "no-cache"
        lines = response.iter_lines()
        data = next(line for line in lines if line.startswith("data:"))
        assert data == {TEXT: "data:2233", JSON: "data:[22,33]", BINARY: "data:MjIzMw=="}[kind]
        write(stream, [b"44"])
        data = next(line for line in lines if line.startswith("data:") and "stream" not in line)
        assert data == {TEXT: "data:44", JSON: "data:[44]", BINARY: "data:NDQ="}[kind]


@pytest.mark.parametrize("state", ["hot", "cold"])
def test_long_poll(new_cold_stream, state: str) -> None:
    stream = new_cold_stream(TEXT)
    write(stream, [b"one", b"two"])
    if state == "cold":
        flush_and_forget(stream)
    answer = stream.long_poll(None, last=1)
    assert (answer.status_code, answer.content) == (200, b"two")
    assert answer.headers[START] == offset(3)
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Stream-Cursor"].isdigit()


def test_long_poll_of_an_empty_stream_waits(cold_server, new_cold_stream) -> None:
    stream = new_cold_stream(TEXT)
    flush_and_forget(stream)
    with RawConnection(cold_server.port) as waiting:
        waiting.request("GET", f"{stream.url}?last=5&live=long-poll")
        until(lambda: metrics(stream.client)["holdfast_live_readers"] == 1)
        write(stream, [b"first"])
        answer = waiting.response()
    assert (answer.status, answer.body) == (200, b"first")


def test_long_poll_at_the_end_says_where_it_started(new_stream) -> None:
    stream = new_stream(TEXT, stream_closed="true")
    answer = stream.long_poll(None, last=1)
    assert (answer.status_code, answer.headers[START]) == (204, offset(0))


def test_limit_holds_and_reading_goes_on(new_stream) -> None:
    stream = new_stream(TEXT)
    write(stream, [b"aaaa", b"bbbb", b"cccc"])
    first = stream.get({"last": 2, "max_bytes": 4})
    assert first.content == b"bbbb"
    assert "Stream-Up-To-Date" not in first.headers
    assert messages_of(stream, first.headers["Stream-Next-Offset"]) == [b"cccc"]


def test_etags_do_not_matter(new_stream) -> None:
    stream = new_stream(TEXT, b"x")
    assert stream.get({"last": 1}, if_none_match="*").status_code == 200


@for_each("live", [None, "long-poll", "sse"])
@for_each("value", ["", "0", "-1", "10001", "99999999999", "1.0", "two", "٣"])
def test_other_values_are_refused(new_stream, live: str | None, value: str) -> None:
    answer = new_stream(TEXT, b"x").get({"live": live, "last": value})
    check_error(answer, 400, "invalid_request", "last")


@pytest.mark.parametrize("live", [None, "long-poll", "sse"])
@pytest.mark.parametrize("start", ["-1", "now", offset(0), ""])
def test_not_together_with_an_offset(new_stream, live: str | None, start: str) -> None:
    answer = new_stream(TEXT, b"x").get({"live": live, "last": 1, "offset": start})
    check_error(answer, 400, "invalid_request", "offset")


def test_stream_that_is_not_there(absent) -> None:
    check_error(absent().get({"last": 1}), 404, "stream_not_found")


def test_deleted_stream_with_forks(cold_client) -> None:
    source = bucket_stream(cold_client, b"12345")
    fork = fork_of(source)
    assert source.delete().status_code == 204
    check_error(source.get({"last": 1}), 410, "stream_deleted")
    assert fork.get({"last": 1}).content == b"12345"


def test_two_parameters_of_one_read(new_stream) -> None:
    """The events of the last messages, with their lengths."""
    stream = new_stream(TEXT)
    write(stream, [b"one", b"two", b"three"])
    given = {"live": "sse", "last": 2, "lengths": "true"}
    with stream.client.stream("GET", stream.url, params=given) as response:
        assert response.headers["Stream-Message-Lengths"] == "events"
        assert response.headers[START] == offset(3)
        control = next(line for line in response.iter_lines() if "streamNextOffset" in line)
    assert json.loads(control.removeprefix("data:"))["streamMessageLengths"] == [3, 5]
