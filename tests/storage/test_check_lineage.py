"""Forks, buckets, documents and snapshots that do not fit together are found and named."""

from contextlib import closing

import msgspec
import pytest

from holdfast.format.rows import BucketRow, decode_row, encode_bucket, encode_row
from tests.storage.filled import Filled

BODY = b"the state so far"


@pytest.fixture
def data(tmp_path):
    """A source and its forks, one of a fork, one of a stream that is deleted; two buckets."""
    with closing(Filled(tmp_path)) as filled:
        filled.source = filled.create("source", b"0123456789")
        filled.create_bucket("empty")
        filled.documents({"sub/1": b"one", "sub/2": b"two"})
        filled.flush()
        filled.old = filled.snapshot(filled.source, 4, BODY)
        filled.fork_one = filled.fork("one", filled.source, 8, b"abc")
        filled.nested = filled.fork("other/nested", filled.fork_one, 6)
        filled.flush()
        filled.new = filled.snapshot(filled.source, 10, BODY * 2)
        filled.doomed = filled.create("doomed", b"doomed")
        filled.orphan_fork = filled.fork("last", filled.doomed, 3)
        filled.delete(filled.doomed)
        filled.documents({"sub/1": None, "sub/2": b"2"})
        filled.flush()
        yield filled


def damage(findings):
    return [(each.where, each.what) for each in findings.of("damage")]


def said(data):
    return [what for where, what in damage(data.verify()) if where == "catalog.sqlite"]


def change_row(data, number, **fields):
    """Alter a row, with the columns that go with it."""
    [[encoded]] = data._catalog.read("SELECT row FROM streams WHERE number = ?", (number,))
    row = decode_row(encoded)
    for name, value in fields.items():
        setattr(row, name, value)
    snapshot = None if row.snapshot is None else row.snapshot.object
    data.change(
        "UPDATE streams SET row = ?, start = ?, snapshot = ? WHERE number = ?",
        encode_row(row),
        row.start,
        snapshot,
        number,
    )
    return row


def row_of(data, number):
    return data._catalog.find_number(number)


def test_what_is_sound_passes_without_a_word(data):
    for _ in range(3):
        assert damage(data.verify()) == damage(data.verify_store()) == []
        assert data.verify().of("note") == []
        if len(data.in_use()) > 1:
            data.merge()
            data.collect()


class TestForks:
    def test_count_that_is_wrong(self, data):
        change_row(data, data.source, forks=3)
        assert f"stream {data.source:x} says that it has 3 forks, and 1 name it" in said(data)

    def test_fork_that_its_source_does_not_know_of(self, data):
        change_row(data, data.doomed, forks=0)
        words = said(data)
        assert f"stream {data.doomed:x} says that it has 0 forks, and 1 name it" in words
        assert [what for what in words if what.endswith("no forks that would need it")]

    def test_source_that_is_missing(self, data):
        data.change("DELETE FROM streams WHERE number = ?", data.source)
        words = said(data)
        who = f"stream {data.fork_one:x} (_default/one)"
        assert f"{who} is a fork, and its source {data.source:x} is missing" in words
        who = f"stream {data.nested:x} (other/nested)"
        assert f"{who} is a fork, and its source {data.source:x} is missing" in words

    def test_source_that_ends_too_early(self, data):
        change_row(data, data.source, tail=7)
        words = " ".join(said(data))
        assert f"its source {data.source:x} ends at 7, before 8" in words

    def test_source_that_starts_too_late(self, data):
        change_row(data, data.source, start=5)
        words = said(data)
        who = f"stream {data.fork_one:x} (_default/one)"
        assert f"{who} is a fork, and its source {data.source:x} starts at 5, behind 4" in words

    def test_bytes_that_the_fork_itself_cannot_ask_for_need_not_be_there(self, data):
        data.snapshot(data.fork_one, 9, BODY)
        data.snapshot(data.nested, 6, BODY)
        data.flush()
        assert row_of(data, data.source).start == 4
        assert damage(data.verify()) == []

    def test_start_for_readers_that_is_not_at_the_snapshot(self, data):
        change_row(data, data.source, earliest=3)
        who = f"stream {data.source:x} (_default/source)"
        assert f"{who} can be read from 3 on, and its snapshot is at 10" in said(data)


class TestBuckets:
    @pytest.mark.parametrize("change", [{"streams": 9}, {"size_bytes": 12}])
    def test_sum_that_is_wrong(self, data, change):
        # Nine bytes of streams, and the rest of their snapshots and of a deleted source.
        bucket = msgspec.structs.replace(BucketRow(1, False, 3, 63), **change)
        data.change(
            "UPDATE documents SET value = ? WHERE key = 'bucket/_default'", encode_bucket(bucket)
        )
        words = " ".join(said(data))
        assert f"holds {bucket.streams} streams with {bucket.size_bytes} bytes" in words
        assert "and it holds 3 with 63" in words

    def test_bucket_that_is_missing(self, data):
        data.change("DELETE FROM documents WHERE key = 'bucket/other'")
        assert "there is no bucket 'other', and 1 streams are in it" in said(data)

    def test_bucket_that_nobody_created_or_uses(self, data):
        value = encode_bucket(BucketRow(1))
        data.change("UPDATE documents SET value = ? WHERE key = 'bucket/empty'", value)
        assert "the bucket 'empty' is empty, and nobody created it" in said(data)

    def test_row_that_is_none(self, data):
        data.change("UPDATE documents SET value = x'00' WHERE key = 'bucket/other'")
        assert "the row of the bucket 'other' cannot be decoded" in " ".join(said(data))


class TestDocuments:
    @pytest.mark.parametrize(
        ("statement", "says"),
        [
            ("UPDATE documents SET value = x'00' WHERE key = 'sub/2'", "'sub/2' is not the packs'"),
            ("DELETE FROM documents WHERE key = 'sub/2'", "'sub/2' is not the packs'"),
            ("INSERT INTO documents VALUES ('sub/1', x'00')", "'sub/1' is not the packs'"),
            ("INSERT INTO documents VALUES ('sub/9', x'00')", "'sub/9', which no pack has"),
            ("DELETE FROM documents WHERE key = 'bucket/empty'", "'bucket/empty' is not the"),
            ("UPDATE facts SET value = 9 WHERE name = 'flushed_ms'", "its 'flushed_ms' is 9, and"),
        ],
    )
    def test_document_that_is_not_the_packs(self, data, statement, says):
        data.change(statement)
        assert says in " ".join(said(data))

    def test_bucket_that_was_created_and_no_pack_has(self, data):
        data.change(
            "INSERT INTO documents VALUES ('bucket/made', ?)", encode_bucket(BucketRow(1, True))
        )
        assert "it has a document 'bucket/made', which no pack has" in said(data)


class TestSnapshots:
    def test_body_that_is_missing(self, data):
        del data.store.objects[data.new]
        [(where, what)] = damage(data.verify())
        assert where == data.new
        assert what == (
            f"it is the snapshot of stream {data.source:x} (_default/source), "
            "and memory:// does not have it"
        )

    def test_any_bit_that_turns_over(self, data):
        for at in range(len(BODY)):
            data.flip(data.old, at)
            [(where, what)] = damage(data.verify())
            assert where == data.old
            assert what.startswith(f"the snapshot of stream {data.fork_one:x} (_default/one): it")
            assert "does not match its checksum" in what
            data.flip(data.old, at)
        assert data.verify().ok

    @pytest.mark.parametrize("change", [-1, 1])
    def test_body_of_another_length(self, data, change):
        body, modified_ms = data.store.objects[data.new]
        data.store.objects[data.new] = ((body + b"x")[: len(body) + change], modified_ms)
        [(where, what)] = damage(data.verify())
        assert where == data.new
        assert f"it has {len(body) + change} bytes instead of {len(body)}" in what

    def test_empty_body(self, data):
        name = data.snapshot(data.fork_one, 11, b"")
        data.flush()
        assert data.verify().ok
        data.store.put(name, b"x")
        assert not data.verify().ok

    def test_large_body(self, data, monkeypatch):
        monkeypatch.setattr("holdfast.storage.copying.PIECE_BYTES", 7)
        name = data.snapshot(data.fork_one, 11, bytes(50))
        data.flush()
        assert data.verify().ok
        for at in (0, 20, 49):
            data.flip(name, at)
            assert not data.verify().ok
            data.flip(name, at)

    def test_forks_that_say_different_things_of_one_body(self, data):
        row = row_of(data, data.nested)
        change_row(data, data.nested, snapshot=msgspec.structs.replace(row.snapshot, size_bytes=1))
        assert f"disagree about {data.old}" in " ".join(said(data))

    def test_orphans_and_those_out_of_use_are_only_noted(self, data):
        data.store.put("snapshots/zzz", b"left behind")
        data.snapshot(data.source, 10)
        data.flush()
        findings = data.verify()
        assert findings.ok
        assert [(each.where, each.what) for each in findings.of("note")] == [
            ("snapshots", "snapshots/zzz is an orphan, which nothing refers to; 11 bytes"),
            (
                "snapshots",
                f"1 snapshots are out of use and wait to be removed; {2 * len(BODY)} bytes",
            ),
        ]

    def test_body_that_the_log_has_published(self, data):
        name = data.snapshot(data.fork_one, 11)
        findings = data.verify()
        assert findings.ok
        assert findings.of("note") == []
        data.flip(name, 0)
        [(where, what)] = damage(data.verify())
        assert where == name
        assert f"stream {data.fork_one:x} at position {data.position} of the log" in what
        del data.store.objects[name]
        assert [where for where, _ in damage(data.verify())] == [name]
        data.published.clear()
        assert data.verify().ok
