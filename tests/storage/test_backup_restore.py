"""Restoring: a store of its own, every byte verified, and going on where it was cut short."""

import pytest

from holdfast.errors import HoldfastError, ObjectMissingError, PackCorruptError, SettingsError
from holdfast.objects.pack_reader import Pack
from holdfast.objects.store import MemoryObjects
from holdfast.storage.backup import Restore
from holdfast.storage.catalog import Catalog
from holdfast.storage.open_objects import claim
from holdfast.testing import FakeClock, FaultyObjects
from tests.storage.backup_source import Source, ignore, log_segment, pack_names


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def place(clock):
    return FaultyObjects(MemoryObjects(clock))


@pytest.fixture
def target(clock):
    return FaultyObjects(MemoryObjects(clock))


@pytest.fixture
def made(tmp_path, clock, place):
    """A backup of three packs, a catalog and a log."""
    source = Source(tmp_path, MemoryObjects(clock), clock)
    for number in range(3):
        source.flush(a=b"something %d" % number, **{f"s{number}": b"once"})
    return source.back_up(place, [log_segment(1, 3, 4), log_segment(2, 5, 5, b"another")])


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "restored"
    (path / "log").mkdir(parents=True)
    return path


def restore(made, place, target, directory):
    running = Restore(made, place, target, "new-mark")
    running.claim_store()
    running.find_missing()
    running.copy_packs(ignore)
    running.copy_snapshots(ignore)
    running.copy_catalog(directory / "catalog.sqlite", ignore)
    running.copy_log(directory / "log", ignore)
    return running


def test_everything_is_there(made, place, target, directory):
    running = restore(made, place, target, directory)
    assert len(running.missing.packs) == 3
    assert claim(target, "whoever asks") == "new-mark"
    catalog = Catalog(directory / "catalog.sqlite")
    try:
        assert catalog.fact("store") == "new-mark"
        totals = catalog.totals()
        assert (totals.flushed, totals.streams, totals.packs) == (3, 4, 3)
        assert catalog.find_name("a").tail == 3 * len(b"something 0")
        count, writer = catalog.find_producer(catalog.find_name("a").number, b"writer")
        assert (count, writer.epoch) == (1, 3)
        for extent in catalog.extents(catalog.find_name("a").number, 0, 10):
            assert target.read(extent.pack, extent.data_at, extent.length).startswith(b"something")
    finally:
        catalog.close()
    for pack in made.packs:
        assert sum(Pack(target, pack.name).verify())
    log = {path.name: path.read_bytes() for path in (directory / "log").iterdir()}
    assert log == {
        "0000000001.seg": log_segment(1, 3, 4).data,
        "0000000002.seg": log_segment(2, 5, 5, b"another").data,
    }
    assert {path.name for path in directory.iterdir()} == {"catalog.sqlite", "log"}


def test_it_goes_on_where_it_was_cut_short(made, place, target, directory):
    first = Restore(made, place, target, "new-mark")
    first.claim_store()
    first.find_missing()
    first.copy_packs(ignore)
    target.remove(made.packs[1].name)
    # What else an attempt may leave behind.
    (directory / "catalog.sqlite").write_bytes(b"half a catalog")
    (directory / "catalog.sqlite-wal").write_bytes(b"not of this catalog")
    (directory / "log" / "0000000009.seg").write_bytes(b"not of this log")
    again = restore(made, place, target, directory)
    assert again.missing.packs == [made.packs[1]]
    assert pack_names(target) == {pack.name for pack in made.packs}
    assert len(list((directory / "log").iterdir())) == 2
    catalog = Catalog(directory / "catalog.sqlite")
    assert catalog.flushed == 3
    catalog.close()


def test_a_backup_without_a_catalog(tmp_path, clock, place, target, directory):
    """The catalog is a new one, which knows its store; everything is in the log."""
    running = Source(tmp_path, MemoryObjects(clock), clock).backup(place)
    running._path = tmp_path / "none"
    with running:
        running.copy_log([log_segment(1, 1, 4)], ignore)
        running.copy_catalog(ignore)
        made = running.finish()
    restore(made, place, target, directory)
    catalog = Catalog(directory / "catalog.sqlite")
    assert catalog.flushed == 0
    assert catalog.fact("store")
    catalog.close()
    assert (directory / "log" / "0000000001.seg").read_bytes() == log_segment(1, 1, 4).data


class TestStores:
    def test_one_of_another_data_directory_is_refused(self, made, place, target, directory):
        claim(target, "somebody-else")
        with pytest.raises(SettingsError, match="belongs to another data directory"):
            restore(made, place, target, directory)
        assert pack_names(target) == set()

    @pytest.mark.parametrize(
        "name", ["packs/some.pack", "snapshots/1/2", "backups/x/manifest.json"]
    )
    def test_one_that_is_not_empty_is_refused(self, made, place, target, directory, name):
        target.put(name, b"")
        what = name.partition("/")[0]
        with pytest.raises(SettingsError, match=f"is not empty: it holds {what}"):
            restore(made, place, target, directory)
        assert [info.name for info in target.list()] == [name]

    def test_the_place_of_the_backups_is_refused(self, made, place, directory):
        with pytest.raises(SettingsError, match="it holds backups"):
            restore(made, place, place, directory)

    def test_one_that_another_server_claims_first(self, made, place, clock, directory):
        class Contested(MemoryObjects):
            def create(self, name, data):
                super().create(name, data.replace(b"new-mark", b"old-mark"))
                return False

        with pytest.raises(SettingsError, match="just claimed by another"):
            restore(made, place, Contested(clock), directory)


class TestDamagedBackups:
    def test_pack(self, made, place, target, directory):
        name = made.packs[0].name
        place.corrupt(name, 40)
        with pytest.raises(PackCorruptError, match=f"{name} is damaged.*It is in memory://"):
            restore(made, place, target, directory)
        assert name not in pack_names(target)

    @pytest.mark.parametrize("which", ["catalog", "log"])
    def test_flipped_byte(self, made, place, target, directory, which):
        damaged = made.catalog if which == "catalog" else made.log[1]
        place.corrupt(damaged.name, 3)
        with pytest.raises(HoldfastError, match=f"{damaged.name} .* does not match its checksum"):
            restore(made, place, target, directory)

    @pytest.mark.parametrize("which", ["catalog", "log"])
    def test_cut_short(self, made, place, target, directory, which):
        damaged = made.catalog if which == "catalog" else made.log[0]
        place.put(damaged.name, place.read(damaged.name)[:-1])
        with pytest.raises(HoldfastError, match=f"{damaged.name} .* does not match its checksum"):
            restore(made, place, target, directory)

    @pytest.mark.parametrize("which", ["pack", "catalog", "log"])
    def test_missing(self, made, place, target, directory, which):
        missing = {"pack": made.packs[2], "catalog": made.catalog, "log": made.log[0]}[which]
        place.remove(missing.name)
        with pytest.raises(ObjectMissingError, match=missing.name):
            restore(made, place, target, directory)
