"""A run: one seed's worth of requests and trouble, and everything checked on the way."""

import logging
import shutil
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from random import Random

from holdfast.errors import HoldfastError
from holdfast.storage.rebuild import rebuild, resolve, survey
from tests.simulation.checks import audit, settle_after_crash, verify_packs
from tests.simulation.ending import Ending
from tests.simulation.files import KilledError
from tests.simulation.model import Violation
from tests.simulation.node import Machine, Node
from tests.simulation.plan import in_force, make_plan
from tests.simulation.reads import Reads
from tests.simulation.relatives import RelatedModel
from tests.simulation.requests import KIN, Requests
from tests.simulation.snapshots import Snapshots
from tests.simulation.trace import Trace
from tests.simulation.trouble import NodeKilledError, Trouble
from tests.simulation.writes import Writes

# SQLite syncs a lot: memory is as good as a disk here.
SHARED_MEMORY = Path("/dev/shm")
AUDIT_SHARE = 0.1
# After so long whatever has expired is removed.
QUIET_S = 2.5


class Failure(AssertionError):  # noqa: N818 (a test fails)
    """A run that went wrong; says how to see it again."""


class Run:
    def __init__(self, seed, directory, *, is_shown=False):
        self.seed = seed
        self.plan = make_plan(seed)
        self.random = Random(seed + 2)
        self.machine = Machine(seed, directory)
        self.clock = self.machine.clock
        self.trace = Trace(self.clock, directory, is_shown=is_shown)
        self.seen = Counter()
        self.names = [f"bucket/{number}" for number in range(self.plan.names)]
        self.names += [f"{KIN}{number}" for number in range(self.plan.kin)]
        self.model = RelatedModel(ttl_is_fixed=self.plan.ttl_is_fixed)
        self.requests = Requests(self.random, self.model, self.names, lambda: self.node.shard)
        self.writes = Writes(self)
        self.snapshots = Snapshots(self)
        self.reads = Reads(self)
        self.trouble = Trouble(self)
        self.machine.objects.on_remove = self.trouble.removed
        self.node = None
        self._back_off = False

    @property
    def now_ms(self):
        return self.clock.now_ms()

    def saw(self, what):
        """Count what happened, to know that runs have everything in them."""
        self.seen[what] += 1

    # The whole of it.

    def go(self):
        self.trace("plan", *(f"{name}={value}" for name, value in self._sizes()))
        self.start_node()
        for _ in range(self.plan.steps):
            self.step()
            self.advance(self._pause_s())
        Ending(self).go()
        self.end_node()
        return self.trace.digest

    def _sizes(self):
        for name, value in self.plan._asdict().items():
            if name != "constants":
                yield name, value
        for _, name, value in self.plan.constants:
            yield name, value

    def _pause_s(self):
        random = self.random
        chance = random.random()
        if chance < self.plan.pause_rate:
            return random.choice((0.5, 2.0, 12.0, 40.0))
        if self._back_off:
            # Some clients come back later when they are told to.
            self._back_off = False
            if random.random() < 0.5:
                return random.uniform(0.1, 2.0)
        if chance < 0.4:
            return 0.0
        return random.uniform(0.0, 0.02 if chance < 0.9 else 0.5)

    def refused(self, why):
        """A write was not taken for now."""
        self.saw(f"refused: {why}")
        self._back_off = True

    def step(self):
        """One request, or one piece of bad luck."""
        plan, trouble = self.plan, self.trouble
        chance = self.random.random()
        for rate, call in (
            (plan.crash_rate / 2, self.crash),
            (plan.crash_rate / 2, trouble.kill_soon),
            (plan.log_trouble_rate, trouble.trouble_log),
            (plan.store_trouble_rate, trouble.trouble_store),
            (plan.cold_trouble_rate, trouble.trouble_cold),
            (plan.worker_kill_rate, trouble.kill_worker),
            (0.03, trouble.command),
        ):
            if chance < rate:
                call()
                return
            chance -= rate
        self._request()
        if self.random.random() < AUDIT_SHARE:
            self.audit()

    def _request(self):
        random, writes, reads = self.random, self.writes, self.reads
        if random.random() < self.plan.related_share:
            call = random.choices(
                (writes.fork, self.snapshots.upload, writes.delete, writes.bucket, writes.document),
                (9, 6, 5, 1, 1),
            )[0]
        elif random.random() < self.plan.write_share:
            call = random.choices((writes.append, writes.create, writes.delete), (40, 6, 2))[0]
        else:
            call = random.choices(
                (reads.read, reads.head, reads.follow, reads.unfollow), (14, 3, 1, 1)
            )[0]
        call()

    def audit(self):
        self.writes.sync()
        if not self.model.is_unsettled:
            audit(self.model, self.node, self.names, self.now_ms)
            self.snapshots.check()

    # Time and death.

    def advance(self, seconds):
        node, due = self.node, self._due() if seconds > QUIET_S else []
        try:
            self.clock.advance(seconds)
        except (KilledError, NodeKilledError) as killed:
            self.trace("killed", killed)
            self.crash(is_dead=True)
        if self.node is node:
            self._check_gone(due)
        self.writes.sync()
        self.reads.tick()
        self.reads.check_tailers()

    def _due(self):
        """The streams that are to be gone after a while, if nothing goes wrong."""
        model = self.model
        if not self.node.is_idle or self.machine.is_in_trouble:
            return []
        return [each for each in model.streams() if model.is_due(each, self.now_ms)]

    def _check_gone(self, due):
        """Nobody asked for these, and they are removed all the same."""
        for version in due:
            seen = self.node.seen(version.name)
            if seen is not None and seen.number == self.model.numbers.get(version.birth):
                raise Violation(f"{version.name} has expired and is still there")

    def crash(self, *, is_dead=False):
        """The node ends, here and now; another one takes over what it left behind."""
        if not is_dead and self.random.random() < 0.2:
            self._stop_gently()
        self.writes.sync()
        floors = self.reads.crash_floors()
        waiting = len(self.model.pending)
        self.end_node()
        self.reads.crashed()
        self.writes.crashed()
        self._maybe_lose_power()
        if self.random.random() < 0.3:
            self.clock.advance(self.random.choice((0.1, 3.0)))
        if self.random.random() < 0.2:
            verify_packs(self.machine.objects, self.machine.catalog_path)
        if self.random.random() < 0.15:
            self._rebuild()
        self.start_node()
        kept = settle_after_crash(self.model, self.node, floors, self.names, self.now_ms)
        self.trace("recovered", self.node.batches, "batches; kept", kept, "of", waiting)
        if waiting:
            self.saw("pending write kept" if kept else "pending writes lost")
        audit(self.model, self.node, self.names, self.now_ms)
        self.snapshots.check()

    def _stop_gently(self):
        """Have the node finish what is under way, as far as it can in a while."""
        shard, log = self.node.shard, self.node.log
        try:
            shard.stop()
            self.clock.advance(1.0)
            log.close()
            self.clock.advance(0.1)
        except (KilledError, NodeKilledError):
            return
        self.saw("stopped")
        self.trace("stopped")

    def _maybe_lose_power(self):
        files = self.machine.files
        if self.random.random() < 0.6:
            self.saw("power failure")
            self.trace("power failure")
            self.machine.files = files.crash(self.random)
        else:
            self.saw("kill")
            files.heal()

    def _rebuild(self):
        """The catalog is lost: the packs have everything that was in it."""
        self.saw("rebuild")
        self.trouble.before_rebuild()
        objects = self.machine.objects
        live = resolve(survey(objects))
        rebuild(objects, live, self.machine.catalog_path, self.now_ms)
        self.trace("rebuilt", *sorted(live.names))

    def start_node(self):
        """Start a node, however often that takes."""
        while self.node is None:
            files = self.machine.files
            if not self.trouble.is_over:
                self.trouble.before_start()
            try:
                self.node = Node(
                    self.machine,
                    self.plan,
                    trace=self.trace,
                    on_failpoint=self.trouble.on_failpoint,
                )
            except KilledError:
                self.saw("killed at start")
                self._maybe_lose_power()
            except HoldfastError as error:
                if type(error) is not HoldfastError:
                    raise Violation(f"the node does not start: {error!r}") from error
                self.saw("start refused")
                files.heal()
                files.capacity_bytes = None
        self.machine.files.heal()
        self.trace("started")

    def end_node(self):
        node, self.node = self.node, None
        if node is not None:
            self.seen["restarts of the storage process"] += node.worker.restarts
            self.seen["merges"] += node.worker.counters.merges
            self.seen["flushes"] += node.worker.counters.flushes
            self.seen["merge failures"] += node.worker.counters.merge_failures
            self.seen["swaps"] += node.worker.counters.swaps
            self.seen["evictions"] += node.shard.tier.evictions
            self.seen["loads"] += node.shard.state.loads
            self.seen["flush retries"] += node.shard.tier.retries
            self.seen["expirations"] += node.shard.counters.expirations
            self.seen["duplicates"] += node.shard.counters.duplicates
            node.end()


class _Defects(logging.Handler):
    """Anything logged with a traceback is a defect."""

    def emit(self, record):
        if record.exc_info and record.exc_info[1] is not None:
            raise Violation(f"a defect: {record.getMessage()}") from record.exc_info[1]


@contextmanager
def _quiet():
    logger = logging.getLogger("holdfast")
    before = logger.propagate, logger.level
    handler = _Defects()
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate, logger.level = before


def run_seed(seed, *, is_shown=False):
    """Run a seed; what was seen, and the trace's digest. Raises `Failure`."""
    parent = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    directory = Path(tempfile.mkdtemp(prefix="holdfast-sim-", dir=parent))
    run = Run(seed, directory, is_shown=is_shown)
    try:
        with _quiet(), in_force(run.plan):
            try:
                digest = run.go()
            finally:
                run.end_node()
        return run.seen, digest
    except (Exception, Violation) as error:
        last = "" if is_shown else "\n".join(run.trace.lines[-12:])
        raise Failure(
            f"seed {seed} failed after {len(run.trace.lines)} events: {error!r}\n{last}\n"
            f"See all of it with: make sim SEED={seed}"
        ) from error
    finally:
        shutil.rmtree(directory)
