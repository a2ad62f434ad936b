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
    rule,
)

from holdfast.errors import OutboundError
from holdfast.proxy.access import name_of, session_stream_id
from holdfast.proxy.stream_responses import decode_location
from tests.thorough import examples
from tests.unit.engine.driver import COMMIT_TIMEOUT_S, COMMITTED, FAILED, UNKNOWN
from tests.unit.proxy.driver import Proxy, body_of, ends_of, parse

SESSIONS = ("one", "two")
SIZES = st.sampled_from([1, 10, 3000, 5000, 70_000])
# How often what is done.
WEIGHTS = {
    "ask": 5,
    "send": 6,
    "end": 3,
    "abort": 2,
    "delete": 1,
    "replace": 1,
    "close": 2,
    "connect": 1,
    "fail": 2,
    "lose_sight": 2,
    "settle_unknown": 1,
    "wait": 3,
    "kill": 1,
    "stop": 1,
}
STEPS = st.sampled_from([step for step, weight in WEIGHTS.items() for _ in range(weight)])
BODY_BYTES_MAX = 200_000


@cache
def content(label):
    """A body like no other, wherever one looks at it."""
    return Random(label).randbytes(BODY_BYTES_MAX)


class Histories(RuleBasedStateMachine):
    """A proxy, its clients and upstreams, and what was seen of its streams."""

    @initialize(single=st.booleans(), quota=st.sampled_from([0, 20_000]))
    def begin(self, single, quota):
        # Batches of one record each, or as large as they get; a bucket that may be full.
        engine = {"batch_bytes_max": 1 if single else 1 << 20, "bucket_bytes_max": quota}
        self.proxy = Proxy(engine=engine)
        # All streams there ever were, by name and number: how far they were seen.
        self.seen = {}
        self.stream_ids = {self.proxy.session("one"): None}
        # Calls whose upstreams have more to say, and those of all lives.
        self.calls = []
        self.all_calls = []
        # (answers, responses that were there) of aborts.
        self.aborts = []
        # Whether the outcome of a batch is unknown, and if so whether it is stored.
        self.unknown = None
        # Calls of this life, and whether all went well with the log.
        self.life = []
        self.is_faultless = not quota

    # One rule for all: hypothesis leaves some rules out of each run, and most are of use together.
    @rule(data=st.data(), step=STEPS, then=st.sampled_from(["", "", "commit one", "commit all"]))
    def do(self, data, step, then):
        getattr(self, step)(data.draw)
        self.proxy.run()
        if then == "commit one":
            self.answer_log(COMMITTED)
        elif then == "commit all":
            self.settle_unknown()
            self.proxy.commit()
            self.check_answers()

    # Clients and upstreams.

    def ask(self, draw):
        """A response of a new stream or, most of the time, of one that is there."""
        stream_id = draw(st.sampled_from([*self.open_streams, None]))
        call = self.proxy.post(stream_id)
        call.label = len(self.all_calls)
        call.number = stream_id and self.proxy.shard.find(name_of(stream_id)).number
        for calls in (self.calls, self.life, self.all_calls):
            calls.append(call)
        self.stream_ids.setdefault(call.stream_id)
        if draw(st.booleans()):
            self.send_to(call, draw(SIZES))

    def send(self, draw):
        if self.calls:
            self.send_to(draw(st.sampled_from(self.calls[-4:])), draw(SIZES))

    def send_to(self, call, size):
        start = len(call.upstream.sent)
        self.proxy.send(call, content(call.label)[start : start + size])

    def end(self, draw):
        if self.calls:
            call = self.calls.pop(draw(st.integers(0, len(self.calls) - 1)))
            if draw(st.booleans()):
                self.proxy.end(call)
            else:
                self.proxy.do(call.upstream.fail, OutboundError("It broke."))

    def abort(self, draw):
        stream_id, response_id = self.any_stream(draw), draw(st.sampled_from([None, None, 1, 2]))
        stream = self.proxy.shard.state.find(name_of(stream_id))
        there = []
        if stream is not None:
            ids = ends_of(self.proxy.frames(stream_id))
            there = [each for each in ids if response_id in {None, each}]
        number = stream and stream.number
        self.aborts.append((self.proxy.abort(stream_id, response_id), stream_id, number, there))

    def delete(self, draw):
        self.proxy.delete_stream(self.any_stream(draw))

    def replace(self, draw):
        """A session's stream is deleted and created anew, without waiting for either."""
        name = draw(st.sampled_from(SESSIONS))
        self.proxy.delete_stream(session_stream_id(name))
        self.proxy.engine.create(name_of(session_stream_id(name)), "application/octet-stream")
        self.stream_ids.setdefault(session_stream_id(name))

    def close(self, draw):
        self.proxy.close_stream(self.any_stream(draw))

    def connect(self, draw):
        """A session's stream is there, or is created."""
        self.stream_ids.setdefault(self.proxy.connect(draw(st.sampled_from(SESSIONS))).stream_id)

    @property
    def open_streams(self):
        """Those that responses can be appended to."""
        state = self.proxy.shard.state
        found = [state.find(name_of(stream_id)) for stream_id in self.stream_ids]
        return [each.meta.name.partition("/")[2] for each in found if each and not each.closed]

    def any_stream(self, draw):
        # Those that are there, and the last one, which is about to be.
        return draw(st.sampled_from([*self.open_streams, *list(self.stream_ids)[-1:]]))

    # The log, the clock, the machine.

    def answer_log(self, outcome, **truth):
        self.proxy.run()
        self.is_faultless &= outcome is COMMITTED
        if self.proxy.engine.log.under_way is not None and self.unknown is None:
            self.proxy.answer(outcome, **truth)
            return True
        return False

    def fail(self, _draw):
        self.answer_log(FAILED)

    def lose_sight(self, draw):
        stored = draw(st.booleans())
        if self.answer_log(UNKNOWN, stored=stored):
            self.unknown = stored

    def settle_unknown(self, _draw=None):
        if self.unknown is not None:
            stored, self.unknown = self.unknown, None
            self.proxy.answer(COMMITTED if stored else FAILED)

    def wait(self, draw):
        seconds = draw(st.sampled_from([0.01, 0.06, 0.2, 1.0, 6.0, 40.0]))
        # A log that says nothing for so long is a fault as well.
        self.is_faultless &= seconds < COMMIT_TIMEOUT_S
        self.proxy.advance(seconds)

    def kill(self, draw):
        self.restart(stored=draw(st.booleans()) and self.unknown is None)

    def stop(self, _draw):
        """A graceful end, as long as the log allows it."""
        self.settle_unknown()
        self.proxy.do(self.proxy.service.stop)
        assert all(call.upstream.left for call in self.calls)
        self.proxy.settle()
        self.streams_only_grow_and_are_in_order()
        self.check_all_ended()
        self.restart(stored=False)

    def restart(self, *, stored):
        self.proxy = self.proxy.restart(stored=stored)
        self.unknown = None
        self.is_faultless = not self.proxy.limits["bucket_bytes_max"]
        self.life.clear()
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
        places = [decode_location(value) for value in self.proxy.documents.values()]
        found = {
            place.response_id
            for place in places
            if place.name == name and place.number in {0, stream.number}
        }
        assert is_open <= found, "a crash would leave it open"
        for call in self.all_calls:
            if name_of(call.stream_id) == name and call.number in {None, stream.number}:
                answered = call.slot.answered and call.slot.response_id
                assert not answered or answered in ends_of(frames), "answered, but not there"
        for answers, stream_id, number, there in self.aborts:
            if answers == [204] and number == stream.number and name_of(stream_id) == name:
                assert not is_open.intersection(there), "said to be aborted, but open"

    def check_answers(self):
        """Everything is committed: whoever can be answered is, and well if nothing went wrong."""
        for call in self.life:
            assert call.slot.answered or not call.upstream.answered.is_set(), "nobody answers"
            if call.slot.answered and self.is_faultless:
                assert call.slot.code != "STORAGE_ERROR", "refused for no reason"

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
        self.check_all_ended()
        assert not self.is_faultless or self.proxy.documents == {}
        assert not self.proxy.service._by_stream
        assert not self.proxy.service._tasks
        assert all(answers == [204] for answers, *_ in self.aborts)
        self.restart(stored=False)
        self.proxy.settle()
        self.streams_only_grow_and_are_in_order()
        self.check_all_ended()
        assert self.proxy.documents == {}
        self.proxy.close()


Histories.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=50)
TestHistories = Histories.TestCase
