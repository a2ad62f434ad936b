"""A catalog rebuilt from the packs is the one that was lost, whatever a crash left behind."""

import random
from contextlib import closing, suppress

import pytest

from holdfast.errors import CatalogError
from holdfast.format.pack_builder import PackBuilder
from holdfast.format.packs import HEADER_BYTES, PackMeta
from holdfast.format.rows import BUCKET_PREFIX, decode_bucket, encode_bucket
from holdfast.objects.pack_reader import Pack
from holdfast.storage.catalog import Catalog
from holdfast.storage.catalog_schema import recount
from holdfast.storage.catalog_writer import CatalogWriter
from holdfast.storage.flush import Gather
from holdfast.storage.rebuild import SoundPack, build, rebuild, resolve, survey
from tests.simulation.files import KilledError
from tests.storage.filled import GRACE_S, IDENTITY, Filled, killed_at

JSON = "application/json"
NOW_MS = 1_900_000_000_000


@pytest.fixture
def data(tmp_path):
    with closing(Filled(tmp_path)) as filled:
        yield filled


def fill(data):
    """Four flushes with a bit of everything; the streams by name."""
    notes = data.create("notes", b"first", ttl_s=600)
    events = data.create("events", b'{"a":1}\x1e', JSON)
    gone = data.create("gone", b"to be deleted")
    data.flush()
    data.append(notes, b"second", producer=(b"writer", 3, 7))
    data.append(events, b'{"a":2}\x1e{"a":3}\x1e')
    data.flush()
    data.delete(gone)
    data.create("gone", b"another stream of the same name")
    data.create("empty", expires_at_ms=2_000_000_000_000)
    data.flush()
    data.append(events, b"[]\x1e", closes=True)
    data.flush()


def fill_with_relatives(data):
    """Flushes with forks, snapshots, buckets and documents; something of each is gone again."""
    source = data.create("b/source", b"0123456789")
    data.create_bucket("created")
    data.create_bucket("gone")
    data.documents({"sub/1": b"one", "sub/2": b"two"})
    data.flush()
    data.snapshot(source, 4)
    fork = data.fork("b/fork", source, 8, b"abc")
    nested = data.fork("c/nested", fork, 6)
    data.append(source, b"more")
    data.flush()
    data.snapshot(source, 10)
    data.delete(fork)
    data.delete_bucket("gone")
    data.documents({"sub/1": None, "sub/3": b"three"})
    data.flush()
    data.append(nested, b"xyz")
    data.delete(source)
    data.flush()
    return nested


def relate(data, alive, name, chance):
    """Publish a snapshot of a stream, or fork it, wherever that is possible."""
    number = chance.choice(alive)
    with suppress(AssertionError):
        data.flush()
    row = data._catalog.find_number(number)
    offset = chance.randint(row.earliest, row.tail)
    if chance.random() < 0.5:
        data.snapshot(number, offset)
    else:
        alive.append(data.fork(name, number, offset, b"z" * chance.randrange(50)))


def rebuilt(data, *, spoilt=()):
    """The state of a catalog built from the packs alone."""
    path = data.path.with_name("other.sqlite")
    path.unlink(missing_ok=True)
    build(data.store, resolve(survey(data.store), spoilt), path, NOW_MS)
    return data.state(path)


class TestState:
    def test_after_flushes(self, data):
        fill(data)
        assert rebuilt(data) == data.state()

    def test_with_forks_snapshots_buckets_and_documents(self, data):
        nested = fill_with_relatives(data)
        while True:
            assert rebuilt(data) == data.state()
            assert data.verify().ok
            assert data.verify_store().ok
            if len(data.in_use()) == 1:
                break
            data.merge()
            data.collect()
        data.delete(nested)
        data.flush()
        assert data.state()["streams"] == []
        assert [key for key, _ in data.state()["documents"]] == ["bucket/created", "sub/2", "sub/3"]
        assert rebuilt(data) == data.state()
        assert data.verify().ok

    def test_buckets_that_packs_of_an_older_version_do_not_tell_of(self, data, monkeypatch):
        with monkeypatch.context() as older:
            older.setattr(Gather, "documents", lambda _: {})
            fill_with_relatives(data)
            data.create("b/another", b"12345")
            data.flush()
        state = rebuilt(data)
        buckets = {key: decode_bucket(value) for key, value in state["documents"]}
        assert {name: (row.streams, row.size_bytes) for name, row in buckets.items()} == {
            # With the snapshots of 10 bytes, and what deleted streams keep for their forks.
            "bucket/b": (1, 38),
            "bucket/c": (1, 13),
        }
        another, nested = buckets["bucket/b"], buckets["bucket/c"]
        assert another.created_ms == another.last_write_ms
        assert nested.created_ms < nested.last_write_ms
        assert not another.explicit
        live = resolve(survey(data.store))
        data.close()
        rebuild(data.store, live, data.path, NOW_MS)
        with closing(Filled.over(data)) as again:
            assert again.verify().ok
            again.create("b/one more", b"1")
            again.flush()
            assert again.verify().ok
            assert rebuilt(again) == again.state()

    def test_buckets_that_an_older_version_counted_otherwise(self, data, monkeypatch):
        documents = Gather.documents

        def counted_otherwise(gather):
            changed = documents(gather)
            for key, value in changed.items():
                if key.startswith(BUCKET_PREFIX) and value is not None:
                    bucket = decode_bucket(value)
                    bucket.size_bytes += 1
                    changed[key] = encode_bucket(bucket)
            return changed

        with monkeypatch.context() as older:
            older.setattr(Gather, "documents", counted_otherwise)
            fill_with_relatives(data)
        assert not data.verify().ok
        with data._catalog.transaction() as connection:
            recount(connection)
        assert data.verify().ok
        assert rebuilt(data) == data.state()

    def test_after_every_merge_with_the_superseded_packs_still_there(self, data):
        fill(data)
        for _ in range(3):
            data.merge()
            assert rebuilt(data) == data.state()

    def test_after_the_superseded_packs_are_gone(self, data):
        fill(data)
        data.merge()
        data.collect()
        assert len(data.in_use()) == 3
        assert len(survey(data.store)) == 3
        assert rebuilt(data) == data.state()

    def test_streams_of_a_merge_that_were_deleted_before_its_swap(self, data):
        doomed = data.create("doomed", b"bytes")
        data.flush()
        data.create("other", b"bytes")
        data.flush()
        merged = data.write_merge()
        data.delete(doomed)
        data.flush()
        assert data.worker.finish_merge(merged, 0.0)
        assert rebuilt(data) == data.state()
        assert data.verify().ok

    def test_packs_of_one_stream(self, data, monkeypatch):
        monkeypatch.setattr("holdfast.storage.flush.OWN_PACK_BYTES", 100)
        large = data.create("large", b"x" * 200)
        fill(data)
        assert rebuilt(data) == data.state()
        data.merge()
        data.merge()
        assert rebuilt(data) == data.state()
        data.delete(large)
        data.flush()
        # All of its bytes are dead, and it is still in use.
        assert rebuilt(data) == data.state()
        data.worker.collect()
        assert data.verify().ok
        data.collect()
        assert rebuilt(data) == data.state()
        assert data.verify().ok

    def test_a_dead_pack_of_one_stream_whose_whole_life_is_in_one_merged_pack(
        self, data, monkeypatch
    ):
        monkeypatch.setattr("holdfast.storage.flush.OWN_PACK_BYTES", 100)
        large = data.create("large", b"x" * 200)
        data.flush()
        data.delete(large)
        data.flush()
        data.merge()
        assert data.state()["streams"] == []
        assert rebuilt(data) == data.state()

    def test_any_history(self, data, monkeypatch):
        monkeypatch.setattr("holdfast.storage.flush.OWN_PACK_BYTES", 300)
        chance = random.Random(7)
        alive = []
        for step in range(300):
            match chance.randrange(12):
                case 0 | 1 | 2:
                    alive.append(data.create(f"s{step}", b"x" * chance.randrange(100)))
                case 3 | 4 | 5 if alive:
                    data.append(chance.choice(alive), b"y" * chance.randrange(1, 400))
                case 6 if alive:
                    relate(data, alive, f"f{step}", chance)
                case 7 if alive:
                    data.delete(alive.pop(chance.randrange(len(alive))))
                case 8 | 9:
                    with suppress(AssertionError):
                        data.flush()
                case 10:
                    with suppress(AssertionError):
                        data.merge()
                case 11 if chance.random() < 0.2:
                    data.collect()
            if step % 50 == 0:
                assert rebuilt(data) == data.state()
        assert len(data.state()["streams"]) > 5
        assert data.verify().ok
        assert data.verify_store().ok


class TestOrphans:
    def test_a_flush_that_was_not_committed_is_as_good_as_one_that_was(self, data):
        fill(data)
        data.append(data.create("late", b"one"), b"two")
        (orphan,) = data.upload_only()
        found = rebuilt(data)
        assert [name for name, *_ in found["packs"]] == sorted([*data.in_use(), orphan])
        assert dict(found["facts"])["flushed"] == data.position
        data.create("later still", b"three")
        data.flush()
        # Its retry covers more of the log, and is the one in use.
        assert rebuilt(data) == data.state()
        data.merge()
        assert rebuilt(data) == data.state()

    def test_a_flush_that_was_done_again_with_the_same_range(self, data, monkeypatch):
        monkeypatch.setattr("holdfast.storage.flush.OWN_PACK_BYTES", 100)
        data.create("large", b"x" * 200)
        own, main = sorted(
            data.upload_only(), key=lambda name: Pack(data.store, name).delta().meta.has_delta
        )
        data.flush_again()
        # Garbage collection was interrupted: the orphan has lost its companion.
        data.store.remove(own)
        assert main in survey(data.store)
        assert rebuilt(data) == data.state()

    def test_a_merge_that_was_not_committed(self, data):
        fill(data)
        orphan = data.write_merge().name
        data.worker.merging = None
        found = rebuilt(data)
        assert orphan in {name for name, *_ in found["packs"]}
        assert found["streams"] == data.state()["streams"]
        assert found["facts"] == data.state()["facts"]

    def test_an_uncommitted_merge_that_leads_nowhere_is_not_followed(self):
        packs = [
            pack("a", 0, 10),
            pack("ab", 0, 20, supersedes={"a", "b"}),
            pack("bc", 10, 30, supersedes={"b", "c"}),
        ]
        live = resolve({each.name: each for each in packs})
        assert [each.name for each in live.mains] == ["a", "bc"]
        assert live.missing is None

    def test_superseded_packs_are_out_of_use_since_now(self, data):
        fill(data)
        merged = data.merge()
        live = resolve(survey(data.store))
        assert {name for _, name in live.superseded} == {merged}
        data.close()
        rebuild(data.store, live, data.path, NOW_MS)
        with closing(CatalogWriter(data.path)) as catalog:
            rows = catalog.packs("retired_ms IS NOT NULL")
            assert [(row.retired_ms, row.retired_by) for row in rows] == [(NOW_MS, merged)] * 2
            assert catalog.fact("store") == IDENTITY

    def test_a_damaged_pack_gives_way_to_those_it_was_made_of(self, data):
        fill(data)
        before = data.state()
        merged = data.merge()
        data.flip(merged, HEADER_BYTES)
        assert rebuilt(data, spoilt={merged}) == before
        # Without them it is still better than nothing.
        data.collect()
        assert rebuilt(data, spoilt={merged}) == data.state()


class TestCompanions:
    def test_one_that_supersedes_another_takes_its_place(self):
        packs = [
            pack("main", 0, 10, companions={"old"}),
            pack("old", 0, 10, has_delta=False),
            pack("new", 0, 10, has_delta=False, supersedes={"old"}, created_ms=2),
            pack("stray", 0, 10, has_delta=False),
        ]
        live = resolve({each.name: each for each in packs})
        assert [each.name for each in live.companions] == ["new"]
        assert [(each.name, by) for each, by in live.superseded] == [("old", "new")]

    def test_one_that_a_job_has_rewritten_is_still_found_after_a_merge(self, data, monkeypatch):
        monkeypatch.setattr("holdfast.storage.flush.OWN_PACK_BYTES", 100)
        large = data.create("large", b"x" * 200)
        data.flush()
        (old,) = [name for name in data.in_use() if not Pack(data.store, name).footer.rows]
        builder = PackBuilder(4711, 0, data.position)
        builder.add(large, 0, b"x" * 200, Pack(data.store, old).index().part(0, 1))
        meta = PackMeta(NOW_MS, has_delta=False, supersedes=[old])
        parts = [builder.header(), b"x" * 200, *builder.finish(meta, ())]
        data.store.put("packs/rewritten", b"".join(parts))
        data.swap(["packs/rewritten"], [old])
        assert rebuilt(data) == data.state()
        data.create("more", b"bytes")
        data.flush()
        data.merge()
        assert "packs/rewritten" in data.in_use()
        assert rebuilt(data) == data.state()
        assert data.verify().ok

    def test_one_that_a_later_pack_took_in_is_not_live(self):
        packs = [
            pack("main", 0, 10, companions={"old"}),
            pack("old", 0, 10, has_delta=False),
            pack("next", 10, 20, supersedes={"old"}),
        ]
        live = resolve({each.name: each for each in packs})
        assert live.companions == []
        assert live.names == {"main", "next"}


class TestRefusals:
    def test_a_gap_in_the_log_is_named_and_nothing_replaced(self, data):
        fill(data)
        missing = data.in_use()[1]
        data.store.remove(missing)
        before = data.path.read_bytes()
        live = resolve(survey(data.store))
        assert live.missing == (4, 5)
        with pytest.raises(CatalogError, match="Positions 4 to 5 of the log are in no sound pack"):
            rebuild(data.store, live, data.path, NOW_MS)
        assert data.path.read_bytes() == before

    def test_streams_that_would_miss_bytes_are_named_and_nothing_replaced(self, data, monkeypatch):
        monkeypatch.setattr("holdfast.storage.flush.OWN_PACK_BYTES", 100)
        data.create("large", b"x" * 200)
        data.flush()
        (own,) = [name for name in data.in_use() if not Pack(data.store, name).footer.rows]
        data.flip(own, len(data.store.objects[own][0]) - 1)
        before = data.path.read_bytes()
        with pytest.raises(CatalogError, match=r"\(_default/large\) misses bytes 0 to 200"):
            rebuild(data.store, resolve(survey(data.store)), data.path, NOW_MS)
        assert data.path.read_bytes() == before
        assert not list(data.path.parent.glob("*.new*"))

    def test_packs_that_contradict_each_other(self, data):
        data.create("a", b"bytes")
        (first,) = data.flush()
        live = resolve(survey(data.store))
        twice = live._replace(mains=[*live.mains, live.mains[0]._replace(name="packs/copy")])
        data.store.put("packs/copy", data.store.read(first))
        with pytest.raises(CatalogError, match="The packs contradict each other: what packs/copy"):
            rebuild(data.store, twice, data.path, NOW_MS)


class TestReplacing:
    def test_the_old_catalog_is_kept_aside_with_its_log(self, data):
        fill(data)
        before = data.state()
        # The writer still has it open, so SQLite's log of it is there.
        wal = data.path.with_name("catalog.sqlite-wal")
        assert wal.exists()
        aside = rebuild(data.store, resolve(survey(data.store)), data.path, NOW_MS)
        assert aside == data.path.with_name("catalog.sqlite.damaged")
        assert not wal.exists()
        assert data.state() == before
        assert data.state(aside) == before

    def test_killed_before_the_exchange_it_leaves_the_old_one_and_can_be_run_again(self, data):
        fill(data)
        before = data.state()
        data.close()
        data.path.write_bytes(b"no catalog")
        live = resolve(survey(data.store))
        with killed_at("repair.rebuilt"), pytest.raises(KilledError):
            rebuild(data.store, live, data.path, NOW_MS)
        assert data.path.read_bytes() == b"no catalog"
        rebuild(data.store, live, data.path, NOW_MS)
        assert data.state() == before

    def test_what_a_killed_rebuild_left_is_cleared_away(self, data):
        fill(data)
        for suffix in ("", "-wal", "-shm"):
            data.path.with_name(f"catalog.sqlite.new{suffix}").write_bytes(b"rubbish")
        rebuild(data.store, resolve(survey(data.store)), data.path, NOW_MS)
        assert not list(data.path.parent.glob("*.new*"))

    def test_flushes_merges_and_garbage_go_on_with_it(self, data):
        fill(data)
        merged = data.merge()
        data.close()
        data.path.unlink()
        rebuild(data.store, resolve(survey(data.store)), data.path, data.clock.now_ms())
        with closing(Filled.over(data)) as again:
            with closing(Catalog(again.path)) as catalog:
                notes = catalog.find_name("_default/notes")
                _, writer = catalog.find_producer(notes.number, b"writer")
            assert writer[:2] == (3, 7)
            again.append(notes.number, b"third")
            again.flush()
            again.merge()
            assert merged in {each.name for each, _ in resolve(survey(data.store)).superseded}
            assert rebuilt(again) == again.state()
            again.clock.advance(GRACE_S)
            again.collect()
            assert set(survey(data.store)) == set(again.in_use())
            assert again.verify().ok


def pack(
    name, after, through, *, has_delta=True, supersedes=(), companions=(), created_ms=1
) -> SoundPack:
    return SoundPack(
        name,
        100,
        after,
        through,
        created_ms,
        has_delta,
        frozenset(supersedes),
        frozenset(companions),
    )
