"""What tests of cold reads share: flushing, and answers that can be compared."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import httpx

from tests.http.raw import RawConnection
from tests.http.streams import BINARY, JSON, TEXT, Stream
from tests.storage_stats import flush, metrics

KINDS = (TEXT, JSON, BINARY)
# Streams leave memory as soon as they may; nothing is merged but on demand.
IDLE = {"streams_cached_max": 1, "merge_packs": 1000, "block_cache_bytes": 0}
# What differs between two answers to the same request.
PASSING = ("date", "stream-cursor")
# A few messages of each kind with characters and elements of every length.
SMALL = {
    TEXT: ["añ€", "😀z", "ü", "plain", "€€"],
    JSON: ['[1,"ü"]', '{"a":"€"}', "[[],{},3]", '"😀"', "[12345]"],
    BINARY: ["\x00\x01\x02", "\u00ff", "abcdefgh", "\n", "12"],
}


def small_bodies(kind: str) -> list[bytes]:
    """Appends of a few bytes."""
    return [body.encode("latin-1" if kind == BINARY else "utf-8") for body in SMALL[kind]]


def large_bodies(kind: str) -> list[bytes]:
    """Appends that take several blocks of a pack."""
    if kind == TEXT:
        return [b"x", "añ€😀".encode() * 60_000, b"y" * 300_000, b"z"]
    if kind == JSON:
        elements = b",".join(b'"%d"' % number for number in range(60_000))
        return [b"[1]", b"[%b]" % elements, b'"%b"' % (b"y" * 300_000), b"2"]
    return [b"\x00", bytes(range(256)) * 2500, b"y" * 300_000, b"\xff"]


@dataclass(frozen=True)
class Found:
    """An answer without what differs from one moment to the next."""

    status: int
    headers: dict[str, str]
    content: bytes

    @classmethod
    def of(cls, answer: httpx.Response) -> "Found":
        """What is to be compared of an answer."""
        headers = {name: value for name, value in answer.headers.items() if name not in PASSING}
        return cls(answer.status_code, headers, answer.content)


def reads(stream: Stream, offsets: Iterable[int], sizes: Iterable[int | None]) -> list[Found]:
    """The answers to reads at all these offsets with all these limits, and to one without."""
    sizes = list(sizes)
    answers = [stream.read()]
    for offset in offsets:
        answers += [stream.read(f"{offset:020d}", max_bytes=size) for size in sizes]
    return [Found.of(answer) for answer in answers]


def cold_reads_during(client: httpx.Client, do: Callable[[], object]) -> int:
    """How many reads went to packs meanwhile."""
    before = metrics(client)["holdfast_cold_reads_total"]
    do()
    return int(metrics(client)["holdfast_cold_reads_total"] - before)


def write(stream: Stream, bodies: Iterable[bytes]) -> list[int]:
    """Append each; the offsets behind them."""
    tails = []
    for body in bodies:
        answer = stream.append(body)
        assert answer.status_code == 204, answer.text
        tails.append(int(answer.headers["Stream-Next-Offset"]))
    return tails


def write_many(stream: Stream, bodies: Sequence[bytes]) -> None:
    """Append each, a hundred at a time on one connection: a round trip for each takes too long."""
    port = stream.client.base_url.port
    assert port is not None
    with RawConnection(port) as connection:
        for first in range(0, len(bodies), 100):
            some = bodies[first : first + 100]
            for body in some:
                connection.request(
                    "POST", stream.url, f"Content-Type: {stream.content_type}", body=body
                )
            assert {connection.response().status for _ in some} == {204}


def flush_and_forget(stream: Stream) -> None:
    """Have the stream in packs only: it left memory for the sake of another."""
    client = stream.client
    flush(client)
    other = Stream(client, "test/other")
    other.create()
    flush(client)
    assert other.head().status_code == 200
