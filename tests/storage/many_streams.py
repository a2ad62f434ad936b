"""Many streams that all change between flushes: `python -m tests.storage.many_streams --help`.

The log is written by hand, and the real storage process flushes and merges it. The report says how
much memory that process needed, how long a command had to wait for it, and into how many extents
the streams were cut.
"""

import argparse
import asyncio
import resource
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError
from holdfast.format.records import Kind, Record, StreamMeta, encode, stream_number
from holdfast.format.segments import SegmentHeader, encode_batch, encode_header
from holdfast.settings.groups import LimitSettings, LogSettings, StorageSettings
from holdfast.storage.catalog import Catalog
from holdfast.storage.catalog_writer import pack_rows
from holdfast.storage.commands import FlushLog, PinPacks, Setup
from holdfast.storage.flush import SegmentRef
from holdfast.storage.merge import _TIER_BYTES, next_merge
from holdfast.storage.process import StorageProcess

BATCH_RECORDS = 1000
SEGMENT_BYTES = 32 << 20
NOW_MS = 1_800_000_000_000


@dataclass
class Report:
    peak_bytes: int = 0
    # The largest number of extents that a stream has in packs of one tier.
    extents_per_tier: dict[int, int] = field(default_factory=dict)
    flush_s: list[float] = field(default_factory=list)
    merges: int = 0
    merge_s: float = 0.0
    # The longest time that a small command took while packs were merged.
    wait_s: float = 0.0
    wrong_streams: int = 0


class ManyStreams:
    def __init__(self, path, streams, merge_packs=8, message_bytes=20):
        self._path = path
        self._streams = streams
        self._merge_packs = merge_packs
        self._message = bytes(message_bytes)
        self._numbers = []
        self._position = 0
        self._segments = 0
        self._catalog_path = path / "catalog.sqlite"
        setup = Setup(
            str(self._catalog_path),
            str(path / "objects"),
            StorageSettings(merge_packs=merge_packs, garbage_grace_s=0.0),
            LimitSettings(),
            LogSettings(),
        )
        self._process = StorageProcess(setup, SystemClock(), ())
        self.report = Report()

    async def run(self, rounds):
        """Write and flush every stream so many times, and merge what there is to merge."""
        loop = asyncio.get_running_loop()
        self._process.start(loop.call_soon_threadsafe, lambda _: set())
        try:
            for _ in range(rounds):
                segments = self._write_round()
                started_s = time.monotonic()
                await self._command(FlushLog(segments))
                self.report.flush_s.append(time.monotonic() - started_s)
                for segment in segments:
                    Path(segment.path).unlink()
            await self._merged()
            self._examine(rounds)
        finally:
            self._process.stop()
        return self.report

    async def _command(self, command):
        done = asyncio.get_running_loop().create_future()
        self._process.submit(command, done.set_result)
        result = await done
        if isinstance(result, HoldfastError):
            raise result

    async def _merged(self):
        """Wait until there is nothing to merge, with small commands in between."""
        while self._next_merge():
            started_s = time.monotonic()
            await self._command(PinPacks("nothing", 0))
            self.report.wait_s = max(self.report.wait_s, time.monotonic() - started_s)
            await asyncio.sleep(0.1)

    def _next_merge(self):
        catalog = Catalog(self._catalog_path)
        try:
            return next_merge(pack_rows(catalog, "retired_ms IS NULL"), self._merge_packs, set())
        finally:
            catalog.close()

    def _write_round(self):
        """A record for each stream: its creation at first, then an append."""
        segments, batches, size = [], [], 0
        step = max(1, min(BATCH_RECORDS, (1 << 20) // len(self._message)))
        for first in range(0, self._streams, step):
            self._position += 1
            batches.append((self._position, self._body(range(first, first + step))))
            size += len(batches[-1][1])
            if size >= SEGMENT_BYTES or first + step >= self._streams:
                segments.append(self._segment(batches))
                batches, size = [], 0
        return segments

    def _body(self, places):
        places = places[: self._streams - places[0]]
        if len(self._numbers) == self._streams:
            return b"".join(
                encode(Record(Kind.APPEND, self._numbers[at], NOW_MS, self._message))
                for at in places
            )
        records = []
        for index, at in enumerate(places):
            self._numbers.append(stream_number(self._position, index))
            meta = StreamMeta(f"bucket/stream-{at:07d}", "application/octet-stream")
            records.append(Record(Kind.CREATE, self._numbers[-1], NOW_MS, self._message, meta=meta))
        return b"".join(map(encode, records))

    def _segment(self, batches):
        self._segments += 1
        path = self._path / f"{self._segments:08d}.log"
        data = bytearray(encode_header(SegmentHeader(7, batches[0][0], 0, 0)))
        for position, body in batches:
            data += encode_batch(7, position, body)
        path.write_bytes(data)
        return SegmentRef(str(path), len(data), batches[-1][0])

    def _examine(self, rounds):
        report, counters = self.report, self._process.counters
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        report.peak_bytes = int(status.partition("VmHWM:")[2].split()[0]) * 1024
        report.merges, report.merge_s = counters.merges, counters.merge_us / 1e6
        catalog = Catalog(self._catalog_path)
        try:
            tier = " + ".join(f"(size_bytes >= {size})" for size in _TIER_BYTES)
            rows = catalog.read(
                "SELECT tier, max(extents) FROM (SELECT tier, stream, count(*) AS extents "
                f"FROM extents JOIN (SELECT id, {tier} AS tier FROM packs) AS packs "
                "ON packs.id = extents.pack GROUP BY tier, stream) GROUP BY tier"
            )
            report.extents_per_tier = dict(rows)
            ((right,),) = catalog.read(
                "SELECT count(*) FROM (SELECT stream FROM extents GROUP BY stream "
                "HAVING sum(length) = ? AND min(start) = 0)",
                (rounds * len(self._message),),
            )
            report.wrong_streams = self._streams - right
        finally:
            catalog.close()


def main():
    parser = argparse.ArgumentParser(description="Flush and merge many streams.")
    parser.add_argument("--streams", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=8, help="how often each stream changes")
    parser.add_argument("--merge-packs", type=int, default=8)
    parser.add_argument("--message-bytes", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        many = ManyStreams(Path(path), options.streams, options.merge_packs, options.message_bytes)
        print(asyncio.run(many.run(options.rounds)))
        size = sum(each.stat().st_size for each in Path(path).rglob("*") if each.is_file())
        print(f"on disk: {size / 1e6:.0f} MB")
    print(f"children: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime:.0f} s of CPU")


if __name__ == "__main__":
    main()
