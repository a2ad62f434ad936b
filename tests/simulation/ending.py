"""The end of a run: all is well again, and then everything has to be there, and nothing else."""

from holdfast.engine.writes import AppendRequest, CreateRequest
from holdfast.storage import garbage
from holdfast.storage.catalog_writer import CatalogWriter
from holdfast.storage.commands import CollectGarbage
from tests.simulation.checks import verify_packs
from tests.simulation.model import Violation
from tests.simulation.node import LOG
from tests.simulation.trouble import PINS

PATIENCE_S = 60.0
MERGE_PATIENCE_S = 600.0
QUIET_S = 5.0


class Ending:
    def __init__(self, run):
        self._run = run
        self._collected_ms = 0

    def go(self):
        run = self._run
        run.trace("the end begins")
        run.trouble.is_over = True
        run.machine.heal()
        self._settle()
        if run.random.random() < 0.5:
            run.crash()
            self._settle()
        self._write_once_more()
        self._flush()
        self._read_everything()
        self._flush()
        run.advance(QUIET_S)
        self._check_memory()
        self._collect()
        run.audit()
        self._check_store()
        self._check_log()
        run.crash()
        self._settle()
        self._read_everything()
        self._check_files()

    def _wait(self, what, is_done, patience_s=PATIENCE_S):
        run = self._run
        until_s = run.clock.monotonic_s() + patience_s
        while not is_done():
            if run.clock.monotonic_s() > until_s:
                raise Violation(f"{what} does not happen, though all is well")
            run.advance(0.05)

    def _settle(self):
        """Everybody is answered, and nothing is on its way."""
        run = self._run
        run.machine.heal()
        self._wait("an end of waiting", lambda: run.node.is_idle and run.reads.is_idle)
        run.writes.check_all_answered()
        run.audit()

    def _write_once_more(self):
        """Writes are taken again."""
        run = self._run
        # Until the flush is done, what is pending may reach the hot limit.
        self._wait("room for writes", lambda: not run.node.shard.tier.flushing)
        name = run.names[0]
        if run.model.writable(name, run.now_ms) is not None:
            run.writes.send("delete", name)
        request = CreateRequest("text/plain", body=b"the end")
        run.writes.send("create", name, request, (b"the end",))
        run.writes.send("append", name, AppendRequest(b"!", "text/plain"), (b"!",))
        self._settle()
        if run.model.published[name].data != b"the end!":
            raise Violation("no write is taken, though all is well")

    def _flush(self):
        run = self._run
        outcomes = []
        while not outcomes or outcomes[-1] is not None:
            count = len(outcomes)
            run.node.shard.tier.flush(outcomes.append)
            self._wait("a flush", lambda: len(outcomes) > count)  # noqa: B023
            if len(outcomes) > 20:
                raise Violation(f"flushes fail, though all is well: {outcomes[-1]!r}")
        self._settle()

    def _read_everything(self):
        """Every byte of every stream, in pieces of any size."""
        run = self._run
        for name in run.names:
            at = 0
            bytes_max = run.random.choice((100, 500, 3000, 1 << 40))
            while True:
                stream, version = run.reads.find(name)
                if stream is None:
                    break
                at = max(at, stream.earliest)
                ends = []
                run.reads.read_from(stream, version, at, bytes_max, ends.append)
                self._wait("an end of a read", lambda: ends)  # noqa: B023
                if ends[0] is None:
                    if run.model.readable(name, run.now_ms) is not None:
                        raise Violation(f"{name} cannot be read at {at}")
                    break
                if ends[0] == version.tail:
                    break
                at = ends[0]
            self._settle()

    def _check_memory(self):
        """What is in packs has left memory, but for the streams used last."""
        run = self._run
        self._wait("an end of flushing", self._is_flushed)
        shard = run.node.shard
        state, tier = shard.state, shard.tier
        for stream in state.by_number.values():
            if stream.chunks or stream.base != stream.tail:
                raise Violation(f"{stream.meta.name} is still in memory")
        if state.removed or state.removed_numbers:
            raise Violation(f"removed streams are remembered: {state.removed}")
        if len(state.by_number) != len(state.clean):
            raise Violation("some streams in memory can never leave it")
        readers = sum(stream.readers is not None for stream in state.by_number.values())
        if len(state.clean) > run.plan.streams_cached_max + readers + 1:
            raise Violation(f"{len(state.clean)} streams are kept in memory")
        if tier.trouble:
            raise Violation(f"there is trouble still: {tier.trouble}")

    def _is_flushed(self):
        """Whether nothing is hot; what expires meanwhile is flushed by age."""
        shard = self._run.node.shard
        return (
            shard.tier._flushing is None
            and not shard.state.generation.records
            and self._run.node.is_idle
        )

    def _collect(self):
        """Merge all there is to merge, then collect once nothing is protected any more."""
        run = self._run
        for pin in PINS:
            run.trouble.unpin(pin)
        for _ in range(10):
            self._wait("an end of merging", self._is_merged, MERGE_PATIENCE_S)
            run.advance(run.plan.grace_s + 1)
            self._wait("an end of merging", self._is_merged, MERGE_PATIENCE_S)
            merges = run.node.worker.counters.merges
            self._collected_ms = run.now_ms
            # The search for orphans goes on where the last one stopped.
            for _ in range(1 + len(run.machine.objects.objects)):
                done = []
                run.node.worker.submit(CollectGarbage(), done.append)
                self._wait("a collection", lambda: done)  # noqa: B023
                if len(run.machine.objects.objects) < garbage.SWEEP_OBJECTS_MAX:
                    break
            if run.node.worker.is_idle and run.node.worker.counters.merges == merges:
                return
        raise Violation("merging never ends")

    def _is_merged(self):
        return self._is_flushed() and self._run.node.worker.is_idle

    def _check_store(self):
        """All objects are sound and in use."""
        run = self._run
        objects, path = run.machine.objects, run.machine.catalog_path
        verify_packs(objects, path)
        writer = CatalogWriter(path)
        try:
            used, retired = writer.packs(), writer.packs("retired_ms IS NOT NULL")
            taken = writer.read("SELECT snapshot FROM streams WHERE snapshot IS NOT NULL")
            dropped = writer.read("SELECT name, dropped_ms FROM dropped_snapshots")
        finally:
            writer.close()
        grace_ms = int(run.plan.grace_s * 1000)
        before_ms = self._collected_ms - grace_ms
        known = {pack.name for pack in used} | {name for (name,) in taken}
        young = {pack.name for pack in retired if pack.retired_ms > before_ms}
        young |= {name for name, dropped_ms in dropped if dropped_ms > before_ms}
        # Orphans of one range of the log go together.
        ranges = {
            name.rpartition("-")[0]
            for name, (_, modified_ms) in objects.objects.items()
            if name not in known | young and modified_ms > before_ms
        }
        for name, (_, modified_ms) in objects.objects.items():
            spared = known | young | run.node.unpublished
            if name in spared or name.rpartition("-")[0] in ranges:
                continue
            if modified_ms <= before_ms:
                raise Violation(f"{name} is garbage and was not collected")

    def _check_log(self):
        """What is flushed is not in the log any more."""
        segments = self._run.node.log.stats().segments
        if segments != 1:
            raise Violation(f"the log was not trimmed: {segments} segments")

    def _check_files(self):
        """Files that could not be removed are, once another node has started."""
        run = self._run
        segments = run.node.log.stats().segments
        names = [name for name in run.machine.files.names(LOG) if name.endswith(".seg")]
        if segments != len(names):
            raise Violation(f"files are left of {segments} segments: {names}")
