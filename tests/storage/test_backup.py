"""Backups: what they consist of, what they leave out, and what goes wrong without harm."""

import sqlite3
import threading
import time
from contextlib import closing, suppress

import msgspec
import pytest

from holdfast import __version__
from holdfast.errors import (
    CatalogError,
    HoldfastError,
    LogCorruptError,
    ObjectMissingError,
    PackCorruptError,
    SettingsError,
    StoreError,
    UnknownFormatError,
)
from holdfast.format.packs import HEADER_BYTES
from holdfast.objects.store import MemoryObjects
from holdfast.storage.backup import PIN_MS, Backup
from holdfast.storage.commands import CollectGarbage
from holdfast.storage.copying import PIECE_BYTES, verified_pieces
from holdfast.storage.manifest import (
    CopiedPack,
    Manifest,
    backup_ids,
    find_backups,
    new_id,
    newest,
    read_manifest,
    timestamp,
    write_manifest,
)
from holdfast.storage.open_objects import claim
from holdfast.testing import FakeClock, FaultyObjects
from tests.storage.backup_source import Source, ignore, log_segment, pack_names

LARGE = 3 * PIECE_BYTES + 12_345


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def place(clock):
    return FaultyObjects(MemoryObjects(clock))


@pytest.fixture
def source(tmp_path, clock):
    return Source(tmp_path, FaultyObjects(MemoryObjects(clock)), clock)


def names(store):
    return [info.name for info in store.list()]


def copied_catalog(place, made, path):
    path.write_bytes(place.read(made.catalog.name))
    return closing(sqlite3.connect(path))


class TestWhatItConsistsOf:
    def test_everything_is_named_in_the_manifest(self, source, place, clock):
        source.flush(a=b"one", b=b"two")
        source.flush(a=b"three")
        log = [log_segment(1, 2, 3), log_segment(2, 4, 5, b"another")]
        made = source.back_up(place, log)
        assert made == read_manifest(place, made.id) == newest(place)
        assert made.format == 1
        assert made.holdfast == __version__
        assert made.created == timestamp(clock.now_ms())
        assert made.position == 5
        assert made.store == "mark-of-source"
        # Of the log, what the catalog does not have.
        assert (made.streams, made.stored_bytes, made.log_appends) == (2, 18, 1)
        assert {pack.name for pack in made.packs} == source.packs
        sizes = [len(segment.data) for segment in log]
        assert [each.size_bytes for each in made.log] == sizes
        assert [each.first_position for each in made.log] == [2, 4]
        own = f"backups/{made.id}/"
        assert names(place) == [
            f"{own}catalog.sqlite",
            f"{own}log/0000000001.seg",
            f"{own}log/0000000002.seg",
            f"{own}manifest.json",
            *sorted(source.packs),
        ]
        assert made.size_bytes == sum(
            info.size_bytes for info in place.list() if not info.name.endswith("manifest.json")
        )

    def test_ids_and_times_sort(self, clock):
        made = [new_id(clock, now_ms) for now_ms in range(0, 4_000_000_000_000, 99_999_999_999)]
        assert made == sorted(made)
        assert new_id(clock, 1_794_773_700_000).startswith("20261115T201500Z-")
        assert timestamp(1_794_773_700_007) == "2026-11-15T20:15:00.007Z"

    def test_a_second_one_copies_only_what_is_new(self, source, place):
        source.flush(a=b"one")
        source.back_up(place)
        place.calls.clear()
        source.flush(a=b"two")
        with source.backup(place) as running:
            running.copy_log([], ignore)
            running.copy_catalog(ignore)
            new_bytes = running.find_missing()
            running.copy_packs(ignore)
            made = running.finish()
        (new,) = running.missing.packs
        assert new_bytes == new.size_bytes == source.store.size(new.name)
        # The pack and the manifest; the catalog goes in parts.
        assert place.calls["put"] == 2
        assert len(made.packs) == 2
        assert pack_names(place) == source.packs

    def test_a_pack_of_another_size_is_copied_again(self, source, place):
        source.flush(a=b"one")
        (name,) = source.packs
        place.put(name, b"not a pack")
        source.back_up(place)
        assert place.read(name) == source.store.read(name)

    def test_large_packs_go_in_pieces(self, source, place):
        pieces = []
        source.flush(a=bytes(range(256)) * (LARGE // 256), b=b"small")
        with source.backup(place) as running:
            running.copy_catalog(ignore)
            size = running.find_missing()
            running.copy_packs(pieces.append)
            running.finish()
        assert sum(pieces) == size > LARGE
        assert max(pieces) == PIECE_BYTES
        for name in source.packs:
            assert place.read(name) == source.store.read(name)

    def test_what_is_out_of_use_stays_behind_and_so_do_pins(self, source, place, tmp_path):
        source.flush(a=b"one")
        source.flush(a=b"two")
        source.merge()
        made = source.back_up(place)
        assert {pack.name for pack in made.packs} == source.packs == pack_names(place)
        with copied_catalog(place, made, tmp_path / "copy") as catalog:
            assert catalog.execute("SELECT count(*) FROM packs").fetchone() == (1,)
            assert catalog.execute("SELECT count(*) FROM pins").fetchone() == (0,)
            assert catalog.execute("PRAGMA journal_mode").fetchone() == ("delete",)

    def test_an_empty_server(self, source, place):
        made = source.back_up(place)
        assert (made.position, made.streams, made.packs, made.log) == (0, 0, [], [])
        assert made.catalog is not None


class TestLogAndCatalog:
    def test_log_that_the_catalog_has_overtaken_is_dropped(self, source, place):
        source.flush(a=b"one")
        with source.backup(place) as running:
            running.copy_log([log_segment(1, 1, 1), log_segment(2, 2, 3)], ignore)
            source.flush(a=b"two")
            source.flush(a=b"three")
            running.copy_catalog(ignore)
            made = running.finish()
        assert made.log == []
        assert made.position == 3
        assert not [name for name in names(place) if "/log/" in name]

    def test_of_a_log_that_is_overtaken_in_part_the_rest_stays(self, source, place):
        source.flush(a=b"one")
        with source.backup(place) as running:
            log = [log_segment(1, 1, 1), log_segment(2, 2, 2), log_segment(3, 3, 5)]
            running.copy_log(log, ignore)
            source.flush(a=b"two")
            source.flush(a=b"three")
            running.copy_catalog(ignore)
            made = running.finish()
        assert [(each.first_position, each.last_position) for each in made.log] == [(3, 5)]
        assert made.position == 5
        assert [name for name in names(place) if "/log/" in name] == [made.log[0].name]

    def test_segments_before_a_new_beginning_are_void(self, source, place):
        source.flush(a=b"one")
        source.flush(a=b"two")
        log = [log_segment(1, 1, 1), log_segment(2, 2, 2), log_segment(1, 3, 4, b"anew")]
        made = source.back_up(place, log)
        assert [(each.first_position, each.last_position) for each in made.log] == [(3, 4)]
        assert [name for name in names(place) if "/log/" in name] == [made.log[0].name]
        assert place.read(made.log[0].name) == log[-1].data

    def test_a_gap_is_refused(self, source, place):
        source.flush(a=b"one")
        with pytest.raises(LogCorruptError, match=r"starts at position 3, but .* covers only 1"):
            source.back_up(place, [log_segment(1, 3, 4)])
        assert names(place) == []

    def test_the_log_is_needed_from_where_the_catalog_is(self, source, place):
        source.flush(a=b"one")
        source.flush(a=b"two")
        with source.backup(place) as running:
            assert running.flushed == 2

    def test_without_a_catalog_there_is_the_log_alone(self, tmp_path, place, clock):
        store = MemoryObjects(clock)
        for content in (None, b""):
            path = tmp_path / "catalog.sqlite"
            if content is not None:
                path.write_bytes(content)
            with Backup(path, store, place, clock) as running:
                assert running.flushed == 0
                running.copy_log([log_segment(1, 1, 4)], ignore)
                running.copy_catalog(ignore)
                assert running.find_missing() == 0
                running.copy_packs(ignore)
                made = running.finish()
            assert made.catalog is None
            assert made.position == 4
            assert not path.exists() or path.read_bytes() == b""

    def test_without_a_catalog_the_log_must_be_whole(self, tmp_path, place, clock):
        with Backup(tmp_path / "none", MemoryObjects(clock), place, clock) as running:
            running.copy_log([log_segment(1, 5, 6)], ignore)
            with pytest.raises(LogCorruptError, match="starts at position 5"):
                running.copy_catalog(ignore)

    def test_what_is_no_catalog_is_left_as_it_is(self, tmp_path, place, clock):
        path = tmp_path / "catalog.sqlite"
        with closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE somebody_elses (x)")
        with pytest.raises(CatalogError, match="is not a catalog"):
            Backup(path, MemoryObjects(clock), place, clock).__enter__()
        with closing(sqlite3.connect(path)) as other:
            assert other.execute("SELECT name FROM sqlite_master").fetchall() == [
                ("somebody_elses",)
            ]

    def test_a_damaged_catalog_is_refused(self, source, place):
        for number in range(40):
            source.flush(**{f"stream-{number}": b"data"})
        source.catalog.close()
        data = bytearray(source.path.read_bytes())
        data[-4096 * 2 : -4096] = b"\xff" * 4096
        source.path.write_bytes(data)
        with pytest.raises(CatalogError):
            source.back_up(place)
        assert names(place) == []


class TestPins:
    def test_packs_in_use_stay_while_it_runs(self, source, place):
        source.flush(a=b"one")
        source.flush(a=b"two")
        old = source.packs
        with source.backup(place) as running:
            assert source.pins == [f"backup-{running.id}"]
            running.copy_log([], ignore)
            running.copy_catalog(ignore)
            source.merge()
            source.worker.handle(CollectGarbage())
            running.find_missing()
            running.copy_packs(ignore)
            running.finish()
        assert pack_names(place) == old
        assert source.pins == []
        source.worker.handle(CollectGarbage())
        assert pack_names(source.store) == source.packs

    def test_a_merge_that_had_to_wait_for_the_pin(self, source, place):
        """It says that its sources went out of use before the pin was there."""
        source.flush(a=b"one")
        source.flush(a=b"two")
        earlier_ms = source.clock.now_ms()
        source.clock.advance(5)
        with source.backup(place) as running:
            running.copy_catalog(ignore)
            source.merge()
            with source.catalog.transaction() as connection:
                connection.execute(
                    "UPDATE packs SET retired_ms = ? WHERE retired_ms IS NOT NULL", (earlier_ms,)
                )
            source.worker.handle(CollectGarbage())
            running.find_missing()
            running.copy_packs(ignore)
            running.finish()

    def test_the_pin_of_a_killed_one_runs_out(self, source, place):
        source.flush(a=b"one")
        source.flush(a=b"two")
        source.backup(place).__enter__()
        source.merge()
        source.worker.handle(CollectGarbage())
        assert len(pack_names(source.store)) == 3
        source.clock.advance(PIN_MS / 1000 + 1)
        source.worker.handle(CollectGarbage())
        assert pack_names(source.store) == source.packs

    def test_it_is_renewed_while_packs_are_copied(self, source, place):
        for number in range(5):
            source.flush(**{f"s{number}": b"data"})
        hours = PIN_MS / 3_600_000
        with source.backup(place) as running:
            running.copy_catalog(ignore)
            running.find_missing()
            running.copy_packs(lambda _: source.clock.advance(0.9 * hours * 3600))
            (until_ms,) = source.catalog.read("SELECT until_ms FROM pins")[0]
            assert until_ms > source.clock.now_ms()

    def test_it_is_lifted_whatever_goes_wrong(self, source, place):
        for error in (StoreError("down"), KeyboardInterrupt(), SystemExit(143)):
            with pytest.raises(type(error)):
                with source.backup(place):
                    raise error
            assert source.pins == []


class TestFailures:
    def test_every_flipped_byte_is_noticed(self, source):
        """Apart from header and padding, which nobody reads, all bytes have a checksum."""
        source.flush(a=b"some bytes", b=b"and others", c=b"of odd length")
        (name,) = source.packs
        data = source.store.read(name)
        pack = CopiedPack(name, len(data))
        assert b"".join(verified_pieces(source.store, pack)) == data
        unnoticed = []
        for at in range(len(data)):
            source.store.heal()
            source.store.corrupt(name, at)
            with suppress(PackCorruptError, UnknownFormatError):
                unnoticed += [at for _ in verified_pieces(source.store, pack)]
        behind_data = HEADER_BYTES + len(b"some bytesand othersof odd length")
        assert unnoticed == [*range(HEADER_BYTES), *range(behind_data, behind_data + 7)]

    @pytest.mark.parametrize("at", [HEADER_BYTES, PIECE_BYTES - 1, PIECE_BYTES, LARGE - 1])
    def test_flipped_bytes_of_large_packs(self, source, place, at):
        source.flush(a=bytes(LARGE))
        (large,) = (row.name for row in source.catalog.packs() if row.size_bytes > LARGE)
        source.store.corrupt(large, at)
        with pytest.raises(PackCorruptError, match=rf"{large} is damaged: .* It is in memory://"):
            source.back_up(place)
        assert large not in names(place)

    def test_a_pack_that_is_cut_short(self, source, place):
        source.flush(a=b"one")
        (name,) = source.packs
        source.store.put(name, source.store.read(name)[:-1])
        with pytest.raises(PackCorruptError, match=name):
            source.back_up(place)
        assert names(place) == []

    def test_a_pack_that_is_missing(self, source, place):
        source.flush(a=b"one")
        (name,) = source.packs
        source.store.remove(name)
        with pytest.raises(ObjectMissingError, match=name):
            source.back_up(place)
        assert names(place) == []

    @pytest.mark.parametrize("operation", ["put", "put_parts", "list", "read"])
    def test_a_place_that_fails(self, source, place, operation):
        source.flush(a=b"one")
        source.back_up(place)
        source.flush(a=b"two")
        before = set(names(place))
        place.fail(operation)
        if operation == "read":
            with pytest.raises(StoreError):
                newest(place)
            return
        with pytest.raises(StoreError):
            source.back_up(place, [log_segment(1, 2, 4)])
        assert {name for name in names(place) if name.startswith("backups/")} <= before
        assert source.pins == []
        assert len(source.back_up(place).packs) == 2

    def test_a_manifest_of_which_nobody_knows_whether_it_is_there(self, source, place):
        """What it names is removed, so it goes first."""

        def fail():
            with source.backup(place) as running:
                running.copy_log([log_segment(1, 1, 4)], ignore)
                running.copy_catalog(ignore)
                place.fail("put", after_effect=True)
                running.finish()

        with pytest.raises(StoreError):
            fail()
        assert names(place) == []

    def test_one_pack_that_fails_ends_the_copying_of_all(self, source, place, monkeypatch):
        for number in range(20):
            source.flush(**{f"s{number}": b"data"})
        lost, has_failed = min(source.packs), threading.Event()
        source.store.remove(lost)
        read, put = source.store.read, place.put

        def failing_read(name, *where):
            if name == lost:
                has_failed.set()
            return read(name, *where)

        def waiting_put(name, data):
            assert has_failed.wait(10)
            # The thread that failed has to get its turn.
            time.sleep(0.02)
            put(name, data)

        monkeypatch.setattr(source.store, "read", failing_read)
        monkeypatch.setattr(place, "put", waiting_put)
        with pytest.raises(ObjectMissingError):
            source.back_up(place)
        assert place.calls["put"] < 19

    def test_another_store_than_the_servers(self, source, place, clock):
        source.flush(a=b"one")
        other = MemoryObjects(clock)
        for _ in range(2):
            with Backup(source.path, other, place, clock) as running:
                running.copy_catalog(ignore)
                with pytest.raises(SettingsError, match="settings of the server, such as --store"):
                    running.find_missing()
            claim(other, "somebody-else")

    def test_the_store_of_a_server_is_no_place_for_backups(self, source, clock):
        with pytest.raises(SettingsError, match="keeps its packs in, and removes them"):
            source.back_up(source.store)

    def test_nor_is_what_lies_among_its_packs(self, source, clock):
        for below in ("packs", "packs/backups"):
            inside = MemoryObjects(clock)
            source.store.url = "s3://bucket/prefix"
            inside.url = f"s3://bucket/prefix/{below}"
            with pytest.raises(SettingsError, match="Choose another place"):
                source.back_up(inside)


def manifest(backup, created="2026-11-15T20:15:00.000Z", **fields):
    return Manifest(
        id=backup,
        holdfast="0.1",
        created=created,
        position=0,
        store="",
        streams=0,
        stored_bytes=0,
        catalog=None,
        log=[],
        packs=[],
        **fields,
    )


class TestManifests:
    def test_none_at_all(self, place):
        assert find_backups(place) == []
        with pytest.raises(HoldfastError, match="There is no backup at memory://"):
            newest(place)

    def test_what_has_no_manifest_is_no_backup(self, place):
        place.put("backups/20261115T201500Z-000001/catalog.sqlite", b"")
        place.put("backups/20261115T201500Z-000001/log/0000000001.seg", b"")
        assert backup_ids(place) == []

    @pytest.mark.parametrize(
        "backup", ["20261115T201500Z-aaaaaa", "", ".", "..", "a/b", "../packs", "ü", "x y"]
    )
    def test_one_that_is_not_there(self, place, backup):
        with pytest.raises(HoldfastError, match=r"There is no backup .* shows those"):
            read_manifest(place, backup)

    def test_the_newest_of_a_second_is_the_one_begun_last(self, place):
        write_manifest(place, manifest("20261115T201459Z-ffffff", "2026-11-15T20:14:59.999Z"))
        write_manifest(place, manifest("20261115T201500Z-ffffff", "2026-11-15T20:15:00.100Z"))
        write_manifest(place, manifest("20261115T201500Z-000000", "2026-11-15T20:15:00.900Z"))
        assert newest(place).id == "20261115T201500Z-000000"
        assert [found.id[9:] for found in find_backups(place)] == [
            "201459Z-ffffff",
            "201500Z-ffffff",
            "201500Z-000000",
        ]

    @pytest.mark.parametrize("version", [2, 99, 0, -1])
    def test_unknown_formats_are_refused(self, place, version):
        """Whatever else is in them: a later format may have other fields."""
        text = msgspec.json.encode({"format": version, "id": ["another", "type"]})
        place.put("backups/20261115T201500Z-aaaaaa/manifest.json", text)
        with pytest.raises(UnknownFormatError, match=f"has the format {version}, and .* reads up"):
            newest(place)
        (found,) = find_backups(place)
        assert found.manifest is None
        assert f"format {version}" in found.trouble

    def test_fields_of_later_versions_are_passed_over(self, place):
        known = msgspec.json.decode(msgspec.json.encode(manifest("20261115T201500Z-aaaaaa")))
        text = msgspec.json.encode({**known, "labels": ["new"]})
        place.put("backups/20261115T201500Z-aaaaaa/manifest.json", text)
        assert newest(place) == manifest("20261115T201500Z-aaaaaa")

    @pytest.mark.parametrize(
        "text", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": "1"}', b"\xff"]
    )
    def test_damaged_ones_are_named(self, place, text):
        place.put("backups/20261115T201500Z-aaaaaa/manifest.json", text)
        with pytest.raises(HoldfastError, match=r"manifest of the backup 20261115T.* is damaged"):
            newest(place)
