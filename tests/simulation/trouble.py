"""What goes wrong in a run: disks, stores, processes and power."""

import errno
from collections import Counter

from holdfast.errors import HoldfastError
from holdfast.objects.pack_merge import merge_packs
from holdfast.storage.catalog_writer import CatalogWriter
from holdfast.storage.commands import CollectGarbage, PinPacks, SwapPacks
from holdfast.storage.merge import plan_merge
from tests.simulation.model import Violation
from tests.simulation.snapshots import PREFIX
from tests.simulation.storage_worker import WorkerKilledError

LOG_OPERATIONS = (
    "write", "sync", "sync", "create", "sync_directory", "truncate", "remove", "allocate",
)  # fmt: skip
STORE_OPERATIONS = ("put", "put_parts", "read", "size", "list", "remove", "remove_unfinished")
PINS = ("spark", "backup")


class NodeKilledError(BaseException):
    """The whole node ends at this failpoint."""


class Trouble:
    def __init__(self, run):
        self._run = run
        self._random = run.random
        # Until when each pin holds, and which objects it keeps.
        self._pins: dict[str, tuple[int, set[str]]] = {}
        self._pin_requests = Counter()
        self._defective: list[str] = []
        self.is_over = False

    def _for_a_while(self, seconds, undo):
        self._run.machine.clock.call_later(self._random.uniform(0.05, seconds), undo)

    # The log's disk.

    def trouble_log(self):
        random, machine = self._random, self._run.machine
        kind = random.randrange(7)
        self._run.trace("trouble with the log", kind)
        match kind:
            case 0 | 1:
                code = random.choice((errno.EIO, errno.ENOSPC))
                operation = random.choice(LOG_OPERATIONS)
                machine.files.fail(operation, code, random.choice((1, 1, 2, 5)))
            case 2:
                machine.files.fault_rate = random.choice((0.1, 0.5, 1.0))
                self._for_a_while(3.0, self._mend_disk)
            case 3:
                machine.files.capacity_bytes = machine.files.size_bytes + random.randrange(2000)
                self._for_a_while(3.0, self._make_room)
            case 4:
                stall_s = random.choice((0.1, 0.5, 4.0))
                machine.disk_stalled_until_s = machine.clock.monotonic_s() + stall_s
            case 5:
                machine.segments_unreadable_until_s = machine.clock.monotonic_s() + 1.0
            case 6:
                self._have_a_bad_night()

    def _have_a_bad_night(self):
        """Nobody asks for anything, the disk fails for a while, and then it is quiet."""
        run = self._run
        run.machine.files.fault_rate = self._random.choice((0.3, 1.0))
        run.advance(self._random.choice((1.1, 2.2)))
        self._mend_disk()
        run.advance(self._random.choice((0.2, 3.0)))
        run.advance(3.0)

    def _mend_disk(self):
        self._run.machine.files.heal()

    def _make_room(self):
        self._run.machine.files.capacity_bytes = None

    # The object store, as the worker and as readers see it.

    def trouble_store(self):
        random, machine = self._random, self._run.machine
        kind = random.randrange(6)
        self._run.trace("trouble with the store", kind)
        match kind:
            case 0 | 1:
                operation = random.choice(STORE_OPERATIONS)
                after_effect = random.random() < 0.5
                machine.faults.fail(operation, random.choice((1, 2)), after_effect=after_effect)
            case 2:
                for operation in STORE_OPERATIONS:
                    machine.faults.fail(operation, 10_000)
                self._run.saw("store outage")
                self._for_a_while(6.0, machine.faults.heal)
            case 3:
                self._flip(machine.faults)
            case 4:
                machine.faults.heal()
            case 5:
                self._fill_catalog()

    def _fill_catalog(self):
        """Have the catalog's disk full for a while, as the storage process sees it."""
        catalog = self._run.node.worker._catalog
        if catalog is not None:
            (pages,) = catalog.read("PRAGMA page_count")[0]
            catalog.read(f"PRAGMA max_page_count = {pages}")
            self._run.saw("catalog full")
            self._for_a_while(3.0, lambda: self._mend_catalog(catalog))

    def _mend_catalog(self, catalog):
        if self._run.node is not None and self._run.node.worker._catalog is catalog:
            catalog.read("PRAGMA max_page_count = 1000000")

    def trouble_cold(self):
        machine = self._run.machine
        kind = self._random.randrange(4)
        self._run.trace("trouble with cold reads", kind)
        match kind:
            case 0:
                machine.cold_faults.fail("read", self._random.choice((1, 3)))
            case 1:
                machine.cold_faults.fail("read", 10_000)
                self._for_a_while(2.0, machine.cold_faults.heal)
            case 2 | 3:
                self._flip(machine.cold_faults)

    def _flip(self, faults):
        """Show a byte of some object wrong, and one of every stream, for some time."""
        machine = self._run.machine
        if machine.objects.objects:
            name = self._random.choice(sorted(machine.objects.objects))
            faults.corrupt(name, self._random.randrange(machine.objects.size(name)))
        for name in self._run.names:
            self._flip_extent(name, faults)
        self._for_a_while(2.0, faults.heal)

    def _flip_extent(self, name, faults):
        """Show a byte of a stream wrong, or of the lengths of its messages."""
        random, node = self._random, self._run.node
        stream = node.seen(name)
        extents = [] if stream is None else node.catalog.extents(stream.number, 0, 1 << 30)
        if extents:
            extent = random.choice(extents)
            inside = extent.data_at + random.randrange(extent.length)
            if random.random() < 0.5:
                inside = extent.lengths_at + random.randrange(4 * extent.messages)
            faults.corrupt(extent.pack, inside)

    # Processes.

    def kill_worker(self):
        self._run.trace("kill the storage process")
        self._run.node.worker.kill()

    def kill_soon(self):
        """Have the node end in the middle of what it does to the disk."""
        operations = self._random.randrange(12)
        self._run.trace("kill after", operations)
        self._run.machine.files.kill_after(operations)

    def before_start(self):
        """Starting is not always easy either."""
        files = self._run.machine.files
        if self._random.random() < 0.1:
            files.fault_rate = 0.1
        if self._random.random() < 0.1:
            files.kill_after(self._random.randrange(8))

    def on_failpoint(self, name):
        run, plan = self._run, self._run.plan
        run.saw(name)
        run.trace("failpoint", name)
        if self.is_over:
            return
        chance = self._random.random()
        if chance >= plan.node_failpoint_rate + plan.failpoint_rate:
            return
        if name in {"flush.uploaded", "merge.uploaded"} and self._random.random() < 0.5:
            self._delay_put()
        if chance < plan.node_failpoint_rate:
            run.saw(f"node killed at {name}")
            raise NodeKilledError(name)
        run.saw(f"storage process killed at {name}")
        raise WorkerKilledError(name)

    def _delay_put(self):
        """The last put was still on its way when the process died, and arrives later."""
        objects = self._run.machine.objects
        name = objects.last_put
        data, _ = objects.objects.pop(name)
        self._run.saw("late put")
        # Later than the grace period nothing arrives any more.
        self._for_a_while(0.9 * self._run.plan.grace_s, lambda: objects.put(name, data))

    # What others ask of the storage process.

    def command(self):
        random = self._random
        kind = random.randrange(5)
        self._run.trace("command", kind)
        match kind:
            case 0:
                self._flush()
            case 1:
                self._submit(CollectGarbage())
            case 2:
                self._pin(random.choice(PINS), random.choice((1.0, 10.0, 60.0)))
            case 3:
                self.unpin(random.choice(PINS))
            case 4:
                self._rewrite()

    def _submit(self, command, done=None):
        def answered(answer):
            self._run.trace("command done", answer)
            if done is not None and not isinstance(answer, HoldfastError):
                done()

        self._run.node.worker.submit(command, answered)

    def _flush(self):
        node = self._run.node
        committed = node.log.committed

        def done(error):
            self._run.trace("flush done", error)
            if error is None and node.catalog.flushed < committed:
                raise Violation(f"a flush is done at {node.catalog.flushed}, not {committed}")

        node.shard.tier.flush(done)

    def _pin(self, name, ttl_s):
        until_ms = self._run.now_ms + int(ttl_s * 1000)
        self._pin_requests[name] += 1
        request = self._pin_requests[name]

        def done():
            if self._pin_requests[name] != request:
                return
            in_use = {*self._packs("retired_ms IS NULL"), *self._snapshots()}
            _, kept = self._pins.get(name, (0, set()))
            self._pins[name] = (until_ms, kept | in_use)

        self._forget_old_pins()
        if name in self._pins:
            # It may be the end of a longer pin of the same name.
            before_ms, kept = self._pins[name]
            self._pins[name] = (min(before_ms, until_ms), kept)
        self._submit(PinPacks(name, ttl_s), done)

    def unpin(self, name):
        self._pin_requests[name] += 1
        self._pins.pop(name, None)
        self._submit(PinPacks(name, 0))

    def _forget_old_pins(self):
        now_ms = self._run.now_ms
        self._pins = {
            name: (until_ms, kept) for name, (until_ms, kept) in self._pins.items()
            if until_ms > now_ms
        }  # fmt: skip

    def before_rebuild(self):
        """Pins are in no pack, and without a catalog nobody knows which job had a defect."""
        catalog = CatalogWriter(self._run.machine.catalog_path)
        in_use = {pack.name for pack in catalog.packs()}
        catalog.close()
        for name in self._defective:
            if name not in in_use:
                self._run.machine.objects.objects.pop(name, None)
        for name in PINS:
            self._pin_requests[name] += 1
        self._pins.clear()

    def _packs(self, where):
        connection = self._run.node.catalog._connection
        return [name for (name,) in connection.execute(f"SELECT name FROM packs WHERE {where}")]

    def _snapshots(self):
        connection = self._run.node.catalog._connection
        rows = connection.execute("SELECT snapshot FROM streams WHERE snapshot IS NOT NULL")
        return [name for (name,) in rows]

    def _rewrite(self):
        """Rewrite a pack or two as a job outside would do it, and ask for the swap."""
        run, machine = self._run, self._run.machine
        catalog = CatalogWriter(machine.catalog_path)
        is_defective = False
        try:
            packs = [pack for pack in catalog.packs() if pack.has_delta]
            if not packs:
                return
            first = self._random.randrange(len(packs))
            sources = packs[first : first + self._random.choice((1, 1, 2))]
            plan = plan_merge(catalog, sources)
            extents = list(plan.extents)
            plan = plan._replace(extents=extents)
            if extents and self._random.random() < 0.2:
                # A job with a defect: what it has lost must not come into use.
                run.saw("defective swap")
                is_defective = True
                del extents[self._random.randrange(len(extents))]
        finally:
            catalog.close()
        new = merge_packs(machine.objects, machine.clock, plan)
        run.trace("rewritten", new.name)
        if is_defective:
            self._defective.append(new.name)
        swap = SwapPacks([new.name], [pack.name for pack in sources])
        delay_s = self._random.choice((0.0, 0.1, run.plan.grace_s, 2 * run.plan.grace_s))
        run.node.clock.call_later(delay_s, self._submit, swap)

    # Objects that go.

    def removed(self, name):
        """An object is removed: nobody may need it."""
        run = self._run
        run.trace("remove", name)
        if name not in run.machine.objects.objects:
            return
        self._forget_old_pins()
        if any(name in kept for _, kept in self._pins.values()):
            raise Violation(f"{name} is removed though it is pinned")
        if name.startswith(PREFIX):
            run.snapshots.check_removal(name)
            return
        before_ms = run.now_ms - int(run.plan.grace_s * 1000)
        connection = run.node.catalog._connection
        row = connection.execute("SELECT retired_ms FROM packs WHERE name = ?", (name,)).fetchone()
        if row is None:
            _, since_ms = run.machine.objects.objects[name]
            if since_ms == run.now_ms:
                # Whoever has just put it takes it back.
                run.saw("upload taken back")
                return
        else:
            (since_ms,) = row
        if since_ms is None or since_ms > before_ms:
            raise Violation(f"{name} is removed too early: {row}")
        run.saw("object removed")
