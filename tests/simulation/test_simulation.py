"""The simulation itself: it repeats, and it can fail."""

import os
import subprocess
import sys
from contextlib import suppress

import pytest

from holdfast import failpoints
from holdfast.engine.stream import Stream
from holdfast.engine.tier import Tier
from holdfast.format import rows
from holdfast.log.segment_writer import SegmentWriter
from holdfast.objects import pack_merge
from holdfast.storage import garbage
from tests.simulation.files import SimFile
from tests.simulation.run import Failure, run_seed
from tests.thorough import THOROUGH, some_of

PATIENCE_SEEDS = 60


def run_seeds(count):
    for seed in range(count):
        run_seed(seed)


def digests(seeds, hash_seed):
    """What runs in another process amount to, with another order of sets."""
    command = [sys.executable, "-m", "tests.simulation", "--digests", "--seeds", str(seeds)]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    result = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return result.stdout.split()


@pytest.mark.slow
@pytest.mark.thorough
def test_same_seed_gives_the_same_run():
    seeds = 6 if THOROUGH else 2
    here = [run_seed(seed)[1] for seed in range(seeds)]
    assert len(set(here)) == seeds
    assert here == [run_seed(seed)[1] for seed in range(seeds)]
    assert here == digests(seeds, 1) == digests(seeds, 2)


def lose_producers(monkeypatch):
    """A stream that comes back from the catalog has forgotten its producers."""
    from_row = Stream.from_row

    def changed(row, bucket=None):
        stream = from_row(row, bucket)
        stream.stored_producers = 0
        return stream

    monkeypatch.setattr(Stream, "from_row", changed)


def trim_too_early(monkeypatch):
    """The log is trimmed at the cut, before anything of it is in packs."""
    was_cut = Tier._was_cut

    def changed(self, cut):
        self._log.trim(cut.through)
        was_cut(self, cut)

    monkeypatch.setattr(Tier, "_was_cut", changed)


def sync_never(monkeypatch):
    """Syncs of a segment's batches do nothing."""
    commit = SegmentWriter.commit

    def changed(self, position, body):
        with monkeypatch.context() as during:
            during.setattr(SimFile, "sync", lambda _: None)
            return commit(self, position, body)

    monkeypatch.setattr(SegmentWriter, "commit", changed)


def ignore_pins(monkeypatch):
    """Garbage is collected as if nothing were pinned."""
    monkeypatch.setattr(garbage, "_oldest_pin_ms", lambda _catalog, now_ms: now_ms + 1)


def trim_sources(monkeypatch):
    """A snapshot trims a stream though forks of it read what lies before."""

    def changed(stream):
        start = max(stream.start, min(stream.earliest, stream.tail))
        freed, stream.start = start - stream.start, start
        return freed

    monkeypatch.setattr(rows, "_move_start", changed)


def sweep_snapshots(monkeypatch):
    """Snapshots that streams have are taken for orphans."""
    monkeypatch.setattr(garbage, "_is_known", lambda _catalog, _name: False)


def merge_without_documents(monkeypatch):
    """Merged packs tell of no documents."""
    composed = pack_merge._composed

    def without_documents(*each):
        made = composed(*each)
        made.meta.documents = {}
        return made

    monkeypatch.setattr(pack_merge, "_composed", without_documents)


SABOTAGE = (
    lose_producers,
    trim_too_early,
    sync_never,
    ignore_pins,
    trim_sources,
    sweep_snapshots,
    merge_without_documents,
)


@pytest.mark.parametrize("sabotage", some_of(SABOTAGE, 2))
def test_sabotage_is_found(sabotage, monkeypatch):
    sabotage(monkeypatch)
    with pytest.raises(Failure, match=r"make sim SEED=\d+"):
        run_seeds(PATIENCE_SEEDS)


def test_everything_is_as_it_was_after_a_run():
    before = Stream.from_row, failpoints.hook
    with suppress(Failure):
        run_seed(0)
    assert (Stream.from_row, failpoints.hook) == before
