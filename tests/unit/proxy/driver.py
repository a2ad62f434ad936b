"""The proxy driven by hand: the test says what time it is, and what log and upstreams answer."""

import asyncio

from holdfast.errors import HoldfastError
from holdfast.http.exchange import Request
from holdfast.protocol.frames import DATA, START, TERMINAL, FrameParser, ResponseOrder
from holdfast.proxy.access import name_of, new_stream_id, session_stream_id
from holdfast.proxy.service import ProxyService
from holdfast.proxy.stream_responses import DOCUMENTS
from holdfast.proxy.upstream_request import UpstreamCall
from holdfast.settings import ProxySettings
from holdfast.testing import FakeClock
from tests.unit.engine.driver import Ask, Driver
from tests.unit.proxy.hands import HandSlot, HandUpstreams

# More rounds of the event loop than anything here takes.
ROUNDS = 12
ASKED = UpstreamCall("GET", "http://upstream.example/", {})


class Call:
    """A POST, its upstream and its answer."""

    def __init__(self, stream_id, slot, upstream=None):
        self.stream_id = stream_id
        self.slot = slot
        self.upstream = upstream


class Proxy:
    """A shard, the proxy over it, its clients and its upstreams."""

    def __init__(self, *, batches=None, clock=None, loop=None, engine=None, **settings):
        # Settings of the shard.
        self.limits = engine or {}
        self.engine = Driver(batches=batches, clock=clock or FakeClock(), **self.limits)
        self.clock = self.engine.clock
        self.shard = self.engine.shard
        self.loop = loop or asyncio.new_event_loop()
        self.settings = settings
        self._successor = None
        self._slots = []
        self.upstreams = HandUpstreams()
        self.service = ProxyService(
            self.shard,
            self.clock,
            ProxySettings(secret=("secret",), **settings),
            self.upstreams,
        )
        self.do(self.service.start)

    def close(self):
        """Let go of everything that is under way, here or in the server that took over."""
        if self._successor is not None:
            self._successor.close()
            return
        self.do(self.service.stop)
        self.loop.run_until_complete(self.service.close())
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.run()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def restart(self, *, stored=False):
        """Another server on what the log kept, as after kill -9.

        `stored` tells whether that includes the batch under way.
        """
        log = self.engine.log
        if stored and log.under_way is not None and log.under_way not in log.batches:
            log.batches.append(log.under_way)
        for slot in self._slots:
            slot.lost = True
        for task in list(self.service._tasks):
            task.cancel()
        # Whatever they do, they do to a log that nobody reads again.
        batches = list(log.batches)
        self.run()
        clock = FakeClock(start_ms=self.clock.now_ms() + 1, seed=self.clock.random_u64())
        self._successor = Proxy(
            batches=batches, clock=clock, loop=self.loop, engine=self.limits, **self.settings
        )
        return self._successor

    # Time.

    def do(self, call, *args):
        """Call something as the event loop does, and let all that follows from it happen."""

        async def steps():
            result = call(*args)
            await self._rounds()
            return result

        return self.loop.run_until_complete(steps())

    async def _rounds(self):
        for _ in range(ROUNDS):
            self.clock.run()
            await asyncio.sleep(0)

    def run(self):
        self.do(lambda: None)

    def advance(self, seconds):
        self.do(self.clock.advance, seconds)

    def answer(self, outcome, **truth):
        """Give the batch under way this outcome."""
        self.run()
        self.do(lambda: self.engine.log.answer(outcome, **truth))

    def commit(self):
        """Have everything pending committed."""
        self.run()
        while self.engine.log.under_way is not None:
            self.do(self.engine.commit)

    def settle(self, seconds=6.0):
        """Let everybody try again, as often as they want to."""
        for _ in range(8):
            self.commit()
            self.advance(seconds)
        self.commit()

    # Requests.

    def post(self, stream_id=None):
        """A create, or an append to a stream that is there."""
        slot = HandSlot()
        self._slots.append(slot)
        if stream_id is None:
            stream_id, number = new_stream_id(self.clock), None
        else:
            number = self.service.find_open(stream_id)
        request = Request(b"POST", b"/v1/proxy", b"", {}, b"http")
        work = self.service.respond(
            request,
            slot,
            ASKED,
            lambda found: b"Location: %b\r\n" % found.encode(),
            client="client",
            stream_id=stream_id,
            number=number,
        )
        count = len(self.upstreams.all)
        self.do(self.service.spawn, work, request, slot)
        upstream = self.upstreams.all[count] if len(self.upstreams.all) > count else None
        return Call(stream_id, slot, upstream)

    def begin(self, stream_id=None, piece=b""):
        """A POST whose upstream has answered, with the Start frame on its way."""
        call = self.post(stream_id)
        call.upstream.answered.set()
        if piece:
            call.upstream.send(piece)
        self.run()
        return call

    def begun(self, stream_id=None, piece=b""):
        """A POST that was answered, with everything committed."""
        call = self.begin(stream_id, piece)
        self.commit()
        assert call.slot.status == (201 if stream_id is None else 200)
        return call

    def connect(self, name):
        """Ask for a session's stream."""
        slot, stream_id = HandSlot(), session_stream_id(name)
        self._slots.append(slot)
        request = Request(b"POST", b"/v1/proxy", b"", {}, b"http")
        work = self.service.connect(
            request, slot, None, lambda _id: b"", client="client", stream_id=stream_id
        )
        self.do(self.service.spawn, work, request, slot)
        return Call(stream_id, slot)

    def session(self, name="session"):
        """The id of a session's stream, which is created if there is none."""
        call = self.connect(name)
        self.commit()
        assert call.slot.status in {200, 201}
        return call.stream_id

    def send(self, call, piece):
        self.do(call.upstream.send, piece)

    def end(self, call):
        self.do(call.upstream.end)

    def abort(self, stream_id, response_id=None):
        """Ask for an abort; a list that holds the answer once there is one."""
        answers = []

        async def abort():
            try:
                await self.service.abort(stream_id, response_id)
            except HoldfastError as error:
                answers.append(error)
            else:
                answers.append(204)

        self.do(self.loop.create_task, abort())
        return answers

    def close_stream(self, stream_id):
        """Close a stream as the base protocol does it."""

        def close():
            try:
                self.service.abort_all(stream_id)
            except HoldfastError as error:
                ask = Ask()
                ask.outcomes.append(error)
                return ask
            return self.engine.append(name=name_of(stream_id), close=True)

        return self.do(close)

    def delete_stream(self, stream_id):
        return self.do(self.engine.delete, name_of(stream_id))

    # What is there.

    def frames(self, stream_id):
        """All frames that readers see, the parts of each Data frame together."""
        return parse(self.engine.read(name_of(stream_id)))

    def kinds(self, stream_id):
        """Types and ids of the frames, in short: `S1 D1 C1`."""
        return " ".join(
            f"{frame.type.decode()}{frame.response_id}" for frame in self.frames(stream_id)
        )

    def body(self, stream_id, response_id=1):
        return body_of(self.frames(stream_id), response_id)

    @property
    def documents(self):
        return dict(self.shard.documents.items(DOCUMENTS))

    @property
    def outcomes(self):
        """How many responses ended in which way, as the metrics have it."""
        return {
            outcome.value: count for outcome, count in self.service.counters._ended.items() if count
        }


def parse(data):
    """The frames of a whole stream, in an order that is allowed."""
    parser, order, frames = FrameParser(), ResponseOrder(), []
    frames = parser.feed(data)
    assert parser.is_between_frames, "half of a frame"
    for frame in frames:
        order.take(frame)
    starts = [frame.response_id for frame in frames if frame.type == START]
    assert starts == list(range(1, len(starts) + 1)), "ids are not 1, 2, 3…"
    return frames


def body_of(frames, response_id):
    """The body that was recorded of a response."""
    return b"".join(
        frame.payload for frame in frames if frame.type == DATA and frame.response_id == response_id
    )


def ends_of(frames):
    """The type of each response's terminal frame, by id; None for those that are open."""
    ends = {frame.response_id: None for frame in frames if frame.type == START}
    ends.update({frame.response_id: frame.type for frame in frames if frame.type in TERMINAL})
    return ends
