"""The application over a shard that is driven by hand: requests go in, slots keep the answers."""

import asyncio
import json

from holdfast.http.access.gate import open_gate
from holdfast.http.app import App
from holdfast.http.exchange import KEPT_HEADERS, Request
from holdfast.settings import load_settings
from tests.unit.engine.driver import Driver
from tests.unit.subscriptions.harness import Harness

# Rounds of the event loop that are enough for anything that waits for no thread.
ROUNDS = 20


class Told:
    """A slot that keeps what it is told."""

    def __init__(self, *, takes_all=True):
        self.route = ""
        self.on_gone = self.on_resume = None
        # Whether the connection takes every piece at once, or pauses after each.
        self.takes_all = takes_all
        self.paused = False
        self.status = 0
        self.fields = {}
        self.length = None
        self.pieces = []
        self.ended = self.aborted = self.refused = False

    @property
    def body(self):
        return b"".join(self.pieces)

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.json["error"]["code"]

    @property
    def done(self):
        return self.ended or self.aborted

    def begin(self, status, fields, length=None):
        assert not self.status, "a request is answered once"
        self.status = status
        lines = [line.partition(b": ") for line in fields.split(b"\r\n") if line]
        self.fields = {name.decode().lower(): value.decode() for name, _, value in lines}
        self.length = length

    def respond(self, status, fields, body=b""):
        self.begin(status, fields)
        self.write(body)
        self.end()

    def write(self, data, more=b""):
        assert not self.done, "nothing follows the end"
        self.pieces += [part for part in (data, more) if part]
        self.paused = not self.takes_all

    def end(self):
        self.ended = True

    def abort(self):
        self.aborted = True

    def refuse_rest(self):
        self.refused = True

    def resume(self):
        """The client reads again."""
        self.paused = False
        if self.on_resume is not None:
            self.on_resume()


class Served:
    """An application that is ready; `engine` drives its shard and its clock, flags are settings."""

    def __init__(self, engine=None, snapshots=None, open_mount=None, **flags):
        self.engine = engine or Driver()
        self.clock = self.engine.clock
        self.shard = self.engine.shard
        settings = load_settings(file=None, env={}, flags=flags)
        harness = Harness(self.engine)
        gate = open_gate(settings, self.clock)
        mount = open_mount and open_mount(self.shard, settings, self.clock)
        self.app = App(self.shard, settings, self.clock, snapshots, harness.service, gate, mount)
        self.app.not_ready = ""

    def ask(self, method, target, body=b"", *, takes_all=True, **fields):
        """Send a request; `stream_ttl="1"` is the field `Stream-TTL: 1`."""
        path, _, query = target.encode().partition(b"?")
        named = {name.replace("_", "-").encode(): value for name, value in fields.items()}
        kept = {KEPT_HEADERS[name]: value.encode() for name, value in named.items()}
        slot = Told(takes_all=takes_all)
        request = Request(method.encode(), path, query, kept, b"http", body=body)
        self.app.handle(request, slot)
        return slot

    async def settle(self):
        """Let everything happen that waits for nobody but the event loop and the clock."""
        for _ in range(ROUNDS):
            self.clock.run()
            await asyncio.sleep(0)

    async def answered(self, slot):
        """Wait for an answer that threads may have to work for."""
        while not slot.done:
            self.clock.run()
            await asyncio.sleep(0)
        return slot
