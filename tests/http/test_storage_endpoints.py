"""What operators and jobs ask of the storage: numbers, flushes, swaps, pins, garbage."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event

import httpx
import pytest

from holdfast.clock import SystemClock
from holdfast.format.packs import NewPack
from holdfast.objects.directory_objects import DirectoryObjects
from holdfast.objects.pack_merge import merge_packs
from holdfast.storage.catalog_writer import CatalogWriter
from holdfast.storage.merge import plan_merge
from tests.http.cold import IDLE
from tests.http.streams import BINARY, JSON, Stream, check_error
from tests.server_process import ServerProcess
from tests.storage_stats import flush, metrics, stats, until


def packs_below(server: ServerProcess) -> list[Path]:
    return list((server.data_dir / "objects" / "packs").iterdir())


def packs_of(server: ServerProcess) -> set[str]:
    """The packs in the store."""
    return {f"packs/{path.name}" for path in packs_below(server)}


def read_all(stream: Stream) -> bytes:
    """All bytes of a stream, page by page."""
    pages, offset = b"", "-1"
    while True:
        page = stream.read(offset)
        assert page.status_code == 200, page.text
        pages += page.content
        offset = page.headers["Stream-Next-Offset"]
        if "Stream-Up-To-Date" in page.headers:
            return pages


def retired(server: ServerProcess) -> set[str]:
    """Packs that are out of use and not collected."""
    with closing(sqlite3.connect(server.data_dir / "catalog.sqlite")) as catalog:
        rows = catalog.execute("SELECT name FROM packs WHERE retired_ms IS NOT NULL")
        return {name for (name,) in rows}


class TestStats:
    def test_hot_then_cold(self, start_server, stream_on) -> None:
        server = start_server(hot_bytes_soft=1_000_000, hot_bytes_hard=2_000_000, **IDLE)
        stream = stream_on(server, body=b"x" * 1000)
        client = stream.client
        found = stats(client)
        assert found["hot"] == {
            "bytes": 1000,
            "cost_bytes": 1000 + 156 + 700,
            "soft_limit_bytes": 1_000_000,
            "hard_limit_bytes": 2_000_000,
            "streams_in_memory": 1,
            "streams_changed": 1,
            "hottest": [{"stream": stream.path, "hot_bytes": 1000, "tail": 1000}],
        }
        assert found["cold"] == {
            "bytes": 0,
            "streams": 0,
            "packs": 0,
            "pack_bytes": 0,
            "dead_bytes": 0,
            "retired_packs": 0,
        }
        assert found["flush"]["position"] == 1
        assert found["flush"]["flushed_position"] == 0
        assert found["flush"]["backlog_log_bytes"] > 1000
        assert found["backpressure"] == {
            "active": False,
            "reason": None,
            "refused": 0,
            "delayed_s": 0.0,
        }
        flush(client)
        # The log's own thread removes what is flushed, a moment later.
        until(lambda: stats(client)["flush"]["backlog_segments"] == 1)
        found = stats(client)
        assert found["hot"]["bytes"] == found["hot"]["cost_bytes"] == 0
        assert found["hot"]["hottest"] == []
        (pack,) = (server.data_dir / "objects" / "packs").iterdir()
        assert found["cold"] == {
            "bytes": 1000,
            "streams": 1,
            "packs": 1,
            "pack_bytes": pack.stat().st_size,
            "dead_bytes": 0,
            "retired_packs": 0,
        }
        assert found["flush"] == {
            "position": 1,
            "flushed_position": 1,
            "backlog_log_bytes": found["flush"]["backlog_log_bytes"],
            "backlog_segments": 1,
            "in_progress": False,
            "trouble": None,
            "retries": 0,
            "process_restarts": 0,
        }
        assert found["flush"]["backlog_log_bytes"] < 1000
        stream.read()
        found = stats(client)
        assert found["cache"] == {
            "bytes": 0,
            "limit_bytes": 0,
            "blocks": 0,
            "hits": 0,
            "misses": 1,
        }
        stream.delete()
        flush(client)
        found = stats(client)
        assert (found["cold"]["streams"], found["cold"]["bytes"]) == (0, 0)
        assert found["cold"]["dead_bytes"] == 1000

    def test_hottest_first_and_once_each(self, start_server, stream_on, client_of) -> None:
        client = client_of(start_server())
        for size in (10, 3000, 200):
            Stream(client, f"size/{size}", BINARY).create(b"x" * size)
        hottest = stats(client)["hot"]["hottest"]
        assert [each["hot_bytes"] for each in hottest] == [3000, 200, 10]
        assert hottest[0]["stream"] == "size/3000"

    def test_head_and_other_methods(self, start_server, client_of) -> None:
        client = client_of(start_server())
        assert client.head("/cluster/hot-cold-stats").status_code == 200
        check_error(client.post("/cluster/hot-cold-stats"), 405)
        for path in ("flush", "swap-packs", "pin-packs", "collect-garbage"):
            check_error(client.get(f"/cluster/{path}"), 405)

    def test_server_without_storage(self, start_server, stream_on) -> None:
        stream = stream_on(start_server(durability="memory"), body=b"x")
        found = stats(stream.client)
        assert found["hot"]["bytes"] == 1
        assert found["cold"] is found["flush"] is found["backpressure"] is found["cache"] is None
        for path in ("flush", "collect-garbage"):
            check_error(stream.client.post(f"/cluster/{path}"), 404, "not_found")
        assert "holdfast_hot_bytes" not in metrics(stream.client)


class TestFlush:
    def test_everything_so_far_is_in_packs(self, start_server, stream_on) -> None:
        stream = stream_on(start_server(**IDLE))
        client = stream.client
        for number in range(10):
            stream.append(b"%d" % number)
            flush(client)
            assert stats(client)["hot"]["bytes"] == 0
            assert stats(client)["cold"]["bytes"] == number + 1
        packs = stats(client)["cold"]["packs"]
        flush(client)
        assert stats(client)["cold"]["packs"] == packs, "nothing to flush makes no pack"

    def test_many_ask_at_once_while_others_write(self, start_server, stream_on) -> None:
        stream = stream_on(start_server(**IDLE))
        client = stream.client

        def write_and_flush(author: int) -> None:
            for number in range(10):
                answer = stream.append(b"%d:%d;" % (author, number))
                offset = int(answer.headers["Stream-Next-Offset"])
                flush(client)
                assert stats(client)["cold"]["bytes"] >= offset

        with ThreadPoolExecutor(5) as threads:
            list(threads.map(write_and_flush, range(5)))
        assert stream.read().content.count(b";") == 50


class Swappable:
    """A server with two packs that it does not merge by itself, and the tools to do so."""

    def __init__(self, server: ServerProcess, stream_on) -> None:
        self.server = server
        self.streams: list[Stream] = [stream_on(server), stream_on(server, JSON)]
        for number in range(2):
            self.streams[0].append(b"text %d " % number)
            self.streams[1].append(b"[%d,%d]" % (number, number))
            flush(self.streams[0].client)
        self.client = self.streams[0].client
        self.packs = sorted(packs_of(server))
        assert len(self.packs) == 2
        self.store = DirectoryObjects(server.data_dir / "objects")

    def merged(self, names: list[str]) -> NewPack:
        """Merge packs by hand, as a job would."""
        with closing(CatalogWriter(self.server.data_dir / "catalog.sqlite")) as catalog:
            sources = [row for row in catalog.packs() if row.name in names]
            plan = plan_merge(catalog, sources)
        return merge_packs(self.store, SystemClock(), plan)

    def swap(self, add: list[str], remove: list[str]) -> httpx.Response:
        return self.client.post("/cluster/swap-packs", json={"add": add, "remove": remove})

    def contents(self) -> list[bytes]:
        return [stream.read().content for stream in self.streams]


@pytest.fixture
def swappable(start_server, stream_on) -> Swappable:
    return Swappable(start_server(**IDLE), stream_on)


class TestSwap:
    def test_merge_by_hand(self, swappable: Swappable) -> None:
        before = swappable.contents()
        stop = Event()

        def read_on() -> int:
            reads = 0
            while not stop.is_set() or not reads:
                assert swappable.contents() == before
                reads += 1
            return reads

        with ThreadPoolExecutor(1) as thread:
            reading = thread.submit(read_on)
            pack = swappable.merged(swappable.packs)
            answer = swappable.swap([pack.name], swappable.packs)
            stop.set()
            assert reading.result() >= 1
        assert answer.status_code == 204, answer.text
        assert swappable.contents() == before
        found = stats(swappable.client)["cold"]
        assert found["packs"] == 1
        assert found["retired_packs"] == 2
        assert retired(swappable.server) == set(swappable.packs)
        until(lambda: metrics(swappable.client)["holdfast_pack_swaps_total"] == 1)
        # Reads need the new one, and only that.
        for name in swappable.packs:
            (swappable.server.data_dir / "objects" / name).unlink()
        assert swappable.contents() == before
        swappable.streams[0].append(b"and on")
        flush(swappable.client)
        assert swappable.streams[0].read().content == before[0] + b"and on"
        check_error(swappable.swap([pack.name], swappable.packs), 409, "swap_refused")

    def test_packs_that_are_not_in_use(self, swappable: Swappable) -> None:
        pack = swappable.merged(swappable.packs)
        unknown = f"packs/{'0' * 16}.pack"
        refused = swappable.swap([pack.name], [*swappable.packs, unknown])
        check_error(refused, 409, "swap_refused", unknown)
        check_error(swappable.swap([pack.name], []), 409, "swap_refused")
        check_error(swappable.swap([], swappable.packs), 409, "swap_refused")
        check_error(swappable.swap([], []), 409, "swap_refused")
        self.check_unchanged(swappable)

    def test_packs_that_are_not_in_the_store(self, swappable: Swappable) -> None:
        unknown = f"packs/{'0' * 16}.pack"
        check_error(swappable.swap([unknown], swappable.packs), 409, "swap_refused", unknown)
        self.check_unchanged(swappable)

    def test_packs_that_are_damaged(self, swappable: Swappable) -> None:
        pack = swappable.merged(swappable.packs)
        path: Path = swappable.server.data_dir / "objects" / pack.name
        data = bytearray(path.read_bytes())
        data[data.index(b"text 1")] ^= 1
        path.write_bytes(data)
        check_error(swappable.swap([pack.name], swappable.packs), 409, "swap_refused", pack.name)
        path.write_bytes(b"no pack at all")
        check_error(swappable.swap([pack.name], swappable.packs), 409, "swap_refused", pack.name)
        self.check_unchanged(swappable)

    def test_packs_with_other_contents(self, swappable: Swappable) -> None:
        one, other = swappable.packs
        copy = swappable.merged([one]).name
        check_error(swappable.swap([copy], [other]), 409, "swap_refused")
        check_error(swappable.swap([copy], [one, other]), 409, "swap_refused")
        check_error(swappable.swap([other], [one]), 409, "swap_refused")
        check_error(swappable.swap([one], [one]), 409, "swap_refused")
        check_error(swappable.swap([copy, copy], [one]), 409, "swap_refused")
        self.check_unchanged(swappable)
        assert swappable.swap([copy], [one]).status_code == 204

    def test_pack_of_a_stream_that_was_deleted_meanwhile(self, swappable: Swappable) -> None:
        pack = swappable.merged(swappable.packs)
        gone, kept = swappable.streams
        expected = kept.read().content
        gone.delete()
        flush(swappable.client)
        assert swappable.swap([pack.name], swappable.packs).status_code == 204
        assert gone.head().status_code == 404
        assert kept.read().content == expected
        assert stats(swappable.client)["cold"]["dead_bytes"] > 0

    def test_pack_made_before_another_swap(self, swappable: Swappable) -> None:
        slow, fast = (swappable.merged(swappable.packs).name for _ in range(2))
        assert swappable.swap([fast], swappable.packs).status_code == 204
        before = swappable.contents()
        refused = swappable.swap([slow], swappable.packs)
        check_error(refused, 409, "swap_refused", "not in use any more")
        assert swappable.contents() == before

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"[]",
            b'{"add":[]}',
            b'{"add":["packs/a.pack"],"remove":"packs/b.pack"}',
            b'{"add":["../secret"],"remove":["packs/b.pack"]}',
            b'{"add":["packs/../../secret.pack"],"remove":["packs/b.pack"]}',
            b'{"add":["/etc/passwd"],"remove":["packs/b.pack"]}',
            b'{"add":[],"remove":[],"force":true}',
            b"\xff",
        ],
    )
    def test_malformed(self, client: httpx.Client, body: bytes) -> None:
        check_error(client.post("/cluster/swap-packs", content=body), 400, "invalid_request")

    @staticmethod
    def check_unchanged(swappable: Swappable) -> None:
        assert stats(swappable.client)["cold"]["packs"] == 2
        assert retired(swappable.server) == set()
        assert swappable.contents()[0] == b"text 0 text 1 "


class TestGarbage:
    def test_pins_keep_packs_that_go_out_of_use(self, start_server, stream_on) -> None:
        server = start_server(**IDLE | {"merge_packs": 2, "garbage_grace": 0})
        stream = stream_on(server, body=b"first")
        client = stream.client
        flush(client)
        (first,) = packs_of(server)
        self.pin(client, 600)
        self.merge_once_more(server, stream, 1)
        self.collect(client)
        assert first in packs_of(server)
        self.pin(client, 0)
        self.collect(client)
        until(lambda: retired(server) == set())
        assert first not in packs_of(server)
        assert len(packs_of(server)) == 1
        self.pin(client, 0)
        until(lambda: metrics(client)["holdfast_objects_removed_total"] >= 2)
        assert stream.read().content == b"first1"

    def test_garbage_has_a_time_of_grace(self, start_server, stream_on) -> None:
        server = start_server(**IDLE | {"merge_packs": 2})
        stream = stream_on(server, body=b"first")
        flush(stream.client)
        self.merge_once_more(server, stream, 1)
        before = packs_of(server)
        assert len(before) == 3
        self.collect(stream.client)
        assert packs_of(server) == before

    def test_large_stream_has_packs_of_its_own(self, start_server, stream_on) -> None:
        """They are not merged with others, and go with it."""
        server = start_server(**IDLE | {"merge_packs": 2, "garbage_grace": 0})
        stream, other = stream_on(server), stream_on(server, body=b"small")
        client = stream.client
        pieces = [b"%d" % number * 3_000_000 for number in range(4)]
        for piece in pieces:
            stream.append(piece)
        flush(client)
        assert len(packs_of(server)) == 2
        other.append(b" and grown")
        flush(client)
        until(lambda: metrics(client)["holdfast_merges_total"] == 1)
        assert read_all(stream) == b"".join(pieces)
        stream.delete()
        flush(client)

        def is_collected() -> bool:
            self.collect(client)
            return len(packs_of(server)) == 1

        until(is_collected)
        assert sum(path.stat().st_size for path in packs_below(server)) < 100_000
        assert stats(client)["cold"]["dead_bytes"] == 0
        assert other.read().content == b"small and grown"

    @pytest.mark.parametrize("body", [b"", b'{"name":"x"}', b'{"name":"","ttl":1}', b'{"ttl":-1}'])
    def test_malformed_pins(self, client: httpx.Client, body: bytes) -> None:
        check_error(client.post("/cluster/pin-packs", content=body), 400, "invalid_request")

    @staticmethod
    def pin(client: httpx.Client, ttl: float) -> None:
        answer = client.post("/cluster/pin-packs", json={"name": "job", "ttl": ttl})
        assert answer.status_code == 204, answer.text

    @staticmethod
    def collect(client: httpx.Client) -> None:
        assert client.post("/cluster/collect-garbage").status_code == 204

    @staticmethod
    def merge_once_more(server: ServerProcess, stream: Stream, number: int) -> None:
        stream.append(b"%d" % number)
        flush(stream.client)
        until(lambda: metrics(stream.client)["holdfast_merges_total"] == number)
