"""GET with `live=long-poll`: waiting for data."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.http.streams import JSON, TEXT, check_error

CURSOR_EPOCH_S = 1_728_432_000  # 2024-10-09T00:00:00Z
CURSOR_INTERVAL_S = 20


def current_cursor() -> int:
    return int(time.time() - CURSOR_EPOCH_S) // CURSOR_INTERVAL_S


@pytest.mark.spec("base 5.7-2", "base 5.7-10", "base 8.1-10")
def test_data_that_is_there_is_answered_at_once(new_patient_stream) -> None:
    stream = new_patient_stream(body=b"hello")
    response = stream.long_poll("-1")
    assert response.status_code == 200
    assert response.content == b"hello"
    assert response.headers["Content-Type"] == TEXT
    assert response.headers["Stream-Next-Offset"] == stream.tail()
    assert response.headers["Stream-Up-To-Date"] == "true"
    assert response.headers["Stream-Cursor"].isdigit()
    assert "Stream-Closed" not in response.headers


@pytest.mark.spec("base 5.7-2", "base 5.7-11")
def test_data_that_arrives_ends_the_wait(new_patient_stream, start_long_poll) -> None:
    stream = new_patient_stream(body=b"old")
    waiting = start_long_poll(stream, stream.tail())
    stream.append(b"new")
    response = waiting.response()
    assert response.status == 200
    assert response.body == b"new"
    assert response.headers["stream-next-offset"] == stream.tail()
    assert response.headers["stream-up-to-date"] == "true"
    assert response.headers["stream-cursor"].isdigit()


@pytest.mark.spec("base 6-17", "base 6-18")
def test_now_waits_for_what_comes_next(new_patient_stream, start_long_poll) -> None:
    stream = new_patient_stream(body=b"history")
    waiting = start_long_poll(stream, "now")
    stream.append(b"news")
    response = waiting.response()
    assert response.status == 200
    assert response.body == b"news"
    assert response.headers["stream-next-offset"] == stream.tail()


def test_many_waiting_readers_get_the_same_data(new_patient_stream, start_long_poll) -> None:
    stream = new_patient_stream(JSON)
    waiting = [start_long_poll(stream, "-1") for _ in range(20)]
    stream.append(b'[{"a":1},{"b":2}]')
    assert {connection.response().body for connection in waiting} == {b'[{"a":1},{"b":2}]'}


def test_waiting_reader_is_not_woken_by_another_stream(new_patient_stream, start_long_poll) -> None:
    stream, other = new_patient_stream(), new_patient_stream()
    waiting = start_long_poll(stream, "now")
    other.append(b"not for you")
    stream.append(b"for you")
    assert waiting.response().body == b"for you"


@pytest.mark.spec(
    "base 5.7-3", "base 5.7-4", "base 5.7-5", "base 5.7-13", "base 6-18", "base 8.1-10"
)
@pytest.mark.parametrize("offset", ["tail", "now"])
def test_wait_without_data_ends_with_204(new_stream, offset) -> None:
    stream = new_stream(body=b"hello")
    response = stream.long_poll(stream.tail() if offset == "tail" else "now")
    assert response.status_code == 204
    assert response.content == b""
    assert response.headers["Stream-Next-Offset"] == stream.tail()
    assert response.headers["Stream-Up-To-Date"] == "true"
    assert response.headers["Stream-Cursor"].isdigit()
    assert "Stream-Closed" not in response.headers


@pytest.mark.spec("base 8.1-14")
def test_answer_without_data_is_kept_out_of_caches(new_stream, new_patient_stream) -> None:
    assert new_stream().long_poll("-1").headers["Cache-Control"] == "no-store"
    closed = new_patient_stream(stream_closed="true")
    assert closed.long_poll("-1").headers["Cache-Control"] == "no-store"


@pytest.mark.spec("base 5.7-7", "base 5.7-8", "base 5.7-9", "base 6-22", "base 6-23", "base 6-24")
@pytest.mark.parametrize("offset", ["tail", "now"])
def test_nobody_waits_at_the_end_of_a_closed_stream(new_patient_stream, offset) -> None:
    stream = new_patient_stream(body=b"all", stream_closed="true")
    response = stream.long_poll(stream.tail() if offset == "tail" else "now")
    assert response.status_code == 204
    assert response.headers["Stream-Closed"] == "true"
    assert response.headers["Stream-Up-To-Date"] == "true"
    assert response.headers["Stream-Next-Offset"] == stream.tail()


@pytest.mark.spec("base 5.7-7")
def test_closing_ends_the_wait(new_patient_stream, start_long_poll) -> None:
    stream = new_patient_stream(body=b"all")
    waiting = start_long_poll(stream, "now")
    stream.close()
    response = waiting.response()
    assert response.status == 204
    assert response.headers["stream-closed"] == "true"
    assert response.headers["stream-up-to-date"] == "true"
    assert response.headers["stream-next-offset"] == stream.tail()


@pytest.mark.spec("base 5.6-6")
def test_closing_with_data_ends_the_wait_with_the_data(new_patient_stream, start_long_poll) -> None:
    stream = new_patient_stream(body=b"almost,")
    waiting = start_long_poll(stream, "now")
    stream.append(b"all", stream_closed="true")
    response = waiting.response()
    assert response.status == 200
    assert response.body == b"all"
    assert response.headers["stream-closed"] == "true"


@pytest.mark.spec("base 5.7-1")
def test_offset_is_required(new_stream) -> None:
    check_error(new_stream(body=b"x").long_poll(None), 400, about="offset")


@pytest.mark.spec("base 5.7-12")
@pytest.mark.parametrize("offset", ["-1", "now", "0" * 20])
def test_long_poll_on_a_stream_that_does_not_exist_is_404(absent, offset) -> None:
    check_error(absent().long_poll(offset), 404, "stream_not_found")


@pytest.mark.spec("base 8.1-15")
def test_cursor_is_the_number_of_the_interval(new_stream) -> None:
    stream = new_stream(body=b"x")
    before = current_cursor()
    cursor = int(stream.long_poll("-1").headers["Stream-Cursor"])
    assert before <= cursor <= current_cursor()


@pytest.mark.spec("base 8.1-11", "base 8.1-12")
def test_echoed_cursor_gets_a_greater_one(new_stream) -> None:
    stream = new_stream(body=b"x")
    cursor = int(stream.long_poll("-1").headers["Stream-Cursor"])
    for _ in range(5):
        following = int(stream.long_poll("-1", cursor=cursor).headers["Stream-Cursor"])
        # Jitter of at most 3,600 s is at most 180 intervals.
        assert cursor < following <= cursor + 3600 // CURSOR_INTERVAL_S
        cursor = following


@pytest.mark.spec("base 8.1-12")
def test_cursor_of_a_204_is_greater_too(new_stream) -> None:
    ahead = current_cursor() + 1000
    response = new_stream().long_poll("-1", cursor=ahead)
    assert response.status_code == 204
    assert int(response.headers["Stream-Cursor"]) > ahead


@pytest.mark.spec("base 8.1-11")
@pytest.mark.parametrize("cursor", ["1", "abc", "", "-5", "9" * 60])
def test_old_or_foreign_cursor_gets_the_current_one(new_stream, cursor) -> None:
    before = current_cursor()
    response = new_stream(body=b"x").long_poll("-1", cursor=cursor)
    assert before <= int(response.headers["Stream-Cursor"]) <= current_cursor()


def test_reader_that_hangs_up_disturbs_nobody(new_patient_stream, start_long_poll) -> None:
    stream = new_patient_stream()
    start_long_poll(stream, "-1").__exit__()
    waiting = start_long_poll(stream, "-1")
    assert stream.append(b"still here").status_code == 204
    assert waiting.response().body == b"still here"


def test_appends_and_long_polls_in_parallel_lose_nothing(new_stream) -> None:
    stream = new_stream()

    def follow() -> bytes:
        received, offset = b"", "-1"
        while not received.endswith(b"."):
            response = stream.long_poll(offset)
            received += response.content
            offset = response.headers["Stream-Next-Offset"]
        return received

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(follow) for _ in range(4)]
        for number in range(50):
            stream.append(b"%d," % number)
        stream.append(b".")
        expected = b"".join(b"%d," % number for number in range(50)) + b"."
        assert {reader.result() for reader in readers} == {expected}
