"""DELETE, and what a name means afterwards."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.http.streams import check_error, producer


@pytest.mark.spec("base 5.4-1")
@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_delete_is_204(new_stream, closed) -> None:
    stream = new_stream(body=b"gone soon")
    if closed:
        stream.close()
    response = stream.delete()
    assert response.status_code == 204
    assert response.content == b""


@pytest.mark.spec("base 5.4-2")
def test_delete_of_a_stream_that_does_not_exist_is_404(absent, new_stream) -> None:
    check_error(absent().delete(), 404, "stream_not_found")
    stream = new_stream()
    stream.delete()
    check_error(stream.delete(), 404, "stream_not_found")


@pytest.mark.spec("base 5.4-3")
def test_everything_after_the_deletion_is_404(new_stream) -> None:
    stream = new_stream(body=b"x")
    tail = stream.tail()
    stream.delete()
    assert stream.head().status_code == 404
    for response in (
        stream.read(),
        stream.read(tail),
        stream.read("now"),
        stream.long_poll(tail),
        stream.get({"offset": tail, "live": "sse"}),
        stream.append(b"x"),
        stream.append(b"x", **producer(1)),
        stream.close(),
    ):
        check_error(response, 404, "stream_not_found")


@pytest.mark.spec("base 5.4-3")
def test_deletion_ends_a_waiting_long_poll_with_404(new_patient_stream, start_long_poll) -> None:
    stream = new_patient_stream(body=b"x")
    waiting = start_long_poll(stream, "now")
    stream.delete()
    assert waiting.response().status == 404


@pytest.mark.spec("base 5.4-3")
def test_deletion_ends_a_waiting_sse_reader(new_patient_stream) -> None:
    stream = new_patient_stream(body=b"x")
    with stream.sse() as events:
        events.until_up_to_date()
        stream.delete()
        assert [event for event in events if event.type == "data"] == []


@pytest.mark.spec("base 4-1")
def test_name_of_a_deleted_stream_can_be_used_for_another(new_stream) -> None:
    stream = new_stream(body=b"first life")
    stream.append(b"!", stream_seq="9", **producer(0, epoch=9))
    before = stream.read()
    stream.delete()
    assert stream.create(b"second life").status_code == 201
    after = stream.read()
    assert after.content == b"second life"
    assert after.headers["ETag"] != before.headers["ETag"]


@pytest.mark.spec("base 4-1")
def test_stream_with_a_used_name_inherits_nothing(new_stream) -> None:
    stream = new_stream(stream_ttl="3600")
    stream.append(b"x", stream_seq="9", **producer(0, epoch=9))
    stream.close()
    stream.delete()
    stream.content_type = "application/json"
    assert stream.create().status_code == 201
    head = stream.head().headers
    assert head["Content-Type"] == "application/json"
    assert head["Stream-Next-Offset"] == "0" * 20
    assert "Stream-Closed" not in head
    assert "Stream-TTL" not in head
    assert stream.append(b"1", stream_seq="1", **producer(0)).status_code == 200


@pytest.mark.spec("base 4-1")
def test_etag_of_a_former_life_is_no_match(new_stream) -> None:
    stream = new_stream(body=b"same bytes")
    etag = stream.read().headers["ETag"]
    stream.delete()
    stream.create(b"same bytes")
    assert stream.get({}, if_none_match=etag).status_code == 200


def test_one_of_racing_deletions_wins(new_stream) -> None:
    stream = new_stream(body=b"x")
    with ThreadPoolExecutor(8) as pool:
        attempts = [pool.submit(stream.delete) for _ in range(16)]
    assert sorted(attempt.result().status_code for attempt in attempts) == [204] + [404] * 15


def test_deletion_spares_streams_with_longer_paths(client, new_stream) -> None:
    parent = new_stream(body=b"parent")
    child = type(parent)(client, f"{parent.path}/child")
    child.create(b"child")
    parent.delete()
    assert child.read().content == b"child"
