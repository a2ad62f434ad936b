"""Auditing: nothing on a sound store, every kind of damage on others."""

import sqlite3
from contextlib import ExitStack, closing
from threading import Lock

import pytest

from holdfast.errors import HoldfastError, NotFoundError, SettingsError, StoreError
from holdfast.format.packs import FOOTER_BYTES, HEADER_BYTES, decode_footer
from holdfast.settings.options import build
from holdfast.spark.compaction import rewrite
from holdfast.spark.connection import SparkConnection
from holdfast.spark.jobs import run_job
from holdfast.spark.jobs.audit import Audit
from tests.moto_server import KEY_ID, SECRET, MotoServer
from tests.server_process import ServerProcess
from tests.spark.filled import Filled
from tests.spark.stored import Stored
from tests.spark.test_compact_job import tasks_of
from tests.storage_stats import flush
from tests.tcp_proxy import TcpProxy


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A server whose packs are damaged and mended, one after the other."""
    found = Stored(tmp_path_factory.mktemp("audited") / "data")
    found.fill()
    with ExitStack() as stack:
        stack.callback(found.close)
        yield found


@pytest.fixture
def stored(tmp_path):
    """A server of its own."""
    found = Stored(tmp_path / "data")
    found.fill()
    with ExitStack() as stack:
        stack.callback(found.close)
        yield found


class Damaged:
    """A pack that is damaged in some way, and mended in the end."""

    def __init__(self, stored, number):
        self.name = str(stored.packs()[number]["name"])
        self.path = stored.objects / self.name
        self.sound = self.path.read_bytes()
        self.footer = decode_footer(self.sound[-FOOTER_BYTES:], len(self.sound))

    def flip(self, at):
        data = bytearray(self.sound)
        data[at] ^= 1
        self.path.write_bytes(data)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.path.write_bytes(self.sound)


def audit(spark, stored, **options):
    options.setdefault("server", stored.connection)
    return run_job(spark, build(Audit, options))


@pytest.mark.parametrize("via", ["store", "server"])
def test_sound_store(spark, shared, tmp_path, via):
    packs = shared.packs()
    done = audit(spark, shared, via=via, report=str(tmp_path / "new" / "report"))
    assert done.ok
    assert done.findings == []
    assert done.packs == len(packs)
    assert done.bytes == sum(pack["size_bytes"] for pack in packs)
    assert done.dead_bytes == sum(pack["dead_bytes"] for pack in packs)
    assert done.streams == len(shared.contents())
    assert done.extents > done.packs
    table = spark.read.parquet(str(tmp_path / "new" / "report"))
    assert (table.columns, table.count()) == (["kind", "where", "what"], 0)


def test_large_streams_and_compacted_packs(spark, stored):
    stored.fill_large()
    assert audit(spark, stored).findings == []
    for task in tasks_of(stored):
        assert rewrite(task).result == "done"
    done = audit(spark, stored)
    assert (done.findings, done.packs, done.dead_bytes) == ([], 2, 0)


PLACES = {
    "header": (lambda _: 3, "its header is damaged"),
    "data": (lambda _: HEADER_BYTES, "does not match its checksum"),
    "lengths": (lambda footer: footer.lengths_at, "its message index is damaged"),
    "timestamps": (lambda footer: footer.timestamps_at, "its message index is damaged"),
    "directory": (lambda footer: footer.directory_at + 5, "its directory is damaged"),
    "delta": (lambda footer: footer.delta_at + 5, "its delta is damaged"),
    "footer": (lambda footer: footer.footer_at + 20, "its footer is damaged"),
}


def test_flipped_bytes(spark, shared, tmp_path):
    """One in each of several packs, all of them found in one go."""
    expected = {}
    with ExitStack() as stack:
        for number, (place, words) in enumerate(PLACES.values()):
            pack = stack.enter_context(Damaged(shared, number))
            pack.flip(place(pack.footer))
            expected[pack.name] = words
        done = audit(spark, shared, report=str(tmp_path / "report"))
    assert not done.ok
    assert (done.damage, done.notes) == (len(expected), 0)
    table = spark.read.parquet(str(tmp_path / "report"))
    found = table.orderBy("kind", "where", "what").collect()
    assert {each["where"] for each in found} == expected.keys()
    for each in found:
        assert each["kind"] == "damage"
        assert expected[each["where"]] in each["what"]
    assert done.findings == [f"{each['where']}: {each['what']}" for each in found]


@pytest.mark.slow
def test_packs_that_are_missing_short_or_long(spark, shared):
    with Damaged(shared, 0) as gone, Damaged(shared, 1) as short, Damaged(shared, 2) as long:
        gone.path.unlink()
        short.path.write_bytes(short.sound[:-1])
        long.path.write_bytes(long.sound + b"x")
        for via in ("store", "server"):
            done = audit(spark, shared, via=via)
            size = "than the {} bytes that the catalog says"
            assert set(done.findings) == {
                f"{gone.name}: it is in use, but not in the store",
                f"{short.name}: it is shorter {size.format(len(short.sound))}",
                f"{long.name}: it is longer {size.format(len(long.sound))}",
            }


def test_damage_that_nobody_will_notice(spark, shared):
    """The bytes of a stream that is gone."""
    with Damaged(shared, 0) as pack:
        pack.flip(pack.sound.index(b"gone in turn"))
        done = audit(spark, shared)
    assert (done.ok, done.damage, done.notes) == (True, 0, 1)
    assert done.findings[0].endswith("does not match its checksum; nothing uses it")


def change_catalog(stored, *statements):
    """Change the catalog behind the server's back; it is read anew for every question."""
    with closing(sqlite3.connect(stored.data_dir / "catalog.sqlite")) as connection, connection:
        for statement in statements:
            assert connection.execute(statement).rowcount == 1


@pytest.mark.slow
def test_catalog_that_is_wrong(spark, stored):
    first, second, *_ = (pack["name"] for pack in stored.packs())
    of = "pack = (SELECT id FROM packs WHERE name = '{}')"
    largest = "AND stream = (SELECT number FROM streams WHERE name LIKE '%/{}')"
    change_catalog(
        stored,
        f"DELETE FROM extents WHERE {of.format(first)} {largest.format('text')}",
        f"UPDATE extents SET sums = zeroblob(16) "
        f"WHERE {of.format(first)} {largest.format('forked')}",
        f"UPDATE extents SET start = start + 1 WHERE {of.format(second)} {largest.format('json')}",
        f"UPDATE packs SET rows = 99 WHERE name = '{first}'",
        f"UPDATE packs SET dead_bytes = 0 WHERE name = '{second}'",
    )
    done = audit(spark, stored)
    assert not done.ok
    said = "\n".join(done.findings)
    name = stored.bucket
    for words in (
        f"({name}/text): it misses bytes 0 to 306",
        f"({name}/forked) at 0 is not as in {first}",
        f"({name}/json) has no bytes at 18 in {second}",
        f"({name}/json): it misses bytes 17 to 18",
        f"catalog: it disagrees with {first} about rows",
        f"catalog: it counts 0 dead bytes in {second}, which has 665",
        f"dead bytes in {first}, which has",
    ):
        assert words in said
    change_catalog(stored, f"UPDATE packs SET after = after + 1 WHERE name = '{second}'")
    assert "are in no pack" in "\n".join(audit(spark, stored).findings)


class Meddler:
    """Does something when a pack is asked for, once."""

    def __init__(self, stored, asked, do):
        self._asked, self._do = asked, do
        self._lock = Lock()
        self.done = False
        self.proxy = TcpProxy(stored.server.port, self._before)
        self.connection = SparkConnection(f"http://127.0.0.1:{self.proxy.port}", retries=2)

    def _before(self, piece):
        with self._lock:
            if self._asked in piece and not self.done:
                self.done = True
                self._do()


@pytest.mark.slow
def test_packs_are_merged_and_streams_change_meanwhile(spark, stored):
    third = stored.packs()[2]["name"].removeprefix("packs/")

    def change():
        (task,) = tasks_of(stored, 4)
        assert rewrite(task).result == "done"
        stored.delete("text")
        stored.append("forked", b"one more")
        stored.append("json", b"[1]", "application/json")
        stored.publish("json", stored.stream("json").tail())
        flush(stored.client)

    meddler = Meddler(stored, third.encode(), change)
    with ExitStack() as stack:
        stack.callback(meddler.proxy.close)
        done = audit(spark, stored, server=meddler.connection)
    assert meddler.done
    assert done.findings == []
    assert done.merged_meanwhile == 2
    assert audit(spark, stored).findings == []


def test_out_of_reach(spark, shared, tmp_path):
    away = str(tmp_path / "away")
    with pytest.raises(StoreError, match="does not exist, or is not one of Holdfast's"):
        audit(spark, shared, store=away, via="store")
    # The server is, and that is enough.
    assert audit(spark, shared, store=away).ok
    with pytest.raises(HoldfastError):
        run_job(spark, Audit(server=SparkConnection("http://127.0.0.1:9", retries=0)))
    with pytest.raises(SettingsError, match="cannot be written"):
        audit(spark, shared, report=str(shared.data_dir / "format" / "report"))


@pytest.mark.slow
def test_requests_to_a_bucket_are_counted(spark, tmp_path):
    with MotoServer() as moto, ServerProcess(tmp_path, **moto.settings(moto.new_bucket())) as found:
        bucket = Filled(found.url)
        bucket.append("a", b"1", b"2")
        bucket.flush()
        place = {"store_endpoint": moto.endpoint, "via": "store"}
        place |= {"store_access_key_id_env": "TEST_ID", "store_secret_access_key_env": "TEST_KEY"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TEST_ID", KEY_ID)
            patch.setenv("TEST_KEY", SECRET)
            job = build(Audit, {"server": SparkConnection(found.url), **place})
            done = run_job(spark, job)
    assert (done.ok, done.packs) == (True, 1)
    assert done.store_requests["get"] >= 3
    assert done.store_requests["bytes_read"] >= done.bytes


def test_server_without_packs(spark, tmp_path):
    with ServerProcess(tmp_path / "memory", durability="memory") as server:
        with pytest.raises(NotFoundError, match="keeps everything in memory"):
            run_job(spark, Audit(server=SparkConnection(server.url)))


def test_wrong_options():
    with pytest.raises(SettingsError, match="'via': expected"):
        build(Audit, {"via": "pigeon"})
    with pytest.raises(SettingsError, match="NO_SUCH_VARIABLE, which is not set"):
        Audit(store_access_key_id_env="NO_SUCH_VARIABLE").place("s3://a")
