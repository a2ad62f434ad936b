"""What a snapshot does to its stream: where it starts, who may read it, and what stays so."""

import pytest

from tests.http.bucketed import bucket_stream, offset, parts
from tests.http.cold import IDLE, flush_and_forget
from tests.http.raw import RawConnection
from tests.http.streams import BINARY, TEXT, check_error, data_of
from tests.storage_stats import flush


@pytest.mark.spec("extensions 2.2-8", "extensions 2.2-9", "base 5.6-12")
@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
@pytest.mark.parametrize("live", [None, "long-poll", "sse"])
def test_reads_before_the_snapshot_are_410(client, live, cold) -> None:
    stream = bucket_stream(client, b"12345", b"678", b"9")
    if cold:
        flush(client)
    assert stream.publish(offset(8)).status_code == 204
    assert stream.head().headers["Stream-Earliest-Offset"] == offset(8)
    for each in (stream, stream.flat):
        for at in ("-1", offset(0), offset(4), offset(7), *([] if live else [None])):
            gone = each.get({"offset": at, "live": live})
            check_error(gone, 410, "offset_gone", about="/bootstrap")
            assert gone.headers["Stream-Earliest-Offset"] == offset(8)
            assert gone.headers["Cache-Control"] == "no-store"
    if live == "sse":
        with stream.sse(offset(8)) as events:
            assert data_of(events.until_up_to_date()) == ["9"]
        return
    assert stream.get({"offset": offset(8), "live": live}).content == b"9"
    assert stream.get({"offset": "now", "live": live}).status_code in {200, 204}


@pytest.mark.spec("extensions 2.2-9")
def test_known_etag_does_not_help(client) -> None:
    stream = bucket_stream(client, b"12345", b"678")
    known = stream.read("-1").headers["ETag"]
    assert stream.get({"offset": "-1"}, if_none_match=known).status_code == 304
    stream.publish(offset(5))
    check_error(stream.get({"offset": "-1"}, if_none_match=known), 410, "offset_gone")
    check_error(stream.get({"offset": "-1"}, if_none_match="*"), 410, "offset_gone")


@pytest.mark.spec("extensions 3.4-1")
def test_plain_reads_give_no_snapshot(client) -> None:
    stream = bucket_stream(client, b"12345", b"678")
    stream.publish(offset(5), b"SNAPSHOT")
    for at in (offset(5), offset(8), "now"):
        assert b"SNAPSHOT" not in stream.read(at).content
    with stream.sse(offset(5)) as events:
        assert data_of(events.until_up_to_date()) == ["678"]


@pytest.mark.spec("extensions 2.2-10", "extensions 2.5-2")
def test_newer_snapshot_replaces_the_older_one(client) -> None:
    stream = bucket_stream(client, b"12345", b"678")
    stream.publish(offset(5), b"first")
    assert stream.publish(offset(8), b"second").status_code == 204
    check_error(stream.snapshot(offset(5)), 404, "snapshot_not_found", about=offset(8))
    assert stream.snapshot(offset(8)).content == b"second"
    assert stream.head().headers["Stream-Snapshot-Offset"] == offset(8)
    check_error(stream.read(offset(5)), 410, "offset_gone")
    assert parts(stream.bootstrap()) == [(BINARY, b"second")]


@pytest.mark.spec("extensions 2.2-10")
def test_snapshot_is_replaced_at_the_same_offset(client) -> None:
    stream = bucket_stream(client, b"12345", b"678")
    stream.publish(offset(5), b"first", "text/plain")
    assert stream.publish(offset(5), b"second", "text/html").status_code == 204
    found = stream.snapshot(offset(5))
    assert found.content == b"second"
    assert found.headers["Content-Type"] == "text/html"
    assert stream.read(offset(5)).content == b"678"


def test_appends_go_on_behind_a_snapshot(client) -> None:
    stream = bucket_stream(client, b"12345")
    stream.publish(offset(5), b"state")
    assert stream.append(b"678").headers["Stream-Next-Offset"] == offset(8)
    assert stream.read(offset(5)).content == b"678"
    assert stream.snapshot(offset(5)).headers["Stream-Up-To-Date"] == "false"
    assert stream.snapshot(offset(5)).headers["Stream-Next-Offset"] == offset(5)


def test_reader_at_the_tail_is_not_disturbed(client) -> None:
    stream = bucket_stream(client, b"12345")
    with stream.sse("now") as events:
        events.until_up_to_date()
        stream.publish(offset(5), b"state")
        stream.append(b"678")
        assert data_of(events.until_up_to_date()) == ["678"]


def test_long_poll_does_not_end_with_a_snapshot(patient_client, patient_server) -> None:
    stream = bucket_stream(patient_client, b"12345")
    with RawConnection(patient_server.port) as waiting:
        waiting.request("GET", f"{stream.url}?offset={offset(5)}&live=long-poll")
        stream.head()
        stream.publish(offset(5), b"state")
        stream.append(b"678")
        answer = waiting.response()
    assert (answer.status, answer.body) == (200, b"678")


def test_new_life_has_no_snapshot(client) -> None:
    stream = bucket_stream(client, b"12345")
    stream.publish(offset(5), b"state")
    stream.delete()
    stream.create(b"67890")
    check_error(stream.snapshot(), 404, "snapshot_not_found")
    assert stream.read("-1").content == b"67890"
    assert parts(stream.bootstrap()) == [(BINARY, b""), (TEXT, b"67890")]


@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
def test_snapshot_survives_a_restart(start_server, client_of, cold) -> None:
    settings = {**IDLE, "snapshot_cache_bytes": 0}
    server = start_server(**settings)
    client = client_of(server)
    stream = bucket_stream(client, b"12345", b"678")
    if cold:
        flush_and_forget(stream)
    stream.publish(offset(5), b"state", "text/plain")
    if cold:
        flush_and_forget(stream)
    expected = stream.snapshot(offset(5)).headers["Content-Type"], parts(stream.bootstrap())
    assert expected == ("text/plain", [("text/plain", b"state"), (TEXT, b"678")])
    server.kill()
    stream.client = client_of(start_server(**settings))
    found = stream.snapshot(offset(5))
    assert (found.headers["Content-Type"], parts(stream.bootstrap())) == expected
    assert stream.head().headers["Stream-Snapshot-Offset"] == offset(5)
    check_error(stream.read("-1"), 410, "offset_gone")
    assert stream.read(offset(5)).content == b"678"
    assert stream.append(b"9").status_code == 204
    check_error(stream.publish(offset(0)), 410, "offset_gone")
    assert stream.publish(offset(9), b"next").status_code == 204
