"""Compacting: fewer packs, the same streams, whatever happens in between."""

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from threading import Event, Lock, Thread

import pytest

from holdfast import failpoints
from holdfast.errors import HoldfastError, NotFoundError, SettingsError, StoreError
from holdfast.objects.locations import StoreLocation
from holdfast.settings.options import build
from holdfast.spark.compaction import CompactionLimits, Rewrite, plan_groups, rewrite
from holdfast.spark.connection import SparkClient, SparkConnection
from holdfast.spark.jobs import run_job
from holdfast.spark.jobs.audit import Audit
from holdfast.spark.jobs.compact import Compact
from tests.http.bucketed import new_stream_in
from tests.server_process import ServerProcess
from tests.spark.stored import Stored
from tests.storage_stats import flush
from tests.tcp_proxy import TcpProxy

SWAP = b"POST /cluster/swap-packs"
LIMITS = CompactionLimits(1 << 30, 0.2, 2, 4_000_000)


class Killed(BaseException):
    """In place of a signal that nobody could catch."""


@pytest.fixture
def opened(tmp_path):
    with ExitStack() as stack:

        def start(**settings):
            found = Stored(tmp_path / "data", **settings)
            stack.callback(found.close)
            return found

        yield start


@pytest.fixture
def stored(opened):
    found = opened()
    found.fill()
    return found


@pytest.fixture
def killed_at(monkeypatch):
    """Have this process end at a failpoint, as far as the code there can tell."""

    @contextmanager
    def arm(name):
        def hook(passed):
            if passed == name:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "hook", hook)
            with pytest.raises(Killed):
                yield

    return arm


def compact(spark, stored, **options):
    options.setdefault("server", stored.connection)
    return run_job(spark, build(Compact, options))


def tasks_of(stored, first=None):
    """What the job would have its executors do, with the first packs or all of them."""
    with SparkClient(stored.connection) as server:
        packs = server.collect(lambda client: client.storage.packs())
        store = server.storage.store()
    place = Compact().place(store.store)
    return [
        Rewrite(group, stored.connection, place, store.store_id)
        for group in plan_groups(packs[:first], LIMITS)
    ]


def test_packs_become_few_and_dead_bytes_go(spark, opened):
    stored = opened()
    stored.fill()
    stored.fill_large()
    before, packs = stored.contents(), stored.packs()
    planned = compact(spark, stored, dry_run=True)
    assert stored.packs() == packs
    done = compact(spark, stored)
    assert stored.contents() == before
    assert (done.ok, done.refused, done.left, done.damaged) == (True, 0, 0, [])
    # The log is in one, and the large stream in the other.
    assert (done.packs_before, done.packs_after, done.groups) == (len(packs), 2, 2)
    assert (planned.dry_run, planned.packs_after, planned.groups) == (True, 2, 2)
    dead = sum(pack["dead_bytes"] for pack in packs)
    assert planned.dropped_bytes == dead
    # Of an extent that is needed in part, the messages that nobody needs go as well.
    assert done.dropped_bytes == dead + 3_200_000
    left = stored.packs()
    assert sum(pack["dead_bytes"] for pack in left) == 0
    assert done.bytes_after == sum(pack["size_bytes"] for pack in left) < done.bytes_before
    again = compact(spark, stored)
    assert (again.groups, again.packs_after, again.dropped_bytes) == (0, 2, 0)
    assert stored.check()["ok"]
    # The packs alone say the same, though the ones they replace are still beside them.
    stored.rebuild()
    stored.start()
    assert stored.contents() == before


@pytest.mark.slow
def test_executor_dies(spark, stored, killed_at):
    before, packs = stored.contents(), stored.names()
    (task,) = tasks_of(stored)
    for left, point in enumerate(["merge.started", "merge.uploaded", "compact.uploaded"]):
        with killed_at(point):
            rewrite(task)
        # Nothing has changed, but for an object that nothing refers to.
        assert stored.names() == packs
        assert len(stored.stored() - packs) == left
    with killed_at("compact.swapped"):
        rewrite(task)
    assert len(stored.names()) == 1
    # Spark runs the same task again.
    assert rewrite(task).result == "refused"
    assert compact(spark, stored).groups == 0
    assert stored.contents() == before
    assert stored.check()["ok"]
    # A rebuild, too, is not led astray by what is left over.
    stored.rebuild()
    stored.start()
    assert stored.contents() == before


@pytest.mark.slow
def test_driver_dies(spark, stored, killed_at):
    before, packs = stored.contents(), stored.names()
    with killed_at("compact.planned"):
        compact(spark, stored)
    assert stored.names() == packs
    with killed_at("compact.finished"):
        compact(spark, stored)
    assert len(stored.names()) == 1
    assert compact(spark, stored).groups == 0
    assert stored.contents() == before
    assert stored.check()["ok"]


class Meddler:
    """Does something when the first swap is on its way, before the server hears of it."""

    def __init__(self, stored, do):
        self._do = do
        self._lock = Lock()
        self._done = False
        self.proxy = TcpProxy(stored.server.port, self._before)
        self.connection = SparkConnection(f"http://127.0.0.1:{self.proxy.port}", retries=2)

    def _before(self, piece):
        with self._lock:
            if SWAP in piece and not self._done:
                self._done = True
                self._do()


@pytest.fixture
def meddle(stored):
    with ExitStack() as stack:

        def start(do):
            found = Meddler(stored, do)
            stack.callback(found.proxy.close)
            return found

        yield start


def test_somebody_else_is_faster(spark, stored, meddle):
    before = stored.contents()
    first, *_ = packs = stored.packs()

    def merge():
        (task,) = tasks_of(stored, 3)
        assert rewrite(task).result == "done"

    done = compact(spark, stored, server=meddle(merge).connection)
    assert (done.refused, done.groups, done.packs_after) == (1, 1, 1)
    assert stored.contents() == before
    # What was refused was removed, and what was replaced is still there.
    known = {name for pack in stored.packs() for name in pack["superseded"]}
    assert first["name"] in known
    assert stored.stored() == known | stored.names()
    assert len(known) == len(packs) + 1
    assert stored.check()["ok"]


@pytest.mark.slow
def test_streams_change_meanwhile(spark, stored, meddle):
    def change():
        stored.delete("only-0")
        stored.append("text", b"one more;")
        stored.publish("json", stored.stream("json").tail())
        flush(stored.client)

    meddler = meddle(change)
    done = compact(spark, stored, server=meddler.connection)
    # The packs were still in use, and what they lost meanwhile is dead in the new one.
    assert (done.groups, done.refused) == (1, 0)
    after = stored.contents()
    assert "only-0" not in after
    assert after["text"].endswith(b"one more;")
    assert after["json"] in {b"[]", b""}
    assert len(stored.packs()) == 2
    again = compact(spark, stored)
    assert again.packs_after == 1
    assert stored.contents() == after
    assert stored.check()["ok"]


@pytest.mark.slow
def test_answer_is_lost(stored, meddle):
    """The swap is done, and nobody hears of it: the list of packs says so."""
    before, packs = stored.contents(), stored.names()
    (task,) = tasks_of(stored)

    def lose():
        asked = {"add": sorted(stored.stored() - packs), "remove": sorted(packs)}
        assert stored.client.post("/cluster/swap-packs", json=asked).status_code == 204
        raise ConnectionResetError

    task = replace(task, connection=meddle(lose).connection)
    assert rewrite(task).result == "done"
    assert len(stored.names()) == 1
    assert stored.contents() == before
    assert stored.check()["ok"]


def test_request_is_lost_and_somebody_else_is_faster(stored, meddle):
    before = stored.contents()
    (task,) = tasks_of(stored)

    def lose():
        assert rewrite(task).result == "done"
        raise ConnectionResetError

    lost = replace(task, connection=meddle(lose).connection)
    assert rewrite(lost).result == "refused"
    known = {name for pack in stored.packs() for name in pack["superseded"]}
    assert stored.stored() == known | stored.names()
    assert stored.contents() == before


class Writing:
    """Appends, deletes, flushes and collects garbage until it is told to stop."""

    def __init__(self, stored):
        self._stored = stored
        self._over = Event()
        self._failures = []
        self._thread = Thread(target=self._run)
        self.written = {"text": b"", "forked": b""}

    def _run(self):
        try:
            for turn in count():
                if self._over.is_set():
                    return
                self._turn(turn)
        except BaseException as error:
            self._failures.append(error)
            raise

    def _turn(self, turn):
        stored, name = self._stored, f"passing-{turn}"
        for each in self.written:
            body = f"{each} later {turn};".encode()
            stored.append(each, body)
            self.written[each] += body
        new_stream_in(stored.bucket, stored.client, b"x" * 500, stream_id=name)
        flush(stored.client)
        stored.delete(name)
        flush(stored.client)
        assert stored.client.post("/cluster/collect-garbage").status_code == 204

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        assert self._failures == []


@pytest.mark.slow
def test_server_writes_merges_and_collects_all_the_time(spark, opened):
    stored = opened(merge_packs=2, garbage_grace=0)
    stored.fill(4)
    before = stored.contents()
    with Writing(stored) as writing:
        done = [compact(spark, stored, target_size="8k") for _ in range(2)]
        audited = run_job(spark, Audit(server=stored.connection))
    assert all(each.ok for each in done)
    assert audited.findings == []
    expected = {name: body + writing.written.get(name, b"") for name, body in before.items()}
    assert stored.contents() == expected
    assert stored.check()["ok"]
    stored.rebuild()
    stored.start()
    assert stored.contents() == expected


@pytest.mark.slow
def test_damaged_pack_is_left_alone(spark, stored):
    spoilt = stored.packs()[2]["name"]
    path = stored.objects / spoilt
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    done = compact(spark, stored)
    assert not done.ok
    (words,) = done.damaged
    assert spoilt in words
    # What is before it and what is after it became one each.
    assert done.packs_after == 3
    assert spoilt in stored.names()


def test_store_that_returns_something_else_is_noticed_by_the_executor(stored, monkeypatch):
    before, packs = stored.contents(), stored.names()
    (task,) = tasks_of(stored)

    def hook(passed):
        if passed == "compact.uploaded":
            (new,) = stored.stored() - packs
            path = stored.objects / new
            data = bytearray(path.read_bytes())
            data[20] ^= 1
            path.write_bytes(data)

    monkeypatch.setattr(failpoints, "hook", hook)
    with pytest.raises(StoreError, match="does not return what was written to it"):
        rewrite(task)
    assert stored.names() == stored.stored() == packs
    assert stored.contents() == before


@pytest.mark.slow
def test_store_out_of_reach(spark, stored, tmp_path):
    away = tmp_path / "away"
    with pytest.raises(StoreError) as caught:
        compact(spark, stored, store=str(away))
    assert str(away) in caught.value.message
    assert "Packs can be rewritten only where executors reach their store." in caught.value.message
    away.mkdir()
    (away / "holdfast-store.json").write_text('{"format":1,"id":"other"}')
    (task,) = tasks_of(stored)
    with pytest.raises(StoreError, match="is not the server's own"):
        rewrite(replace(task, place=StoreLocation(str(away)), store_id="mine"))


def test_server_without_packs(spark, tmp_path):
    with ServerProcess(tmp_path / "memory", durability="memory") as server:
        with pytest.raises(NotFoundError, match="keeps everything in memory"):
            run_job(spark, Compact(server=SparkConnection(server.url)))


def test_server_out_of_reach(spark):
    with pytest.raises(HoldfastError):
        run_job(spark, Compact(server=SparkConnection("http://127.0.0.1:9", retries=0)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target_size": "x"}, "'target_size' is a number of bytes such as 64m"),
        ({"target_size": "10"}, "'target_size' is at least 1k"),
        ({"dead_share": 0}, "'dead_share' is above 0"),
        ({"dead_share": 1.5}, "'dead_share' is above 0"),
        ({"min_packs": 1}, "'min_packs' is from 2 to 100"),
        ({"max_messages": 0}, "'max_messages' is at least 1"),
    ],
)
def test_wrong_options(options, words):
    with pytest.raises(SettingsError, match=words):
        build(Compact, options)
