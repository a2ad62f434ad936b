"""Snapshots: uploaded to a store that fails, and published a while later, if at all."""

from functools import partial

from xxhash import xxh3_64_intdigest

from holdfast.errors import CommitUnknownError, HoldfastError
from holdfast.format.records import Snapshot
from holdfast.testing import FaultyObjects
from tests.simulation.model import Violation

PREFIX = "snapshots/"
# From the end of an upload to the request to publish it: longer than some grace periods.
DELAYS_S = (0.0, 0.0, 0.02, 0.5, 1.5, 30.0)


class Snapshots:
    def __init__(self, run):
        self._run = run
        # Every body that was ever uploaded, by the name of its object.
        self._bodies = {}
        # The object that is taken back by whoever uploaded it.
        self.taken_back = ""

    def upload(self):
        """Upload a snapshot of some stream, and have it published later."""
        run, random = self._run, self._run.random
        version = run.model.readable(run.requests.name(), run.now_ms)
        if version is None or version.birth not in run.model.numbers:
            return
        between = [end for end in version.ends if end >= version.earliest]
        offset = random.choice((version.earliest, version.tail, *between))
        name = f"{PREFIX}{version.birth:06d}/{offset:020d}-{len(self._bodies)}"
        body = self._bodies[name] = random.randbytes(random.choice((1, 30, 300)))
        run.trace("upload", name)
        run.node.unpublished.add(name)
        store = FaultyObjects(run.machine.objects, run.machine.faults)
        try:
            if random.random() < 0.3:
                store.put_parts(name, [body[:10], body[10:]])
            else:
                store.put(name, body)
        except HoldfastError:
            run.saw("upload failed")
            run.node.unpublished.discard(name)
            return
        snapshot = Snapshot(offset, name, "text/plain", len(body), xxh3_64_intdigest(body))
        delay_s = random.choice(DELAYS_S)
        run.node.clock.call_later(delay_s, self._publish, version.name, snapshot, version.birth)

    def _publish(self, name, snapshot, birth):
        self._run.writes.send(
            "snapshot", name, snapshot, birth, done=lambda outcome: self._done(snapshot, outcome)
        )

    def _done(self, snapshot, outcome):
        """As a server does it: what is refused for good will never be published."""
        node = self._run.node
        settled = partial(node.unpublished.discard, snapshot.object)
        if isinstance(outcome, CommitUnknownError):
            node.shard.commits.when_idle(settled)
        else:
            settled()
        if isinstance(outcome, HoldfastError) and not outcome.retryable:
            self.taken_back = snapshot.object
            self._run.machine.objects.remove(snapshot.object)
            self.taken_back = ""

    def check(self):
        """Every snapshot that a stream has can be read."""
        objects = self._run.machine.objects.objects
        run = self._run
        for name in run.model.objects(run.now_ms):
            if name not in objects or objects[name][0] != self._bodies[name]:
                raise Violation(f"the snapshot {name} cannot be read")

    def check_removal(self, name):
        """An object is about to go: nobody may have it, and it was so for long enough."""
        run = self._run
        run.writes.sync()
        if name in run.model.objects(run.now_ms):
            raise Violation(f"{name} is removed though a stream has it, or may have it")
        if name == self.taken_back:
            run.saw("snapshot taken back")
            return
        connection = run.node.catalog._connection
        row = connection.execute(
            "SELECT dropped_ms FROM dropped_snapshots WHERE name = ?", (name,)
        ).fetchone()
        since_ms = run.machine.objects.objects[name][1] if row is None else row[0]
        if since_ms > run.now_ms - int(run.plan.grace_s * 1000):
            raise Violation(f"{name} is removed too early: {since_ms}, {row}")
        run.saw("orphaned snapshot removed" if row is None else "snapshot removed")
