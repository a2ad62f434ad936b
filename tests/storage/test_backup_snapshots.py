"""Backups have every snapshot that a restored server can be asked for, and restores verify them."""

from contextlib import closing

import msgspec
import pytest
from xxhash import xxh3_64_hexdigest

from holdfast.errors import ObjectMissingError, PackCorruptError
from holdfast.format.records import Kind, Record, Snapshot, encode_snapshot
from holdfast.objects.store import MemoryObjects
from holdfast.storage.backup import Backup, Restore
from holdfast.storage.catalog_check import Findings
from holdfast.storage.catalog_schema import open_for_reading
from holdfast.storage.check import Published, verify_catalog
from holdfast.storage.commands import CollectGarbage
from holdfast.storage.manifest import newest
from holdfast.testing import FaultyObjects
from tests.simulation.files import KilledError
from tests.storage.backup_source import ignore, log_segment
from tests.storage.filled import Filled, killed_at

FIRST, SECOND = b"the first state", b"another state" * 3


@pytest.fixture
def source(tmp_path):
    """A stream with a snapshot that its fork has too, and one that was replaced."""
    with closing(Filled(tmp_path)) as filled:
        filled.stream = filled.create("stream", b"0123456789")
        filled.replaced = filled.snapshot(filled.stream, 2, b"replaced")
        filled.flush()
        filled.first = filled.snapshot(filled.stream, 4, FIRST)
        filled.forked = filled.fork("fork", filled.stream, 8)
        filled.flush()
        yield filled


@pytest.fixture
def place(source):
    return FaultyObjects(MemoryObjects(source.clock))


@pytest.fixture
def target(source):
    return FaultyObjects(MemoryObjects(source.clock))


def back_up(source, place, log=(), during=lambda: None):
    with Backup(source.path, source.store, place, source.clock) as running:
        running.copy_log(log, ignore)
        during()
        running.copy_catalog(ignore)
        running.find_missing()
        running.copy_packs(ignore)
        running.copy_snapshots(ignore)
        return running.finish()


def restore(made, place, target, directory):
    (directory / "log").mkdir(parents=True, exist_ok=True)
    running = Restore(made, place, target, "new-mark")
    running.claim_store()
    running.find_missing()
    running.copy_packs(ignore)
    running.copy_snapshots(ignore)
    running.copy_catalog(directory / "catalog.sqlite", ignore)
    running.copy_log(directory / "log", ignore)
    return running


def bodies(store):
    return {info.name for info in store.list("snapshots/")}


def published(source, name, body, offset=6):
    """A record of the log that publishes a body, which is stored."""
    source.store.put(name, body)
    checksum = int(xxh3_64_hexdigest(body), 16)
    snapshot = Snapshot(offset, name, "text/plain", len(body), checksum)
    return Record(Kind.SNAPSHOT, source.stream, 0, encode_snapshot(snapshot)), snapshot


class TestWhatItConsistsOf:
    def test_snapshots_in_use_are_there_once_with_their_checksums(self, source, place):
        made = back_up(source, place)
        assert made == newest(place)
        [copied] = made.snapshots
        assert (copied.name, copied.size_bytes) == (source.first, len(FIRST))
        assert copied.xxh3 == xxh3_64_hexdigest(FIRST)
        assert bodies(place) == {source.first}
        assert place.read(source.first) == FIRST
        own_bytes = made.catalog.size_bytes + sum(pack.size_bytes for pack in made.packs)
        assert made.size_bytes == own_bytes + len(FIRST)
        assert made.shared_bytes == made.pack_bytes + len(FIRST)

    def test_copied_catalog_knows_of_no_garbage(self, source, place, target, tmp_path):
        restore(back_up(source, place), place, target, tmp_path / "restored")
        for path, count in ((source.path, 1), (tmp_path / "restored/catalog.sqlite", 0)):
            with closing(open_for_reading(path)) as catalog:
                found = catalog.execute("SELECT count(*) FROM dropped_snapshots").fetchone()
            assert found == (count,)

    def test_second_backup_copies_only_what_is_new(self, source, place):
        back_up(source, place)
        second = source.snapshot(source.stream, 6, SECOND)
        source.flush()
        with Backup(source.path, source.store, place, source.clock) as running:
            running.copy_log([], ignore)
            running.copy_catalog(ignore)
            size = running.find_missing()
            running.copy_packs(ignore)
            running.copy_snapshots(ignore)
            made = running.finish()
        assert [each.name for each in running.missing.snapshots] == [second]
        assert size == len(SECOND) + sum(pack.size_bytes for pack in running.missing.packs)
        assert {each.name for each in made.snapshots} == {source.first, second}

    def test_large_bodies_go_in_pieces(self, source, place, monkeypatch):
        monkeypatch.setattr("holdfast.storage.copying.PIECE_BYTES", 10)
        monkeypatch.setattr("holdfast.storage.copying.PIECE_BYTES", 10)
        pieces = []
        with Backup(source.path, source.store, place, source.clock) as running:
            running.copy_catalog(ignore)
            running.find_missing()
            running.copy_snapshots(pieces.append)
        assert pieces == [10, 5]
        assert place.read(source.first) == FIRST

    def test_body_of_another_size_is_copied_again(self, source, place):
        place.put(source.first, b"cut short")
        back_up(source, place)
        assert place.read(source.first) == FIRST


class TestLog:
    def test_body_that_only_the_log_has_published(self, source, place, target, tmp_path):
        record, snapshot = published(source, "snapshots/late", SECOND)
        after = source.position
        made = back_up(source, place, [log_segment(1, after + 1, after + 1, records=(record,))])
        assert {each.name for each in made.snapshots} == {source.first, "snapshots/late"}
        restore(made, place, target, tmp_path / "restored")
        assert target.read("snapshots/late") == SECOND
        found = check(target, tmp_path / "restored", [Published(after + 1, 1, snapshot)])
        assert found.of("note") == []

    def test_body_that_shares_an_object_with_others(self, source, place, target, tmp_path):
        """The object is copied and verified as a whole."""
        record, whole = published(source, "snapshots/shared", SECOND)
        part = SECOND[3:8]
        snapshot = msgspec.structs.replace(
            whole,
            size_bytes=len(part),
            checksum=int(xxh3_64_hexdigest(part), 16),
            start=3,
            object_bytes=whole.size_bytes,
            object_checksum=whole.checksum,
        )
        record.payload = encode_snapshot(snapshot)
        after = source.position
        made = back_up(source, place, [log_segment(1, after + 1, after + 1, records=(record,))])
        [_, copied] = sorted(made.snapshots, key=lambda each: each.name == "snapshots/shared")
        assert (copied.size_bytes, copied.xxh3) == (len(SECOND), xxh3_64_hexdigest(SECOND))
        restore(made, place, target, tmp_path / "restored")
        in_log = [Published(after + 1, 1, snapshot)]
        found = check(target, tmp_path / "restored", in_log)
        assert found.of("note") == found.of("damage") == []
        target.put("snapshots/shared", SECOND[:-1])
        (damage,) = check(target, tmp_path / "restored", in_log).of("damage")
        assert "snapshots/shared" in str(damage)

    def test_what_the_catalog_has_overtaken_is_not_asked_of_the_log(self, source, place):
        """The record is flushed while the backup runs, and the next one replaces its body."""
        source.snapshot(source.stream, 5, SECOND)
        position = source.position
        [*_, (_, _, snapshot)] = source.published
        record = Record(Kind.SNAPSHOT, source.stream, 0, encode_snapshot(snapshot))

        def flush():
            source.last = source.snapshot(source.stream, 6, b"last")
            source.flush()

        log = [log_segment(1, position, position, records=(record,))]
        made = back_up(source, place, log, flush)
        assert {each.name for each in made.snapshots} == {source.first, source.last}

    def test_record_whose_body_is_gone_ends_the_backup(self, source, place):
        record, _ = published(source, "snapshots/late", SECOND)
        source.store.remove("snapshots/late")
        after = source.position
        log = [log_segment(1, after + 1, after + 1, records=(record,))]
        with pytest.raises(ObjectMissingError, match="snapshots/late"):
            back_up(source, place, log)
        assert not [info.name for info in place.list("backups/")]


class TestGarbage:
    def test_what_is_replaced_while_it_runs_stays_until_it_is_copied(self, source, place):
        with Backup(source.path, source.store, place, source.clock) as running:
            running.copy_log([], ignore)
            running.copy_catalog(ignore)
            source.delete(source.stream)
            source.delete(source.forked)
            source.flush()
            source.clock.advance(3 * 3600)
            source.worker.handle(CollectGarbage())
            assert source.first in bodies(source.store)
            running.find_missing()
            running.copy_packs(ignore)
            running.copy_snapshots(ignore)
            running.finish()
        source.worker.handle(CollectGarbage())
        assert bodies(source.store) == set()
        assert bodies(place) == {source.first}

    def test_pin_is_renewed_while_bodies_are_copied(self, source, place):
        hours = 4
        with Backup(source.path, source.store, place, source.clock) as running:
            running.copy_catalog(ignore)
            running.find_missing()
            [[before]] = source._catalog.read("SELECT until_ms FROM pins")
            source.clock.advance(hours * 3600)
            running.copy_snapshots(ignore)
            [[after]] = source._catalog.read("SELECT until_ms FROM pins")
        assert after - before == hours * 3_600_000


class TestFailures:
    def test_damaged_body_is_not_backed_up(self, source, place):
        source.flip(source.first, 3)
        with pytest.raises(PackCorruptError, match=f"{source.first} is damaged.* checksum"):
            back_up(source, place)
        assert bodies(place) == set()
        assert not [info.name for info in place.list("backups/")]
        assert source._catalog.read("SELECT * FROM pins") == []

    def test_body_of_the_wrong_length_is_not_backed_up(self, source, place):
        source.store.put(source.first, FIRST + b"!")
        with pytest.raises(PackCorruptError, match="16 bytes instead of 15"):
            back_up(source, place)

    @pytest.mark.parametrize("name", ["backup.snapshot_copied", "backup.snapshots_copied"])
    def test_killed_backup_is_none_and_the_next_goes_on(self, source, place, name):
        running = Backup(source.path, source.store, place, source.clock)
        running.__enter__()
        running.copy_catalog(ignore)
        running.find_missing()
        with killed_at(name), pytest.raises(KilledError):
            running.copy_snapshots(ignore)
        running._writer.close()
        assert bodies(place) == {source.first}
        put = place.calls["put"]
        made = back_up(source, place)
        assert len(made.snapshots) == 1
        # The packs and the manifest, but not the body again.
        assert place.calls["put"] == put + len(made.packs) + 1


class TestRestore:
    @pytest.fixture
    def made(self, source, place):
        return back_up(source, place)

    def test_everything_is_there_and_a_check_finds_nothing(self, made, place, target, tmp_path):
        running = restore(made, place, target, tmp_path / "restored")
        assert running.missing.snapshots == made.snapshots
        assert bodies(target) == bodies(place)
        found = check(target, tmp_path / "restored")
        assert found.of("damage") == found.of("note") == []

    def test_damaged_body_is_not_restored(self, made, place, target, tmp_path):
        name = made.snapshots[0].name
        place.corrupt(name, 5)
        with pytest.raises(PackCorruptError, match=f"{name} is damaged.*It is in memory://"):
            restore(made, place, target, tmp_path / "restored")
        assert bodies(target) == set()

    def test_missing_body_ends_it(self, made, place, target, tmp_path):
        place.remove(made.snapshots[0].name)
        with pytest.raises(ObjectMissingError, match=made.snapshots[0].name):
            restore(made, place, target, tmp_path / "restored")

    @pytest.mark.parametrize("name", ["restore.snapshot_copied", "restore.snapshots_copied"])
    def test_killed_restore_goes_on_where_it_was(self, made, place, target, tmp_path, name):
        with killed_at(name), pytest.raises(KilledError):
            restore(made, place, target, tmp_path / "restored")
        again = restore(made, place, target, tmp_path / "restored")
        assert again.missing.packs == []
        assert again.missing.snapshots == []
        assert check(target, tmp_path / "restored").ok

    def test_manifest_of_an_older_version_has_none(self, made, place, target, tmp_path):
        name = f"backups/{made.id}/manifest.json"
        text = place.read(name)
        at = text.index(b',\n  "snapshots"')
        place.put(name, text[:at] + b"\n}")
        assert newest(place).snapshots == []


def check(store, directory, in_log=()):
    """What `holdfast check` finds in restored data."""
    findings = Findings()
    verify_catalog(store, directory / "catalog.sqlite", findings, lambda *_: None, in_log)
    return findings
