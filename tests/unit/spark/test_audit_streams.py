"""What the places of streams say once they are sorted."""

import pickle

import pytest

from holdfast.format.packs import PackInfo
from holdfast.spark.auditing.audit import _batches, _found_batches, tiling_faults
from holdfast.spark.auditing.checks import (
    ENDED,
    EXTENT,
    FINDINGS_MAX,
    STATE,
    AuditFinding,
    PackReport,
    StreamFact,
    StreamsCheck,
)


def state(through, tail, start=0, stream=7):
    return StreamFact(stream, STATE, through, tail, start, name="demo/a")


def ended(through, stream=7):
    return StreamFact(stream, ENDED, through)


def extent(start, end, tail=30, needed=0, pack=0, stream=7):
    return StreamFact(stream, EXTENT, start, end, needed, tail, pack)


def found(*places):
    check = StreamsCheck()
    check.take(places)
    return check.finish()


def codes(*places):
    return [(each.code, each.at, each.what) for each in found(*places).findings]


@pytest.mark.parametrize(
    "places",
    [
        [],
        [state(1, 0)],
        [state(1, 30), extent(0, 10), extent(10, 30)],
        # The last word counts, wherever it comes.
        [state(9, 30), state(1, 10), extent(0, 10), extent(10, 30, pack=1)],
        # The stream has grown since the packs were listed.
        [state(1, 10), extent(0, 10)],
        # It was trimmed, before and while this was read.
        [state(1, 30, 15), extent(10, 30, needed=15)],
        [state(1, 30), extent(0, 10), extent(20, 30, needed=20)],
        [state(1, 30), extent(0, 10), extent(15, 30, needed=15)],
        # It ended.
        [state(1, 30), ended(2)],
        [ended(2)],
        # Two packs were merged after one of them was read.
        [state(1, 30), extent(0, 10), extent(0, 30, pack=-1), extent(0, 30, pack=-1)],
    ],
)
def test_sound(places):
    assert codes(*places) == []


@pytest.mark.parametrize(
    ("places", "code", "at", "words"),
    [
        ([state(1, 30, 9)], "absent", 0, "it misses bytes 9 to 30, all that it has"),
        ([state(1, 30), extent(0, 30, 30), ended(2)], "ended", 0, "it has ended, but the catalog"),
        ([state(1, 30), extent(5, 30)], "misses", 0, "it misses bytes 0 to 5"),
        ([state(1, 30, 5), extent(6, 30, needed=5)], "misses", 5, "it misses bytes 5 to 6"),
        ([state(1, 30), extent(0, 10), extent(20, 30)], "misses", 10, "it misses bytes 10 to 20"),
        ([state(1, 30), extent(0, 10), extent(10, 20)], "misses", 20, "bytes 20 to 30, its end"),
        ([state(1, 30), extent(0, 20), extent(10, 30)], "doubled", 10, "it has byte 10 twice"),
        ([state(1, 30), extent(0, 40)], "beyond", 30, "it ends at 30, but has bytes up to 40"),
        (
            [state(1, 30), extent(0, 30, 20)],
            "behind",
            20,
            "at 30, but at 20 according to the catalog",
        ),
        ([state(1, 30, 9), extent(0, 30)], "behind", 0, "at 9, but at 0 according to the catalog"),
        ([extent(0, 30)], "rowless", 0, "no pack has the row"),
    ],
)
def test_damage(places, code, at, words):
    first, *_ = codes(*places)
    assert first[:2] == (code, at)
    assert words in first[2]


def test_streams_are_looked_at_one_by_one():
    check = StreamsCheck()
    check.take([state(1, 10, stream=1)])
    check.take([extent(0, 10, 10, stream=1), state(1, 10, stream=2)])
    check.take([])
    check.take([extent(0, 5, 10, stream=2), ended(1, stream=3), state(1, 0, stream=4)])
    report = check.finish()
    assert [(each.stream, each.at) for each in report.findings] == [(2, 5)]
    assert report.streams == 3


def test_finding_says_who():
    (each,) = found(state(1, 10)).findings
    assert str(each.finding()) == "stream 7 (demo/a): it misses bytes 0 to 10, all that it has"
    (each,) = found(extent(0, 30)).findings
    assert each.finding().where == "stream 7"


def pack(after, through, size=100, has_delta=True):
    return PackInfo(
        f"packs/{after}-{through}", size, 0, 0, 0, 0, has_delta, after, through, "0", 0, []
    )


def test_findings_are_kept_up_to_a_number():
    report = found(*(state(1, 10, stream=stream) for stream in range(FINDINGS_MAX + 5)))
    assert (len(report.findings), report.left_out) == (FINDINGS_MAX, 5)
    of_pack = PackReport(pack(0, 9))
    for _ in range(FINDINGS_MAX + 5):
        of_pack.unused(None, "of no account")
        of_pack.pack_damaged("bad")
    assert len(of_pack.findings) == FINDINGS_MAX
    assert of_pack.left_out == FINDINGS_MAX // 2 + 5
    assert of_pack.findings[1] == AuditFinding("damage", "packs/0-9", "bad")


def test_deltas_stand_for_the_log():
    packs = [pack(0, 3), pack(1, 2, has_delta=False), pack(3, 9)]
    assert list(tiling_faults(packs, 9, 9)) == []
    # A flush came between the question and the list.
    assert list(tiling_faults(packs, 8, 12)) == []
    assert list(tiling_faults([], 0, 0)) == []


@pytest.mark.parametrize(
    ("packs", "words"),
    [
        ([pack(1, 9)], "positions 1 to 1 are in no pack: packs/1-9 comes next"),
        ([pack(0, 3), pack(5, 9)], "positions 4 to 5 are in no pack: packs/5-9 comes next"),
        ([pack(0, 5), pack(3, 9)], "packs/3-9 overlaps with the pack before it, which ends at 5"),
        ([pack(0, 5)], "packs reach position 5, but the catalog says 9"),
    ],
)
def test_log_with_holes(packs, words):
    assert list(tiling_faults(packs, 9, 9)) == [words]


def test_tasks_are_worth_their_while():
    mega = 1 << 20
    sizes = [10] * 5 + [200 * mega] + [100 * mega, 100 * mega] + [10]
    packs = [pack(at, at + 1, size) for at, size in enumerate(sizes)]
    batches = list(_batches(list(enumerate(packs))))
    assert [len(batch) for batch in batches] == [6, 2, 1]
    assert [at for batch in batches for at, _ in batch] == list(range(9))


def test_the_driver_gets_reports_without_their_findings():
    report = PackReport(pack(0, 1))
    report.pack_damaged("broken")
    (batch,) = _found_batches(report)
    damage, summed = batch.to_pylist()
    assert (damage["kind"], damage["what"], damage["report"]) == ("damage", "broken", None)
    sent = pickle.loads(summed["report"])
    assert (sent.found, sent.findings) == (1, [])
    streams = found(extent(0, 10), state(1, 30))
    (batch,) = _found_batches(streams)
    suspect, summed = batch.to_pylist()
    assert (suspect["stream"], suspect["code"], suspect["at"]) == (7, "misses", 10)
    assert pickle.loads(summed["report"]).found == 1
