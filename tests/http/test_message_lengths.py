"""`lengths=true`: answers and events that tell where their messages end."""

from collections.abc import Iterator

import httpx
import pytest

from tests.http.bucketed import bucket_stream, offset
from tests.http.cold import IDLE, KINDS, large_bodies, small_bodies, write, write_many
from tests.http.conftest import DEADLINE_S, MakeStream, _create_stream
from tests.http.messages import (
    LENGTHS,
    VALUE_BYTES_MAX,
    event_messages,
    lengths_of,
    messages_of,
    pages,
)
from tests.http.streams import BINARY, JSON, TEXT, check_error, data_of, producer
from tests.http.test_forks import fork_of
from tests.server_process import ServerProcess
from tests.storage_stats import flush

BYTES = (TEXT, BINARY)
SIZES = (1, 2, 3, 4, 5, 7, 9, 20, None)


@pytest.fixture(scope="module")
def cold_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server that is flushed on demand."""
    with ServerProcess(tmp_path_factory.mktemp("cold") / "data", **IDLE) as server:
        with httpx.Client(base_url=server.url, timeout=DEADLINE_S) as client:
            yield client


@pytest.fixture
def new_cold_stream(cold_client: httpx.Client) -> MakeStream:
    return lambda *arguments, **headers: _create_stream(cold_client, *arguments, **headers)


def without(answer: httpx.Response, *names: str) -> tuple[bytes, dict[str, str]]:
    """An answer to compare, but for these fields."""
    passing = {"date", "stream-cursor", *(name.lower() for name in names)}
    return answer.content, {
        name: value for name, value in answer.headers.items() if name not in passing
    }


@pytest.mark.parametrize("kind", BYTES)
def test_lengths_are_those_of_the_appends(new_stream, kind: str) -> None:
    stream = new_stream(kind, b"12345")
    write(stream, [b"1234567", b"123"])
    answer = stream.read(lengths="true")
    assert answer.headers[LENGTHS] == "5,7,3"
    assert answer.content == b"123451234567123"
    assert answer.headers["Stream-Up-To-Date"] == "true"


@pytest.mark.parametrize("kind", BYTES)
def test_append_may_hold_several_messages(new_cold_stream, kind: str) -> None:
    """Readers see the same as after an append of each, from memory and from packs."""
    stream, bodies = new_cold_stream(kind), small_bodies(kind)
    listed = {"stream_message_lengths": ",".join(str(len(body)) for body in bodies)}
    written = stream.append(b"".join(bodies), **listed, **producer(0))
    assert written.status_code == 200
    assert int(written.headers["Stream-Next-Offset"]) == sum(map(len, bodies))
    assert stream.append(b"".join(bodies), **listed, **producer(0)).status_code == 204
    for _ in range(2):
        assert messages_of(stream) == bodies
        assert stream.read(None, last=2).content == b"".join(bodies[-2:])
        flush(stream.client)
    closing = {"stream_message_lengths": "1,2", "stream_closed": "true"}
    assert stream.append(b"abb", **closing, **producer(1)).headers["Stream-Closed"] == "true"
    assert messages_of(stream) == [*bodies, b"a", b"bb"]
    assert stream.append(b"abb", **closing, **producer(1)).status_code == 204


@pytest.mark.parametrize("lengths", ["", "0", "3,0", "1,1", "4", "3,", "+3", "1, 2", "x", "-3,6"])
def test_lengths_of_an_append_add_up_to_its_body(new_stream, lengths: str) -> None:
    stream = new_stream()
    check_error(stream.append(b"abc", stream_message_lengths=lengths), 400, about="Lengths")
    assert stream.read().content == b""


def test_lengths_of_an_append_have_a_limit(new_stream) -> None:
    stream = new_stream()
    listed = {"stream_message_lengths": ",".join("1" * 1000)}
    assert stream.append(bytes(1000), **listed).status_code == 204
    listed["stream_message_lengths"] += ",1"
    check_error(stream.append(bytes(1001), **listed), 400, about="2000")


def test_messages_of_a_json_stream_are_the_elements(new_stream) -> None:
    refused = new_stream(JSON).append(b"[1]", stream_message_lengths="3")
    check_error(refused, 400, about="array")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [None, "false"])
def test_who_does_not_ask_is_not_told(new_stream, kind: str, lengths: str | None) -> None:
    stream = new_stream(kind)
    write(stream, small_bodies(kind))
    for answer in (
        stream.read(lengths=lengths),
        stream.read("now", lengths=lengths),
        stream.long_poll("-1", lengths=lengths),
    ):
        assert LENGTHS not in answer.headers
    with stream.sse(lengths=lengths or "false") as events:
        assert LENGTHS not in events.response.headers
        assert all(
            "streamMessageLengths" not in event.json
            for event in events.until_up_to_date()
            if event.type == "control"
        )


@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_of_the_answer_is_the_same(new_stream, kind: str) -> None:
    stream = new_stream(kind)
    write(stream, small_bodies(kind))
    for size in SIZES:
        plain, counted = stream.read(max_bytes=size), stream.read(max_bytes=size, lengths="true")
        assert without(counted, LENGTHS) == without(plain)


@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize("cold_appends", [0, 2, 5])
def test_every_limit_gives_the_same_messages(new_cold_stream, kind: str, cold_appends: int) -> None:
    """From the start and from any offset inside the first ones, which then count from there."""
    stream, bodies = new_cold_stream(kind), small_bodies(kind)
    write(stream, bodies[:cold_appends])
    flush(stream.client)
    write(stream, bodies[cold_appends:])
    for size in SIZES:
        assert messages_of(stream, max_bytes=size) == bodies
    for start in range(1, len(bodies[0])):
        assert messages_of(stream, offset(start), max_bytes=4) == [bodies[0][start:], *bodies[1:]]


@pytest.mark.parametrize("kind", BYTES)
def test_cold_answers_are_what_hot_ones_were(new_cold_stream, kind: str) -> None:
    stream = new_cold_stream(kind)
    tail = write(stream, small_bodies(kind))[-1]

    def answers() -> list[tuple[bytes, dict[str, str]]]:
        return [
            without(stream.read(offset(start), max_bytes=size, lengths="true"))
            for start in range(tail + 1)
            for size in SIZES
        ]

    hot = answers()
    flush(stream.client)
    assert answers() == hot


def test_cut_message_goes_on_in_the_next_answer(new_stream) -> None:
    stream = new_stream(BINARY, b"0123456789")
    stream.append(b"abc")
    found = pages(stream, max_bytes=4)
    assert [page.content for page in found] == [b"0123", b"4567", b"89", b"abc"]
    assert [page.headers[LENGTHS] for page in found] == ["none", "none", "2", "3"]


@pytest.mark.parametrize("state", ["hot", "cold"])
def test_character_that_exceeds_the_limit_is_a_message(new_cold_stream, state: str) -> None:
    stream = new_cold_stream(TEXT)
    write(stream, ["€".encode(), b"x"])
    if state == "cold":
        flush(stream.client)
    answer = stream.read(max_bytes=1, lengths="true")
    assert (answer.content.decode(), answer.headers[LENGTHS]) == ("€", "3")


@pytest.mark.parametrize("kind", BYTES)
def test_large_messages(new_cold_stream, kind: str) -> None:
    stream, bodies = new_cold_stream(kind), large_bodies(kind)
    write(stream, bodies)
    for _ in range(2):
        for size in (300_000, None):
            assert messages_of(stream, max_bytes=size) == bodies
        flush(stream.client)


@pytest.mark.parametrize("body", [b"", b"abc"])
def test_nothing_behind_the_tail(new_stream, body: bytes) -> None:
    stream = new_stream(BINARY, body or None)
    for start in ("now", offset(len(body))):
        answer = stream.read(start, lengths="true")
        assert (answer.content, answer.headers[LENGTHS]) == (b"", "none")
    json_stream = new_stream(JSON)
    for start in ("now", "-1"):
        answer = json_stream.read(start, lengths="true")
        assert (answer.content, answer.headers[LENGTHS]) == (b"[]", "json")


@pytest.mark.parametrize("state", ["hot", "cold", "both"])
@pytest.mark.parametrize("width", [1, 2, 7])
def test_thousands_of_tiny_messages(new_cold_stream, state: str, width: int) -> None:
    """The list has a limit: the answer ends where it does, and the next one goes on."""
    stream = new_cold_stream(BINARY)
    bodies = [b"%d" % (number % 10) * (number % width + 1) for number in range(2500)]
    write_many(stream, bodies[:1700])
    if state == "both":
        flush(stream.client)
    write_many(stream, bodies[1700:])
    stream.close()
    if state == "cold":
        flush(stream.client)
    found = pages(stream)
    assert messages_of(stream) == bodies
    assert len(found) == 3
    for page in found[:-1]:
        assert VALUE_BYTES_MAX - 2 < len(page.headers[LENGTHS]) <= VALUE_BYTES_MAX
        assert sum(lengths_of(page)) == len(page.content)
        assert "Stream-Closed" not in page.headers
    assert found[-1].headers["Stream-Closed"] == "true"
    if state == "both":
        # Some of them go from packs into memory.
        assert messages_of(stream, offset(1500)) == messages_of(stream, offset(1500), max_bytes=900)


@pytest.mark.parametrize("state", ["hot", "cold"])
def test_known_etag_is_304(new_cold_stream, state: str) -> None:
    """That of the bytes up to where the list ends, not of what a plain read gives."""
    stream = new_cold_stream(BINARY)
    write_many(stream, [b"x"] * 1200)
    if state == "cold":
        flush(stream.client)
    first = stream.read(lengths="true")
    assert len(first.content) == 1000
    assert first.headers["ETag"] != stream.read().headers["ETag"]
    known = stream.get({"lengths": "true"}, if_none_match=first.headers["ETag"])
    assert known.status_code == 304
    for name in ("ETag", "Stream-Next-Offset", LENGTHS):
        assert known.headers[name] == first.headers[name]


@pytest.mark.parametrize("state", ["hot", "cold"])
def test_json_moves_by_the_text_of_each_message_and_one(new_cold_stream, state: str) -> None:
    stream = new_cold_stream(JSON)
    write(stream, [b' [ 1 , {"a" :\r\n 2} ] ', b"\n1e999 ", '"ü😀"'.encode(), b"[[],{},\t3]"])
    texts = [b"1", b'{"a" :\r\n 2}', b"1e999", '"ü😀"'.encode(), b"[]", b"{}", b"3"]
    if state == "cold":
        flush(stream.client)
    answer = stream.read(lengths="true")
    assert answer.headers[LENGTHS] == "json"
    assert answer.content == b"[" + b",".join(texts) + b"]"
    at = 0
    for text in texts:
        page = stream.read(offset(at), max_bytes=1, lengths="true")
        assert (page.content, page.headers[LENGTHS]) == (b"[%b]" % text, "json")
        at += len(text) + 1
        assert page.headers["Stream-Next-Offset"] == offset(at)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", ["hot", "cold"])
def test_long_poll(new_cold_stream, kind: str, state: str) -> None:
    stream, bodies = new_cold_stream(kind), small_bodies(kind)
    tails = write(stream, bodies)
    if state == "cold":
        flush(stream.client)
    answer = stream.long_poll(offset(tails[1]), lengths="true")
    assert answer.headers["Stream-Cursor"].isdigit()
    if kind == JSON:
        assert answer.headers[LENGTHS] == "json"
    else:
        assert lengths_of(answer) == [len(body) for body in bodies[2:]]


def test_long_poll_that_waits(new_patient_stream, start_long_poll) -> None:
    stream = new_patient_stream(BINARY, b"old")
    waiting = start_long_poll(stream, f"{offset(3)}&lengths=true")
    stream.append(b"fresh")
    answer = waiting.response()
    assert (answer.body, answer.headers[LENGTHS.lower()]) == (b"fresh", "5")


def test_long_poll_without_bytes_has_no_lengths(new_stream) -> None:
    stream = new_stream(BINARY, b"all", stream_closed="true")
    answer = stream.long_poll(offset(3), lengths="true")
    assert answer.status_code == 204
    assert LENGTHS not in answer.headers


@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize("state", ["hot", "cold"])
@pytest.mark.parametrize("size", [1, 4, 9, None])
def test_events(new_cold_stream, kind: str, state: str, size: int | None) -> None:
    stream = new_cold_stream(kind)
    bodies = [body.replace(b"\r", b"") for body in small_bodies(kind)]
    write(stream, bodies)
    if state == "cold":
        flush(stream.client)
    parameters = {} if size is None else {"max_bytes": size}
    with stream.sse(lengths="true", **parameters) as events:
        assert events.response.headers[LENGTHS] == "events"
        found = events.until_up_to_date()
        for body in bodies[:3]:
            write(stream, [body])
            found += events.until_up_to_date()
        stream.close()
        found += list(events)
    assert event_messages(kind, found) == bodies + bodies[:3]
    assert "streamMessageLengths" not in found[-1].json


def test_first_control_event_without_data_has_no_lengths(new_stream) -> None:
    with new_stream(BINARY, b"x").sse("now", lengths="true") as events:
        assert events.next().json.keys() == {"streamNextOffset", "streamCursor", "upToDate"}


def test_lengths_of_events_are_of_the_stored_bytes(new_stream) -> None:
    """So it shows where line ends were changed."""
    stream = new_stream(TEXT, b"a\r\nb")
    stream.append(b"c\n")
    with stream.sse(lengths="true") as events:
        data, control = events.until_up_to_date()
    assert data.data == "a\nbc\n"
    assert control.json["streamMessageLengths"] == [4, 2]


def test_json_events_are_the_same_bytes(new_stream) -> None:
    stream = new_stream(JSON, b'[1,{"a":2}]', stream_closed="true")
    wires = []
    for lengths in ("false", "true"):
        with stream.sse(lengths=lengths) as events:
            assert events.response.headers.get(LENGTHS) == {"true": "json"}.get(lengths)
            wires.append(b"".join(events.response.iter_bytes()))
    assert wires[0] == wires[1]


def test_readers_with_and_without_lengths(new_stream) -> None:
    """Each gets what it asked for, whoever is served first."""
    stream = new_stream(TEXT)
    with (
        stream.sse() as plain,
        stream.sse(lengths="true") as counted,
        stream.sse() as other_plain,
        stream.sse(lengths="true") as other_counted,
    ):
        readers = (plain, counted, other_plain, other_counted)
        for reader in readers:
            reader.until_up_to_date()
        for body in (b"one", b"three", b"x"):
            write(stream, [body])
            found = [reader.until_up_to_date() for reader in readers]
            assert [data_of(events) for events in found] == [[body.decode()]] * 4
            told = [events[-1].json.get("streamMessageLengths") for events in found]
            assert told == [None, [len(body)]] * 2


@pytest.mark.parametrize("state", ["hot", "cold"])
def test_fork_that_starts_inside_a_message(cold_client, state: str) -> None:
    """What it has of that message is one of its own."""
    source = bucket_stream(cold_client, b"12345", b"6789", content_type=BINARY)
    fork = fork_of(source, stream_fork_offset=offset(7))
    write(fork, [b"abc", b"d"])
    if state == "cold":
        flush(cold_client)
        write(fork, [b"hot"])
    expected = [b"12345", b"67", b"abc", b"d"] + [b"hot"] * (state == "cold")
    for size in SIZES:
        assert messages_of(fork, max_bytes=size) == expected
    assert messages_of(fork, offset(6)) == [b"7", *expected[2:]]
    assert messages_of(source) == [b"12345", b"6789"]
    with fork.sse(lengths="true") as events:
        assert event_messages(BINARY, events.until_up_to_date()) == expected


def test_offset_before_a_snapshot_is_gone(cold_client) -> None:
    stream = bucket_stream(cold_client, b"12345", b"678", b"9")
    flush(cold_client)
    assert stream.publish(offset(5)).status_code == 204
    for live in (None, "long-poll", "sse"):
        gone = stream.get({"offset": offset(3), "live": live, "lengths": "true"})
        check_error(gone, 410, "offset_gone")
    assert messages_of(stream, offset(5)) == [b"678", b"9"]


@pytest.mark.parametrize("live", [None, "long-poll", "sse"])
@pytest.mark.parametrize("value", ["", "1", "yes", "True", "true,false"])
def test_other_values_are_refused(new_stream, live: str | None, value: str) -> None:
    stream = new_stream(TEXT, b"x")
    answer = stream.get({"offset": "-1", "live": live, "lengths": value})
    check_error(answer, 400, "invalid_request", "lengths")


def test_lengths_may_be_read_across_origins(new_stream) -> None:
    exposed = new_stream(TEXT, b"x").read().headers["Access-Control-Expose-Headers"]
    assert {LENGTHS, "Stream-Start-Offset"} <= set(exposed.split(", "))


def test_reader_follows_while_its_stream_is_flushed(new_cold_stream) -> None:
    stream = new_cold_stream(BINARY)
    bodies = [b"%d" % number * (number % 5 + 1) for number in range(30)]
    with stream.sse(lengths="true") as events:
        found = events.until_up_to_date()
        for body in bodies:
            write(stream, [body])
            flush(stream.client)
            found += events.until_up_to_date()
    assert event_messages(BINARY, found) == bodies
