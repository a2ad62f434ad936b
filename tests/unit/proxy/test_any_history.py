"""Whatever happens, in whatever order: frames in order and once, ids 1, 2, 3…, one end for each.

Streams are created, connected to, closed, deleted and created anew; their responses come in pieces,
end, break off and are aborted, while the log fails or does not answer and the server is killed.
"""

from functools import cache
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from holdfast.errors import OutboundError
from holdfast.proxy.desk import decode_place
from holdfast.proxy.stream_ids import name_of
from tests.unit.engine.driver import COMMITTED, FAILED, UNKNOWN
from tests.unit.proxy.driver import Proxy, body_of, ends_of, parse

SESSIONS = ("one", "two")
SIZES = st.sampled_from([1, 10, 3000, 5000, 70_000])
# What the log does behind a step.
THEN = st.sampled_from(["nothing", "commit one", "commit all"])
SECONDS = st.sampled_from([0.01, 0.06, 0.2, 1.0, 6.0, 40.0])
BODY_BYTES_MAX = 200_000


@cache
def content(label):
    """A body like no other, wherever one looks at it."""
    return Random(label).randbytes(BODY_BYTES_MAX)


class Histories(RuleBasedStateMachine):
    """A proxy, its clients and upstreams, and what was seen of its streams."""

    @initialize(single=st.booleans(), quota=st.sampled_from([0, 0, 20_000]))
    def begin(self, single, quota):
        # Batches of one record each, or as large as they get; a bucket that may be full.
        engine = {"batch_bytes_max": 1 if single else 1 << 20, "bucket_bytes_max": quota}
        self.proxy = Proxy(engine=engine)
        # All streams there ever were, by name and number: how far they were seen.
        self.seen = {}
        self.stream_ids = {self.proxy.session("one"): None}
        # Calls of this life that have not ended for their upstreams, and those of all lives.
        self.calls = []
        self.all_calls = []
        # (answers, responses that were there) of aborts.
        self.aborts = []
        self.unknown = None

    # Clients and upstreams.

    @rule(data=st.data(), then=THEN, answers=st.booleans(), size=SIZES)
    def ask(self, data, then, answers, size):
        """A response of a new stream or, most of the time, of one that is there."""
        stream_id = data.draw(st.sampled_from([*self.open_streams, None]))
        call = self.proxy.post(stream_id)
        call.label = len(self.all_calls)
        call.number = stream_id and self.proxy.shard.find(name_of(stream_id)).number
        self.all_calls.append(call)
        self.calls.append(call)
        self.stream_ids.setdefault(call.stream_id)
        if answers:
            self.send_to(call, size)
        self.then(then)

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), then=THEN, size=SIZES)
    def send(self, data, then, size):
        self.send_to(self.any_call(data), size)
        self.then(then)

    def send_to(self, call, size):
        start = len(call.upstream.sent)
        self.proxy.send(call, content(call.label)[start : start + size])

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), then=THEN, breaks=st.booleans())
    def end(self, data, then, breaks):
        call = self.any_call(data)
        self.calls.remove(call)
        if breaks:
            self.proxy.do(call.upstream.fail, OutboundError("It broke."))
        else:
            self.proxy.end(call)
        self.then(then)

    @rule(data=st.data(), then=THEN, response_id=st.sampled_from([None, None, 1, 2]))
    def abort(self, data, then, response_id):
        stream_id = self.any_stream(data)
        stream = self.proxy.shard.state.find(name_of(stream_id))
        there = []
        if stream is not None:
            ids = ends_of(self.proxy.frames(stream_id))
            there = [each for each in ids if response_id in {None, each}]
        number = stream and stream.number
        self.aborts.append((self.proxy.abort(stream_id, response_id), stream_id, number, there))
        self.then(then)

    @rule(data=st.data(), then=THEN, how=st.sampled_from(["delete", "delete", "close"]))
    def remove(self, data, then, how):
        """Delete or close a stream; a session's is connected to again later, or at once."""
        stream_id = self.any_stream(data)
        if how == "delete":
            self.proxy.delete_stream(stream_id)
        else:
            self.proxy.close_stream(stream_id)
        self.then(then)

    @rule(name=st.sampled_from(SESSIONS), then=THEN)
    def connect(self, name, then):
        self.stream_ids.setdefault(self.proxy.connect(name).stream_id)
        self.then(then)

    @property
    def open_streams(self):
        """Those that responses can be appended to."""
        state = self.proxy.shard.state
        found = [state.find(name_of(stream_id)) for stream_id in self.stream_ids]
        return [each.meta.name.partition("/")[2] for each in found if each and not each.closed]

    def any_stream(self, data):
        # Those that are there, and the last one, which is about to be.
        return data.draw(st.sampled_from([*self.open_streams, *list(self.stream_ids)[-1:]]))

    def any_call(self, data):
        return data.draw(st.sampled_from(self.calls[-4:]))

    # The log, the clock, the machine.

    def then(self, what):
        if what == "commit one":
            self.answer_log(COMMITTED)
        elif what == "commit all":
            self.settle_unknown()
            self.proxy.commit()

    def answer_log(self, outcome, **truth):
        self.proxy.run()
        if self.proxy.engine.log.under_way is not None and self.unknown is None:
            self.proxy.answer(outcome, **truth)
            return True
        return False

    @rule()
    def fail(self):
        self.answer_log(FAILED)

    @rule(stored=st.booleans())
    def lose_sight(self, stored):
        if self.answer_log(UNKNOWN, stored=stored):
            self.unknown = stored

    @rule()
    def settle_unknown(self):
        if self.unknown is not None:
            stored, self.unknown = self.unknown, None
            self.proxy.answer(COMMITTED if stored else FAILED)

    @rule(seconds=SECONDS, then=THEN)
    def wait(self, seconds, then):
        self.proxy.advance(seconds)
        self.then(then)

    @rule(how=st.sampled_from(["kill, stored", "kill, lost", "stop"]))
    def end_life(self, how):
        if how == "stop":
            self.settle_unknown()
            self.proxy.do(self.proxy.service.stop)
            assert all(call.upstream.left for call in self.calls)
            self.proxy.settle()
            self.streams_only_grow_and_are_in_order()
            if not self.proxy.limits["bucket_bytes_max"]:
                self.check_all_ended()
        self.restart(stored=how == "kill, stored" and self.unknown is None)

    def restart(self, *, stored):
        self.proxy = self.proxy.restart(stored=stored)
        self.unknown = None
        self.calls.clear()
        self.aborts.clear()

    # What must be.

    @invariant()
    def streams_only_grow_and_are_in_order(self):
        proxy, state = self.proxy, self.proxy.shard.state
        present = set()
        for name in list(proxy.shard.names("_proxy/")):
            stream = state.find(name)
            present.add((name, stream.number))
            data = proxy.engine.read(name)
            before, frames = self.seen.get((name, stream.number), (b"", None))
            if frames is None or data != before:
                assert data.startswith(before), "what was seen has changed"
                frames = parse(data)
                self.seen[name, stream.number] = data, frames
                self.check_bodies(name, stream.number, frames)
            self.check_open(name, stream, frames)
        self.check_upstreams(present)

    def check_bodies(self, name, number, frames):
        """Each body is the beginning of what one upstream sent, all of it if it is complete."""
        calls = [call for call in self.all_calls if name_of(call.stream_id) == name]
        for response_id, end in ends_of(frames).items():
            body = body_of(frames, response_id)
            known = [
                call
                for call in calls
                if call.slot.answered and self.is_response(call, number, response_id)
            ]
            assert len(known) <= 1, "two clients have the same response"
            fitting = [call for call in known or calls if call.upstream.sent.startswith(body)]
            assert fitting, "nobody sent this"
            if end == b"C":
                assert any(
                    call.upstream.ended and call.upstream.sent == body for call in fitting
                ), "complete, but not all of it"

    @staticmethod
    def is_response(call, number, response_id):
        return call.slot.response_id == response_id and call.number in {None, number}

    def check_open(self, name, stream, frames):
        """What has not ended will be ended, after a crash as well; nothing is open when closed."""
        is_open = {response_id for response_id, end in ends_of(frames).items() if end is None}
        assert not (is_open and stream.closed), "closed before its responses had ended"
        places = [decode_place(value) for value in self.proxy.documents.values()]
        found = {
            place.response_id
            for place in places
            if place.name == name and place.number in {0, stream.number}
        }
        assert is_open <= found, "a crash would leave it open"
        for call in self.all_calls:
            if call.slot.answered and call.slot.response_id and name_of(call.stream_id) == name:
                if call.number in {None, stream.number}:
                    assert call.slot.response_id in ends_of(frames), "answered, but not there"
        for answers, stream_id, number, there in self.aborts:
            if answers == [204] and number == stream.number and name_of(stream_id) == name:
                assert not is_open.intersection(there), "said to be aborted, but open"

    def check_upstreams(self, present):
        """Nobody listens to an upstream for a stream that takes nothing any more."""
        state = self.proxy.shard.state
        for call in self.calls:
            name = name_of(call.stream_id)
            number = call.number
            if number is None and call.slot.answered and call.slot.response_id:
                number = next((each for key, each in self.seen if key == name), None)
            if number is not None:
                is_open = (name, number) in present and not state.find(name).closed
                assert is_open or call.upstream.left, "an upstream goes on for nothing"

    def check_all_ended(self):
        for name in self.proxy.shard.names("_proxy/"):
            ends = ends_of(parse(self.proxy.engine.read(name)))
            assert None not in ends.values(), f"{name} has a response that never ends"

    def teardown(self):
        """Everything comes to an end, in this life or in the next."""
        if not hasattr(self, "proxy"):
            return
        self.settle_unknown()
        for call in list(self.calls):
            self.proxy.end(call)
        self.proxy.settle()
        self.streams_only_grow_and_are_in_order()
        is_full = bool(self.proxy.limits["bucket_bytes_max"])
        if not is_full:
            self.check_all_ended()
            assert not self.proxy.service._desks
            assert not self.proxy.service._tasks
            assert all(answers == [204] for answers, *_ in self.aborts)
        self.restart(stored=False)
        self.proxy.settle()
        self.streams_only_grow_and_are_in_order()
        if not is_full:
            self.check_all_ended()
            assert self.proxy.documents == {}
        self.proxy.close()


Histories.TestCase.settings = settings(max_examples=150, stateful_step_count=50)
TestHistories = Histories.TestCase
