"""Every kind of damage to packs and catalog is found and named; what is sound passes."""

from contextlib import closing

import pytest

from holdfast.errors import CatalogError, SettingsError
from holdfast.format.packs import HEADER_BYTES
from holdfast.objects.pack_reader import Pack
from holdfast.objects.store import MemoryObjects
from holdfast.storage.catalog_check import Findings
from holdfast.storage.check import verify_catalog
from holdfast.storage.open_objects import claim
from tests.storage.filled import Filled

JSON = "application/json"
NAMES = ("notes", "events", "gone")


@pytest.fixture
def data(tmp_path):
    """Two packs in use; the second one ends a stream of the first."""
    with closing(Filled(tmp_path)) as filled:
        notes = filled.create("notes", b"first")
        events = filled.create("events", b'{"a":1}\x1e', JSON)
        gone = filled.create("gone", b"to be deleted")
        filled.flush()
        filled.append(notes, b"second")
        filled.append(events, b'{"a":2}\x1e{"a":3}\x1e', producer=(b"p", 0, 4))
        filled.delete(gone)
        filled.flush()
        filled.numbers = dict(zip(NAMES, (notes, events, gone), strict=True))
        yield filled


def damage(findings):
    return [(each.where, each.what) for each in findings.of("damage")]


def notes(findings):
    return [(each.where, each.what) for each in findings.of("note")]


def test_what_is_sound_passes_without_a_word(data):
    for findings in (data.verify(), data.verify_store()):
        assert findings.ok
        assert notes(findings) == []


def test_an_empty_catalog_and_an_empty_store_are_sound(tmp_path):
    with closing(Filled(tmp_path)) as empty:
        assert empty.verify().ok
        assert empty.verify_store().ok


class TestPacks:
    def test_any_bit_that_turns_over_is_found_in_the_pack_it_is_in(self, data):
        _, pack = data.in_use()
        for at in range(len(data.store.objects[pack][0])):
            data.flip(pack, at)
            assert pack in {where for where, _ in damage(data.verify())}, at
            data.flip(pack, at)
        assert data.verify().ok

    @pytest.mark.parametrize(
        ("part", "says"),
        [
            ("header", "its header is damaged"),
            ("data", "the extent of stream 100000 at offset 5 does not match its checksum"),
            ("lengths", "its message index is damaged"),
            ("directory", "its directory is damaged"),
            ("delta", "its delta is damaged"),
            ("footer", "its footer is damaged"),
        ],
    )
    def test_it_is_said_which_part_is_damaged(self, data, part, says):
        _, pack = data.in_use()
        footer = Pack(data.store, pack).footer
        at = {
            "header": 3,
            "data": HEADER_BYTES + 2,
            "lengths": footer.lengths_at,
            "directory": footer.directory_at + 1,
            "delta": footer.delta_at + 1,
            "footer": footer.footer_at + 20,
        }[part]
        data.flip(pack, at)
        assert (pack, says) in damage(data.verify())

    def test_every_damaged_extent_of_a_pack_is_named(self, data):
        first, _ = data.in_use()
        data.flip(first, HEADER_BYTES)
        data.flip(first, HEADER_BYTES + 6)
        said = [what for where, what in damage(data.verify()) if where == first]
        assert len(said) == 2
        assert "100000" in said[0]
        assert "200000" in said[1]

    def test_damage_to_a_stream_that_is_gone_is_only_noted(self, data):
        first, _ = data.in_use()
        data.flip(first, HEADER_BYTES + len(b'first{"a":1}\x1e'))
        findings = data.verify()
        assert findings.ok
        ((where, what),) = notes(findings)
        assert where == first
        assert what.endswith("does not match its checksum; the stream is gone")

    @pytest.mark.parametrize("left", [0, 10, 300])
    def test_a_truncated_pack(self, data, left):
        first, _ = data.in_use()
        whole, modified_ms = data.store.objects[first]
        data.store.objects[first] = (whole[:left], modified_ms)
        (found,) = [what for where, what in damage(data.verify()) if where == first]
        assert "too short" in found or "footer" in found

    def test_a_missing_pack(self, data):
        first, _ = data.in_use()
        del data.store.objects[first]
        assert damage(data.verify()) == [
            (first, "it is in use, and memory:// does not have it"),
        ]

    def test_a_pack_that_is_not_in_use_is_only_noted(self, data):
        data.append(data.numbers["notes"], b"never committed")
        (orphan,) = data.upload_only()
        size = len(data.store.objects[orphan][0])
        findings = data.verify()
        assert findings.ok
        assert notes(findings) == [
            (orphan, f"an orphan, which nothing refers to; {size} bytes"),
        ]
        data.flip(orphan, size - 1)
        findings = data.verify()
        assert findings.ok
        assert "and unfinished: its footer is damaged" in notes(findings)[0][1]

    def test_packs_out_of_use_are_counted(self, data):
        data.merge()
        findings = data.verify()
        assert findings.ok
        ((where, what),) = notes(findings)
        assert where == "packs"
        assert what.startswith("2 packs are out of use and wait to be removed; ")

    def test_json_that_does_not_end_with_a_separator(self, tmp_path):
        with closing(Filled(tmp_path)) as filled:
            filled.create("events", b'{"a":1}', JSON)
            (pack,) = filled.flush()
            assert damage(filled.verify()) == [
                (pack, "stream 100000 (_default/events) is JSON, but no message ends at 7"),
            ]

    def test_without_a_catalog_a_gap_is_found(self, data):
        data.append(data.numbers["notes"], b"third")
        data.flush()
        _, second, _ = data.in_use()
        del data.store.objects[second]
        where, what = damage(data.verify_store())[0]
        assert where == "packs"
        assert what.startswith("positions 4 to 6 of the log are in no sound pack, although later")


class TestCatalog:
    @pytest.mark.parametrize(
        "change",
        [
            "length = length + 1",
            "start = start + 1",
            "data_at = data_at + 1",
            "message_at = message_at + 1",
            "messages = messages + 1",
            "first_position = first_position - 1",
            "last_position = last_position + 1",
            "sums = x'00'",
            "pack = 2",
        ],
    )
    def test_an_extent_that_is_not_as_in_its_pack(self, data, change):
        number = data.numbers["notes"]
        data.change(f"UPDATE extents SET {change} WHERE stream = ? AND start = 0", number)
        assert "catalog.sqlite" in {where for where, _ in damage(data.verify())}

    @pytest.mark.parametrize(
        ("statement", "says"),
        [
            (
                "DELETE FROM extents WHERE stream = 1048576 AND start = 5",
                "stream 100000 (_default/notes) misses bytes 5 to 11, its end",
            ),
            (
                "UPDATE extents SET stream = 7 WHERE stream = 1048576 AND start = 5",
                "6 bytes belong to stream 7, which does not exist",
            ),
            (
                "UPDATE extents SET pack = 9 WHERE stream = 1048576 AND start = 5",
                "1 extents are in packs that are not in use",
            ),
            (
                "DELETE FROM streams WHERE number = 1048576",
                "the row of stream 100000 is not the packs'",
            ),
            (
                "UPDATE streams SET deadline_ms = 5 WHERE number = 1048576",
                "the row of stream 100000 (_default/notes) is not the one it is for",
            ),
            (
                "UPDATE streams SET row = x'00' WHERE number = 1048576",
                "the row of stream 100000 cannot be decoded",
            ),
            ("UPDATE facts SET value = 5 WHERE name = 'flushed'", "they reach 6"),
            (
                "UPDATE facts SET value = 9 WHERE name = 'streams'",
                "its 'streams' is 9, and counting gives 2",
            ),
            (
                "UPDATE facts SET value = 9 WHERE name = 'stored_bytes'",
                "its 'stored_bytes' is 9, and counting gives 35",
            ),
            ("UPDATE packs SET dead_bytes = 0 WHERE id = 1", "0 bytes of packs/"),
            ("UPDATE packs SET rows = 7, salt = x'00' WHERE id = 1", "about rows, salt"),
            ("UPDATE packs SET has_delta = 77 WHERE id = 1", "about has_delta"),
            ("UPDATE packs SET after = 4 WHERE id = 2", "positions 4 to 4 are in no pack"),
            ("UPDATE packs SET after = 2 WHERE id = 2", "overlaps with the pack before it"),
            (
                "UPDATE streams SET visible_from = 3 WHERE number = 1048576",
                "the row of stream 100000 (_default/notes) is not the one it is for",
            ),
            (
                "DELETE FROM times WHERE first_position > 1",
                "it has times up to position 3, and is flushed up to 6",
            ),
            (
                "DELETE FROM times WHERE first_position = 1",
                "it has times for positions 4 to 6 after those up to 0",
            ),
            (
                "UPDATE packs SET retired_ms = 1 WHERE id = 2",
                "packs reach position 6, and they reach 3",
            ),
        ],
    )
    def test_a_row_that_does_not_fit(self, data, statement, says):
        data.change(statement)
        said = [what for where, what in damage(data.verify()) if where == "catalog.sqlite"]
        assert [what for what in said if says in what], said

    def test_a_stream_that_was_deleted_and_is_back(self, data):
        data.change(
            "INSERT INTO streams SELECT ?, 'again', NULL, start, snapshot, row, 0, NULL, "
            "visible_from, hidden_at FROM streams WHERE number = 1048576",
            data.numbers["gone"],
        )
        said = " ".join(what for _, what in damage(data.verify()))
        assert "it has stream 300000, which packs/" in said

    def test_a_stream_that_no_pack_knows(self, data):
        data.change(
            "INSERT INTO streams SELECT 9, 'made up', NULL, start, snapshot, row, 0, NULL, "
            "visible_from, hidden_at FROM streams WHERE number = 1048576"
        )
        said = " ".join(what for _, what in damage(data.verify()))
        assert "it has 3 streams, and the packs have 2" in said

    def test_a_pack_of_one_stream_that_no_other_names(self, data, monkeypatch):
        monkeypatch.setattr("holdfast.storage.flush.OWN_PACK_BYTES", 100)
        data.append(data.numbers["notes"], b"large" * 100)
        own, main = data.flush()
        if Pack(data.store, own).delta().meta.has_delta:
            own, main = main, own
        assert data.verify().ok
        data.change("DELETE FROM packs WHERE name = ?", main)
        assert (
            own,
            "it is in use, and no other pack names it: a rebuild would not find it",
        ) in damage(data.verify())

    def test_a_file_that_sqlite_finds_damaged(self, data):
        data.close()
        content = bytearray(data.path.read_bytes())
        # The second page is the root of a table; its first byte says what kind of page it is.
        content[4096] = 0x7F
        data.path.write_bytes(content)
        with pytest.raises(CatalogError, match="malformed"):
            data.verify()

    def test_a_file_that_is_no_catalog(self, data):
        data.close()
        data.path.write_bytes(b"something else" * 500)
        with pytest.raises(CatalogError, match="file is not a database"):
            data.verify()

    def test_of_many_findings_in_one_place_the_first_are_given(self, data):
        for at in range(30):
            data.change("INSERT INTO extents VALUES (?, 0, 1, 1, 0, 0, 1, 1, 1, x'00')", at)
        said = [what for where, what in damage(data.verify()) if where == "catalog.sqlite"]
        assert len(said) == 11
        assert said[-1].startswith("and ")

    def test_the_store_of_another_directory_is_refused_at_once(self, data):
        other = MemoryObjects(data.clock)
        claim(other, "somebody else")
        with pytest.raises(SettingsError, match="belongs to another data directory"):
            verify_catalog(other, data.path, Findings(), lambda done, total: None)
