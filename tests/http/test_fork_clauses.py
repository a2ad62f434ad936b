"""Forks, clause by clause, as far as neither the upstream suite nor test_forks.py shows them."""

import time
from collections.abc import Iterator

import httpx
import pytest

from tests.http.bucketed import offset
from tests.http.streams import JSON, TEXT, Stream, check_error, data_of, header_names, producer
from tests.storage_stats import until

IN_2040, IN_2050 = "2040-01-01T00:00:00Z", "2050-01-01T00:00:00Z"
# What the source has, what is asked for, what the fork has.
LIFETIMES = [
    ({}, {}, {}),
    ({}, {"stream_ttl": "600"}, {"stream_ttl": "600"}),
    ({}, {"stream_expires_at": IN_2040}, {"stream_expires_at": IN_2040}),
    ({"stream_ttl": "600"}, {}, {"stream_ttl": "600"}),
    ({"stream_ttl": "600"}, {"stream_ttl": "900"}, {"stream_ttl": "900"}),
    ({"stream_ttl": "600"}, {"stream_expires_at": IN_2040}, {"stream_expires_at": IN_2040}),
    ({"stream_expires_at": IN_2040}, {}, {"stream_expires_at": IN_2040}),
    ({"stream_expires_at": IN_2040}, {"stream_ttl": "600"}, {"stream_ttl": "600"}),
    (
        {"stream_expires_at": IN_2040},
        {"stream_expires_at": IN_2050},
        {"stream_expires_at": IN_2050},
    ),
]


class Forks:
    """Forks of one source, each under a name of its own."""

    def __init__(self, source: Stream) -> None:
        self.source = source
        self._count = 0

    def name(self) -> Stream:
        """A stream that does not exist yet."""
        self._count += 1
        path = f"{self.source.path}-fork-{self._count}"
        return Stream(self.source.client, path, self.source.content_type)

    def ask(self, fork: Stream, body: bytes | None = None, **headers: str) -> httpx.Response:
        """PUT, with the source and these headers; without a content type."""
        named = {"Stream-Forked-From": self.source.url} | header_names(headers)
        return fork.client.put(fork.url, content=body, headers=named)

    def new(self, body: bytes | None = None, **headers: str) -> Stream:
        fork = self.name()
        answer = self.ask(fork, body, **headers)
        assert answer.status_code == 201, answer.text
        return fork

    def refused(self, **headers: str) -> httpx.Response:
        """The answer to a fork that cannot be; there is none afterwards."""
        fork = self.name()
        answer = self.ask(fork, **headers)
        assert fork.head().status_code == 404
        return answer


@pytest.mark.spec("forks 4.2-14", "forks 4.2-15")
@pytest.mark.parametrize(("source", "asked", "wanted"), LIFETIMES)
def test_lifetime_is_asked_for_or_inherited(new_stream, source, asked, wanted) -> None:
    fork = Forks(new_stream(**source)).new(**asked)
    found = fork.head().headers
    for name, value in header_names({"stream_ttl": "", "stream_expires_at": ""} | wanted).items():
        assert found.get(name, "") == value


@pytest.mark.spec("forks 4.2-13", "forks 4.2-16")
def test_inherited_ttl_is_renewed_by_the_fork_alone(new_stream) -> None:
    source = new_stream(TEXT, b"12345", stream_ttl="2")
    fork = Forks(source).new()

    def source_is_gone() -> bool:
        # Renews the fork's TTL, and not the source's.
        assert fork.read("-1").content == b"12345"
        time.sleep(0.1)
        return source.head().status_code == 410

    until(source_is_gone)
    assert fork.head().headers["Stream-TTL"] == "2"
    # And the other way round: nobody reads the fork, and it goes too.
    until(lambda: fork.head().status_code == 404)


@pytest.mark.spec("forks 4.2-17")
@pytest.mark.parametrize(
    "headers",
    [
        {"stream_ttl": "05"},
        {"stream_ttl": "-1"},
        {"stream_expires_at": "tomorrow"},
        {"stream_ttl": "5", "stream_expires_at": IN_2040},
        {"content_type": "no type"},
    ],
)
def test_what_is_wrong_in_any_creation(new_stream, headers) -> None:
    source = new_stream(TEXT, b"12345")
    check_error(Forks(source).refused(**headers), 400)


@pytest.mark.spec("forks 4.2-19", "forks 5.1-2")
@pytest.mark.parametrize("past", [1, 10**6])
@pytest.mark.parametrize("sub_offset", ["0", "1"])
def test_offset_past_the_tail_is_400(new_stream, past, sub_offset) -> None:
    source = new_stream(TEXT, b"12345")
    refused = Forks(source).refused(
        stream_fork_offset=offset(5 + past), stream_fork_sub_offset=sub_offset
    )
    check_error(refused, 400, "invalid_offset")
    source.delete()
    assert source.head().status_code == 404, "a refused fork holds nothing"


@pytest.mark.spec("forks 4.2-20")
@pytest.mark.parametrize("text", ["", "now", "+5", "-2", "abc", f"{offset(5)}0", "0x5", "5.0"])
def test_malformed_offset_is_400(new_stream, text) -> None:
    source = new_stream(TEXT, b"12345")
    check_error(Forks(source).refused(stream_fork_offset=text), 400, "invalid_offset")


@pytest.mark.spec("forks 4.2-21", "forks 4.2-22")
@pytest.mark.parametrize("text", ["", "-1", "+1", "01", "1.0", "x", "1 1", "4", "9" * 15, "9" * 30])
def test_malformed_sub_offset_or_one_past_the_data_is_400(new_stream, text) -> None:
    source = new_stream(TEXT, b"123")
    source.append(b"456")
    refused = Forks(source).refused(stream_fork_offset=offset(0), stream_fork_sub_offset=text)
    check_error(refused, 400)


@pytest.mark.spec("forks 5.1-1")
@pytest.mark.parametrize(
    "headers",
    [
        {"stream_fork_offset": offset(0)},
        {"stream_fork_sub_offset": "0"},
        {"stream_fork_sub_offset": "1"},
        {"stream_fork_offset": offset(0), "stream_fork_sub_offset": "1"},
    ],
)
def test_offset_without_a_source_is_400(absent, headers) -> None:
    stream = absent()
    check_error(stream.create(**headers), 400, about="Stream-Forked-From")
    assert stream.head().status_code == 404


@pytest.mark.spec("forks 4.2-10", "forks 4.2-11", "forks 4.2-12", "forks 9.1-2")
def test_content_type_is_the_sources(new_stream) -> None:
    source = new_stream(JSON, b"[1]")
    forks = Forks(source)
    for headers in ({}, {"content_type": JSON}, {"content_type": "Application/JSON"}):
        fork = forks.new(**headers)
        assert fork.read().headers["Content-Type"].lower() == JSON
        assert fork.append(b"2").status_code == 204
    for other in (TEXT, "application/json-seq"):
        check_error(forks.refused(content_type=other), 409, "content_type_mismatch")


@pytest.mark.spec("forks 4.2-8", "forks 8-6")
def test_sub_offset_counts_the_bytes_of_the_body(new_stream) -> None:
    """However they came: three chunks are one append."""

    def pieces() -> Iterator[bytes]:
        yield from (b"12", b"34", b"56")

    source = new_stream(TEXT, b"ab")
    source.append(pieces())
    source.append(b"7")
    forks = Forks(source)
    for count in range(7):
        at = {"stream_fork_offset": offset(2), "stream_fork_sub_offset": str(count)}
        fork = forks.new(**at)
        assert fork.read("-1").content == b"ab123456"[: 2 + count]
        assert fork.append(b"x").headers["Stream-Next-Offset"] == fork.tail()
        assert fork.read(offset(2)).content == b"123456"[:count] + b"x"
    refused = forks.refused(stream_fork_offset=offset(2), stream_fork_sub_offset="7")
    check_error(refused, 400, "invalid_offset")


@pytest.mark.spec("forks 4.2-7", "forks 9.1-1")
def test_sub_offset_counts_json_messages(new_stream) -> None:
    """One level of arrays is taken apart, and no more."""
    source = new_stream(JSON, b"[0]")
    at = source.tail()
    source.append(b'[[1,2], {"a": [3, 4]}, "5\\n"]')
    forks = Forks(source)
    messages = [0, [1, 2], {"a": [3, 4]}, "5\n"]
    for count in range(4):
        fork = forks.new(stream_fork_offset=at, stream_fork_sub_offset=str(count))
        assert fork.read("-1").json() == messages[: 1 + count]
        fork.append(b'["own", 6]')
        assert fork.read("-1").json() == [*messages[: 1 + count], "own", 6]
    check_error(forks.refused(stream_fork_offset=at, stream_fork_sub_offset="4"), 400)


@pytest.mark.spec("forks 4.2-9", "forks 4.2-25")
def test_the_same_fork_again_is_200(new_stream) -> None:
    source = new_stream(TEXT, b"12345")
    source.append(b"678")
    forks = Forks(source)
    for headers, again in (
        ({}, {}),
        ({}, {"stream_fork_sub_offset": "0"}),
        ({}, {"stream_fork_offset": offset(8)}),
        ({"stream_fork_offset": offset(5)}, {"stream_fork_offset": offset(5)}),
        ({"stream_fork_offset": "-1"}, {"stream_fork_offset": offset(0)}),
        (
            {"stream_fork_offset": offset(0), "stream_fork_sub_offset": "3"},
            {"stream_fork_offset": offset(0), "stream_fork_sub_offset": "3"},
        ),
        ({"stream_ttl": "600"}, {"stream_ttl": "600"}),
    ):
        fork = forks.new(**headers)
        tail = fork.tail()
        for named in (again, again | {"content_type": TEXT}):
            answer = forks.ask(fork, b"ignored", **named)
            assert (answer.status_code, answer.headers["Stream-Next-Offset"]) == (200, tail)
    # Nor does it matter what became of the source meanwhile.
    fork = forks.new(stream_fork_offset=offset(5))
    source.append(b"9")
    source.delete()
    assert forks.ask(fork, stream_fork_offset=offset(5)).status_code == 200


@pytest.mark.spec("forks 4.2-23", "forks 4.2-26")
def test_another_fork_is_409(new_stream) -> None:
    source = new_stream(TEXT, b"12345")
    forks, others = Forks(source), Forks(new_stream(TEXT, b"12345"))
    fork = forks.new(stream_fork_offset=offset(2), stream_fork_sub_offset="1", stream_ttl="600")
    same = {"stream_fork_offset": offset(2), "stream_fork_sub_offset": "1", "stream_ttl": "600"}
    assert forks.ask(fork, **same).status_code == 200
    for change in (
        {"stream_fork_offset": offset(1)},
        {"stream_fork_sub_offset": "2"},
        {"stream_ttl": "601"},
        {"content_type": JSON},
        {"stream_closed": "true"},
    ):
        check_error(forks.ask(fork, **(same | change)), 409, "stream_exists")
    check_error(others.ask(fork, **same), 409, "stream_exists")
    check_error(fork.create(stream_ttl="600"), 409, "stream_exists")
    check_error(forks.ask(others.source), 409, "stream_exists")
    assert fork.read("-1").content == b"123"


@pytest.mark.spec("forks 4.2-26")
def test_sub_offset_behind_the_forks_start_is_another_fork(new_stream) -> None:
    forks = Forks(new_stream(TEXT, b"123456"))
    fork = forks.new(stream_fork_offset=offset(0), stream_fork_sub_offset="3")
    another = forks.ask(fork, stream_fork_offset=offset(3), stream_fork_sub_offset="3")
    check_error(another, 409, "stream_exists")


@pytest.mark.spec("forks 4.2-27")
def test_fork_of_a_closed_stream_is_open(new_stream) -> None:
    source = new_stream(TEXT, b"12345", stream_closed="true")
    fork = Forks(source).new()
    for answer in (fork.head(), fork.read("-1")):
        assert "Stream-Closed" not in answer.headers
    assert fork.append(b"6").status_code == 204
    assert fork.read("-1").content == b"123456"


@pytest.mark.spec("forks 4.2-33")
def test_path_of_a_deleted_source_is_taken_for_forks_too(new_stream) -> None:
    source, other = new_stream(TEXT, b"12345"), Forks(new_stream(TEXT, b"12345"))
    fork = Forks(source).new()
    source.delete()
    for at in ({}, {"stream_fork_offset": offset(2), "stream_fork_sub_offset": "1"}):
        check_error(other.ask(source, **at), 409, "stream_exists")
    assert (source.head().status_code, fork.read("-1").content) == (410, b"12345")


@pytest.mark.spec("forks 4.2-28", "forks 4.2-29", "forks 4.2-31")
@pytest.mark.parametrize("sub_offset", ["0", "2", "3"])
def test_writers_start_anew(new_stream, sub_offset) -> None:
    source = new_stream()
    source.append(b"123", stream_seq="9", **producer(0))
    fork = Forks(source).new(stream_fork_offset=offset(0), stream_fork_sub_offset=sub_offset)
    # Neither a gap nor a duplicate, nor a sequence that goes back.
    check_error(fork.append(b"x", **producer(1)), 409)
    assert fork.append(b"x", stream_seq="1", **producer(0)).status_code == 200
    assert fork.append(b"x", stream_seq="2", **producer(0)).status_code == 204
    assert fork.read("-1").content == b"123"[: int(sub_offset)] + b"x"
    # To the source all that is unknown.
    assert source.append(b"123", **producer(0)).status_code == 204
    check_error(source.append(b"4", stream_seq="2"), 409)
    assert source.append(b"4", stream_seq="91", **producer(1)).status_code == 200
    assert source.read("-1").content == b"1234"


@pytest.mark.spec("forks 5.1-3", "forks 5.1-4", "forks 4.2-6")
def test_body_comes_behind_what_is_inherited(new_stream) -> None:
    source = new_stream(TEXT, b"12345")
    forks = Forks(source)
    fork = forks.name()
    created = forks.ask(fork, b"abc")
    assert created.status_code == 201
    assert created.headers["Content-Type"] == TEXT
    assert created.headers["Stream-Next-Offset"] == fork.tail() == offset(8)
    assert fork.client.get(created.headers["Location"]).content == b"12345abc"
    assert source.read("-1").content == b"12345"


@pytest.mark.spec("forks 4.2-2", "forks 4.2-5", "forks 8-1", "forks 8-2")
def test_offsets_are_the_sources_up_to_the_fork(new_stream) -> None:
    source = new_stream()
    bodies = [b"1", b"22", b"333", b"4444"]
    offsets = [source.append(body).headers["Stream-Next-Offset"] for body in bodies]
    fork = Forks(source).new(stream_fork_offset=offsets[1])
    assert fork.tail() == offsets[1]
    own = [fork.append(body).headers["Stream-Next-Offset"] for body in (b"a", b"bb")]
    assert [*offsets[:2], *own] == sorted({*offsets[:2], *own})
    for stream, ends, content in (
        (source, offsets, b"".join(bodies)),
        (fork, [*offsets[:2], *own], b"122abb"),
    ):
        assert stream.tail() == ends[-1]
        # What is behind each offset, from the same offsets in both.
        assert stream.read(offsets[0]).content == content[1:]
        assert stream.read(offsets[1]).content == content[3:]
        assert stream.read("-1").headers["Stream-Next-Offset"] == ends[-1]


@pytest.mark.spec("forks 8-5")
def test_nothing_tells_that_it_is_a_fork(new_stream) -> None:
    forks = Forks(new_stream(TEXT, b"12345"))
    fork = forks.name()
    at = {"stream_fork_offset": offset(0), "stream_fork_sub_offset": "3"}
    answers = [forks.ask(fork, **at), forks.ask(fork, **at), fork.append(b"x"), fork.head()]
    answers += [fork.read("-1"), fork.long_poll("-1"), fork.close()]
    for answer in answers:
        assert answer.is_success
        assert not [name for name in answer.headers if name.startswith("stream-fork")]
    assert fork.tail() == offset(4)


@pytest.mark.spec("forks 5.8-1", "forks 5.8-2")
@pytest.mark.parametrize(
    ("start", "first"),
    [("-1", "12345abc"), (offset(2), "345abc"), (offset(6), "bc"), ("now", "")],
)
def test_events_are_inherited_then_own_then_new(new_stream, start, first) -> None:
    source = new_stream(TEXT, b"12345")
    fork = Forks(source).new()
    source.append(b"not for the fork")
    fork.append(b"abc")
    with fork.sse(start) as events:
        said = "".join(data_of(events.until_up_to_date()))
        source.append(b"nor this")
        fork.append(b"def")
        later = "".join(data_of(events.until_up_to_date()))
    assert (said, later) == (first, "def")
