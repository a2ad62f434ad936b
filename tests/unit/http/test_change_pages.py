"""Pages of changes: how much is looked at for one, whatever of it concerns the reader."""

import pytest

from holdfast.http import changes
from tests.unit.engine.tiered import Tiered
from tests.unit.http.apps import Served

PAGE = 10


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    monkeypatch.setattr(changes, "PAGE_ENTRIES_MAX", PAGE)


@pytest.fixture
def served():
    """Two buckets with a stream each."""
    served = Served()
    for name in ("busy/s", "quiet/s"):
        served.engine.committed(served.engine.create(name))
    return served


def append(served, bucket, batches, entries=1):
    for _ in range(batches):
        for _ in range(entries):
            served.engine.append(b"x", name=f"{bucket}/s")
        served.engine.commit()


def page(served, bucket, after=0):
    answer = served.ask("GET", f"/{bucket}/streams/changes?after={after:020d}")
    assert answer.status == 200, answer.body
    return answer.json


def pages(served, bucket, after=0):
    """All pages up to the one that is up to date."""
    found = []
    while not found or not found[-1]["up_to_date"]:
        found.append(page(served, bucket, after))
        assert int(found[-1]["next_cursor"]) > after or found[-1]["up_to_date"]
        after = int(found[-1]["next_cursor"])
    return found


def test_what_others_did_counts(served):
    append(served, "busy", 95)
    append(served, "quiet", 1)
    last = served.shard.state.journal.last
    found = pages(served, "quiet", after=2)
    assert [int(each["next_cursor"]) for each in found] == [*range(12, last, PAGE), last]
    assert [each["up_to_date"] for each in found] == [False] * (len(found) - 1) + [True]
    changed = [entry["stream_id"] for each in found for entry in each["changes"]]
    assert changed == ["s"]
    assert all(not each["changes"] for each in found[:-1])


def test_bucket_that_everything_concerns(served):
    append(served, "busy", 25)
    found = pages(served, "busy", after=2)
    assert [len(each["changes"]) for each in found] == [10, 10, 5]


@pytest.mark.parametrize("bucket", ["busy", "quiet"])
def test_batch_is_never_divided(served, bucket):
    append(served, "busy", 3, entries=3 * PAGE)
    found = pages(served, bucket, after=2)
    assert [int(each["next_cursor"]) for each in found] == [3, 4, 5]
    per_page = 3 * PAGE if bucket == "busy" else 0
    assert [len(each["changes"]) for each in found] == [per_page] * 3


def test_page_that_is_full_at_the_end_of_the_log_is_up_to_date(served):
    append(served, "busy", PAGE)
    assert page(served, "busy", after=2)["up_to_date"]
    assert page(served, "quiet", after=2)["up_to_date"]


@pytest.mark.parametrize("bucket", ["busy", "quiet"])
def test_streams_are_not_brought_into_memory(tmp_path, bucket):
    """Neither one's own nor those of others."""
    engine = Tiered(tmp_path, streams_cached_max=2)
    served = Served(engine)
    names = [f"busy/{number}" for number in range(8)]
    engine.written(*names, "quiet/s")
    for name in names:
        engine.append(b"y", name=name)
    engine.flush()
    state = served.shard.state
    in_memory, loads = set(state.by_name), state.loads
    assert len(in_memory) <= 2
    changed = [entry for each in pages(served, bucket) for entry in each["changes"]]
    assert len(changed) == (16 if bucket == "busy" else 1)
    assert (set(state.by_name), state.loads) == (in_memory, loads)
    engine.close()
