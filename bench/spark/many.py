"""Reads of very many small streams: the plan, and the rows."""

from __future__ import annotations

import pickle
import resource
import sqlite3
import statistics
from contextlib import closing
from pathlib import Path

import msgspec

from bench.scenario import Plan
from bench.spark.child import Found, in_child, session, timed, to_nowhere
from bench.spark.generated import BUCKET, generate
from bench.storage.figures import MB, Figure, Measured, Sizes, Step
from bench.storage.node import node
from holdfast.storage.catalog_plan import ScanPlanner
from holdfast.storage.catalog_scan import Scanned
from holdfast.storage.catalog_writer import CatalogWriter

PLAN_S_MAX, PLAN_MB_MAX, DRIVER_MB_MAX = 3, 50, 512
MESSAGES, MESSAGE_BYTES = 4, 256
MB_PER_S = 50
HUGE_PACKS, HUGE_PACK_BYTES = 200_000, 512 << 20
SLICE_BYTES = 128 << 20


def _run(plan: Plan, sizes: Sizes) -> Measured:
    planned, read = _planned(plan, sizes.spark_planned), _read(plan, sizes.spark_tiny)
    return Measured([*planned, *_huge(plan), *read])


def _planned(plan: Plan, streams: int) -> list[Figure]:
    with node("spark-planned") as made:
        generate(made.data_dir, streams)
        made.start()
        found = in_child(__name__, url=made.running.url, rounds=plan.rounds)
    plan.console.print(f"    {found}", highlight=False)
    what = f"plan of a read of {streams:,} streams"
    seconds = statistics.median(found["seconds"])
    return [
        Figure(what, seconds, "{:.2f} s", PLAN_S_MAX),
        Figure(f"{what}: MB from the server", found["plan_mb"], "{:.3f}", PLAN_MB_MAX),
        Figure(f"{what}: MB of the planning process", found["rss_mb"], "{:.0f}", DRIVER_MB_MAX),
    ]


def _read(plan: Plan, streams: int) -> list[Figure]:
    with node("spark-tiny") as made:
        generate(made.data_dir, streams, MESSAGES, MESSAGE_BYTES)
        made.start()
        found = in_child(__name__, url=made.running.url, rounds=plan.rounds, reads=True)
    plan.console.print(f"    {found}", highlight=False)
    what = f"batch read of {streams:,} streams of {MESSAGES} messages of {MESSAGE_BYTES} B"
    megabytes = streams * MESSAGES * MESSAGE_BYTES / MB
    rate = megabytes / statistics.median(found["reads"])
    return [
        Figure(f"{what}: MB/s", rate, at_least=MB_PER_S),
        Figure(f"{what}: rows", found["rows"], at_least=MESSAGES * streams),
    ]


def _huge(plan: Plan) -> list[Figure]:
    """The plan of a bucket that nobody has room for: only the catalog's list of packs is made."""
    with node("spark-huge") as made:
        made.data_dir.mkdir(parents=True)
        path = made.data_dir / "catalog.sqlite"
        CatalogWriter(path).close()
        with closing(sqlite3.connect(path)) as catalog, catalog:
            catalog.executemany(
                "INSERT INTO packs (name, size_bytes, data_bytes, dead_bytes, messages, rows, "
                "has_delta, after, through, salt, created_ms) "
                "VALUES (?, ?, ?, 0, ?, 500, TRUE, ?, ?, ?, 0)",
                map(_huge_pack, range(HUGE_PACKS)),
            )
        planner = ScanPlanner(path, Scanned(f"{BUCKET}/", 0, HUGE_PACKS))
        planned = planner.by_packs(SLICE_BYTES, 1)
        document = made.data_dir / "plan.json"
        end = f"{HUGE_PACKS:020d}"
        fields = {"bucket_id": BUCKET, "after": f"{0:020d}", "until": end, "flushed": end}
        fields |= {"store": "", "partitions": [], "hot": [], "next_cursor": end}
        document.write_bytes(msgspec.json.encode({**fields, **planned._asdict()}))
        found = in_child(__name__, document=str(document))
    plan.console.print(f"    {found}", highlight=False)
    what = f"plan of {HUGE_PACKS * HUGE_PACK_BYTES / 1e12:.0f} TB in {HUGE_PACKS:,} packs"
    rss_mb = found["rss_mb"]
    return [Figure(f"{what}: MB of the planning process", rss_mb, "{:.0f}", DRIVER_MB_MAX)]


def _huge_pack(number: int) -> tuple[object, ...]:
    name = f"packs/{number:016x}-{number + 1:016x}-{number:016x}.pack"
    sizes = HUGE_PACK_BYTES * 11 // 10, HUGE_PACK_BYTES, HUGE_PACK_BYTES // 1024
    return name, *sizes, number, number + 1, number.to_bytes(8, "little")


def measure(url: str = "", rounds: int = 1, *, reads: bool = False, document: str = "") -> Found:
    """What it takes to plan a read, or to read every row in a session that has done it before."""
    if reads:
        spark = session()
        frame = spark.read.format("holdfast").options(url=url, bucket=BUCKET).load()
        rows = frame.count()
        seconds = [timed(lambda: to_nowhere(frame)) for _ in range(1 + rounds)]
        spark.stop()
        return {"reads": seconds[1:], "rows": rows}
    if document:
        return _partitions_of(Path(document))
    from holdfast.client import SyncClient  # noqa: PLC0415 (in the child)
    from holdfast.spark.reading.arrow import DEFAULT_COLUMNS, spark_schema  # noqa: PLC0415 (the same)
    from holdfast.spark.reading.readers import batch_reader  # noqa: PLC0415 (the same)

    reader = batch_reader({"url": url, "bucket": BUCKET}, spark_schema(DEFAULT_COLUMNS))
    seconds = [timed(reader.partitions) for _ in range(1 + rounds)]
    with SyncClient(url) as client:
        plan_mb = len(msgspec.json.encode(client.bucket(BUCKET).scan())) / MB
    return {"seconds": seconds[1:], "plan_mb": plan_mb, "rss_mb": _rss_mb()}


def _rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB


def _partitions_of(document: Path) -> Found:
    """What a driver holds when it makes partitions of a plan, and what it sends of them."""
    from holdfast.client import ScanPlan  # noqa: PLC0415 (in the child)
    from holdfast.spark.connection import SparkConnection  # noqa: PLC0415 (the same)
    from holdfast.spark.reading.planning import ReadPlan, pack_parts  # noqa: PLC0415 (the same)
    from holdfast.spark.reading.source import ReadSource  # noqa: PLC0415 (the same)

    scan = msgspec.json.decode(document.read_bytes(), type=ScanPlan)
    source = ReadSource(SparkConnection(), BUCKET)
    parts = ReadPlan(source, pack_parts(scan), scan.until).partitions()
    pickled_mb = sum(len(pickle.dumps(each)) for each in parts) / MB
    return {"partitions": len(parts), "pickled_mb": pickled_mb, "rss_mb": _rss_mb()}


STEP = Step(
    "many",
    "Data directories that are made without a server. Planning: what Spark waits for before it can "
    "start the tasks of a batch read. 100 TB: only the packs in the catalog, and the partitions "
    "that a driver makes of their plan. Reading: every column, to noop; a stream's messages are "
    "in several packs. Medians, after a round to warm up.",
    _run,
)
