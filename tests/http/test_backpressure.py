"""Appends that come faster than they can be flushed: they are refused for a moment, never lost."""

import time
from concurrent.futures import ThreadPoolExecutor

from tests.http.cold import IDLE
from tests.http.streams import TEXT, Stream, check_error, producer
from tests.storage_stats import flush, metrics, stats, until

LIMITS = {"hot_bytes_soft": 10_000, "hot_bytes_hard": 30_000, **IDLE}
AUTHORS = 4
APPENDS = 60


def test_writers_that_come_again_get_everything_in(start_server, client_of) -> None:
    client = client_of(start_server(**LIMITS))

    def write(author: int) -> int:
        stream, refused = Stream(client, f"author/{author}"), 0
        until(lambda: stream.create().status_code in {200, 201})
        for number in range(APPENDS):
            body = b"%d;" % number + b"." * 3000
            while (answer := stream.append(body, **producer(number))).status_code != 200:
                check_error(answer, 503, "overloaded", "hot limit")
                assert int(answer.headers["Retry-After"]) >= 1
                refused += 1
                # Not a second, as it asks for: what is tested is not how long that is.
                time.sleep(0.005)
        return refused

    with ThreadPoolExecutor(AUTHORS) as threads:
        refused = sum(threads.map(write, range(AUTHORS)))
    assert refused > 0, "the limit was never reached"
    flush(client)
    found = stats(client)
    assert found["backpressure"] == {
        "active": False,
        "reason": None,
        "refused": found["backpressure"]["refused"],
        "delayed_s": metrics(client)["holdfast_write_delay_seconds_total"],
    }
    assert found["backpressure"]["refused"] >= refused
    assert metrics(client)["holdfast_write_backpressure"] == 0
    expected = b"".join(b"%d;" % number + b"." * 3000 for number in range(APPENDS))
    for author in range(AUTHORS):
        assert Stream(client, f"author/{author}").read().content == expected


def test_one_append_larger_than_the_limit_is_taken(start_server, stream_on) -> None:
    """The limit is on what is there, so that nothing can be too large to be ever taken."""
    stream = stream_on(start_server(**LIMITS), TEXT)
    body = b"x" * 200_000
    for _ in range(3):
        until(lambda: stream.append(body).status_code == 204)
    flush(stream.client)
    assert stream.read().content == 3 * body
