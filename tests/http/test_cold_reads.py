"""Catch-up reads of what is in packs: to the last byte and header what they were before."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from tests.crash.wire import Wire
from tests.http.cold import (
    IDLE,
    KINDS,
    Found,
    cold_reads_during,
    large_bodies,
    reads,
    small_bodies,
    write,
)
from tests.http.conftest import DEADLINE_S, MakeStream, _create_stream
from tests.http.streams import JSON, TEXT, check_error, data_of
from tests.server_process import ServerProcess
from tests.storage_stats import flush, metrics

SIZES = (1, 2, 3, 4, 5, 7, 20, None)
BLOCK_BYTES = 256 * 1024
LARGE_SIZES = (1, 1000, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 700_000, None)
READERS = 50


@pytest.fixture(scope="module")
def cold_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server that is flushed on demand."""
    with ServerProcess(tmp_path_factory.mktemp("cold") / "data", **IDLE) as server:
        with httpx.Client(base_url=server.url, timeout=DEADLINE_S) as client:
            yield client


@pytest.fixture
def new_cold_stream(cold_client: httpx.Client) -> MakeStream:
    return lambda *arguments, **headers: _create_stream(cold_client, *arguments, **headers)


@pytest.mark.parametrize(("kind", "closed"), [*((kind, False) for kind in KINDS), (JSON, True)])
def test_every_offset_gives_the_same_answer(new_cold_stream, kind: str, closed: bool) -> None:
    """Status, headers and content alike; inside a JSON message that is a refusal."""
    stream = new_cold_stream(kind)
    tail = write(stream, small_bodies(kind))[-1]
    if closed:
        stream.close()
    hot = reads(stream, range(tail + 2), SIZES)
    flush(stream.client)
    cold: list[Found] = []
    assert cold_reads_during(
        stream.client, lambda: cold.extend(reads(stream, range(tail + 2), SIZES))
    ) >= tail * len(SIZES)
    assert cold == hot
    assert (400 in {found.status for found in cold[: tail * len(SIZES)]}) == (kind == JSON)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cold_appends", [1, 3])
def test_half_of_it_cold_is_the_same_too(
    new_cold_stream, new_stream, kind: str, cold_appends: int
) -> None:
    """Compared with a stream that nobody flushes; the ETags name the stream, so they differ."""
    stream, twin = new_cold_stream(kind), new_stream(kind)
    bodies = small_bodies(kind)
    write(stream, bodies[:cold_appends])
    flush(stream.client)
    tail = write(stream, bodies[cold_appends:])[-1]
    assert write(twin, bodies)[-1] == tail
    found, expected = (reads(each, range(tail + 1), SIZES) for each in (stream, twin))
    for one, other in zip(found, expected, strict=True):
        assert one.status == other.status
        assert one.content == other.content
        assert one.headers.keys() == other.headers.keys()
        for name in ("stream-next-offset", "stream-up-to-date", "content-type"):
            assert one.headers.get(name) == other.headers.get(name)


@pytest.mark.parametrize("kind", KINDS)
def test_many_blocks_are_the_same(new_cold_stream, kind: str) -> None:
    stream = new_cold_stream(kind)
    tails = write(stream, large_bodies(kind))
    offsets = [0, *tails[:-1]]
    if kind != JSON:
        offsets += [BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, tails[1] - 1]
    hot = reads(stream, offsets, LARGE_SIZES)
    flush(stream.client)
    assert reads(stream, offsets, LARGE_SIZES) == hot


@pytest.mark.parametrize("kind", KINDS)
def test_pages_of_many_flushes_add_up(new_cold_stream, kind: str) -> None:
    """Every append is in a pack of its own; a page may go over several of them."""
    stream = new_cold_stream(kind)
    for body in small_bodies(kind):
        write(stream, [body])
        flush(stream.client)
    whole = stream.read()
    for size in (1, 4, 9, 1000):
        pages, offset = [], "-1"
        while True:
            page = stream.read(offset, max_bytes=size)
            assert page.status_code == 200
            pages.append(page)
            offset = page.headers["Stream-Next-Offset"]
            if "Stream-Up-To-Date" in page.headers:
                break
        if kind == JSON:
            found = [message for page in pages for message in page.json()]
            assert found == whole.json()
        else:
            assert b"".join(page.content for page in pages) == whole.content
        if kind == TEXT:
            assert all(page.content.decode() for page in pages), "a character was cut"


def test_stream_in_very_many_packs(new_cold_stream) -> None:
    """One read looks at a bounded number of them; the next goes on from there."""
    stream = new_cold_stream()
    for number in range(70):
        write(stream, [b"%03d" % number])
        flush(stream.client)
    expected = b"".join(b"%03d" % number for number in range(70))
    first = stream.read()
    assert "Stream-Up-To-Date" not in first.headers
    rest = stream.read(first.headers["Stream-Next-Offset"])
    assert rest.headers["Stream-Up-To-Date"] == "true"
    assert first.content + rest.content == expected
    with stream.sse() as events:
        assert "".join(data_of(events.until_up_to_date())).encode() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_etags_stay_good(new_cold_stream, kind: str) -> None:
    stream = new_cold_stream(kind)
    tails = write(stream, small_bodies(kind))
    queries = [{"offset": "-1"}, {"offset": f"{tails[1]:020d}"}, {"max_bytes": 5}]
    hot = [stream.get(query) for query in queries]
    flush(stream.client)
    for query, before in zip(queries, hot, strict=True):
        known = stream.get(query, if_none_match=before.headers["ETag"])
        assert known.status_code == 304
        assert known.content == b""
        for name in ("ETag", "Stream-Next-Offset", "Cache-Control"):
            assert known.headers[name] == before.headers[name]
        assert stream.get(query, if_none_match='"other"').content == before.content
    write(stream, small_bodies(kind)[:1])
    assert stream.get(queries[0], if_none_match=hot[0].headers["ETag"]).status_code == 200


def test_offset_inside_a_json_message_is_refused(new_cold_stream) -> None:
    stream = new_cold_stream(JSON, b'["first","second"]')
    flush(stream.client)
    check_error(stream.read(f"{3:020d}"), 400, "invalid_offset", "inside a JSON message")
    check_error(stream.long_poll(f"{3:020d}"), 400, "invalid_offset", "inside a JSON message")
    check_error(stream.read(f"{99:020d}"), 400, "invalid_offset", "past the tail")
    assert stream.read(f"{8:020d}").json() == ["second"]


def test_readers_of_one_range_have_it_fetched_once(start_server, stream_on) -> None:
    server = start_server(**IDLE | {"block_cache_bytes": 1 << 20})
    # In one piece, which is one read.
    body = bytes(range(256)) * 400
    stream = stream_on(server, "application/octet-stream", body)
    flush(stream.client)

    async def read_at_once() -> None:
        wires = [await Wire.open(server.port) for _ in range(READERS)]
        for wire in wires:
            wire.send("GET", stream.url)
        for wire in wires:
            answer = await wire.answer()
            assert answer.status == 200
            assert answer.body == body
            await wire.__aexit__()

    asyncio.run(read_at_once())
    samples = metrics(stream.client)
    assert samples["holdfast_cold_reads_total"] == READERS
    assert samples["holdfast_cold_fetches_total"] == 1
    others = (
        samples["holdfast_cold_fetches_shared_total"] + samples["holdfast_block_cache_hits_total"]
    )
    assert others == READERS - 1
    assert samples["holdfast_cold_fetch_bytes_total"] == len(body)
    assert samples["holdfast_cold_read_bytes_total"] == READERS * len(body)


def test_client_that_leaves_a_cold_read_harms_nobody(start_server, stream_on) -> None:
    server = start_server(**IDLE)
    stream = stream_on(server, body=b"x" * 1_000_000)
    flush(stream.client)

    async def leave() -> None:
        for _ in range(20):
            async with await Wire.open(server.port) as wire:
                wire.send("GET", stream.url)

    asyncio.run(leave())
    assert stream.read().content == b"x" * 1_000_000
    assert server.stop() == 0
    assert "Traceback" not in server.stderr()
