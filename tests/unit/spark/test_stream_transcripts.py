"""Responses from the messages of a stream: the same, however it is cut into messages and runs."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.frames import (
    ABORT,
    COMPLETE,
    DATA,
    START,
    Outcome,
    encode_error,
    encode_frame,
    encode_start,
)
from holdfast.spark.transcribing.responses import OpenResponse, OpenStream, StreamTranscript

HEADERS = {"content-type": "text/plain"}
ENDS = {
    Outcome.COMPLETE: lambda number: encode_frame(COMPLETE, number),
    Outcome.ABORTED: lambda number: encode_frame(ABORT, number),
    Outcome.FAILED: lambda number: encode_error(number, "UPSTREAM_ERROR", "It broke."),
    Outcome.OPEN: None,
}


class Stream:
    """A stream's messages, and runs that read what came since the last one."""

    def __init__(self, body_bytes_max=100):
        self.data = b""
        self.messages = []
        self.known = None
        self.read = 0
        self.damage = []
        self._body_bytes_max = body_bytes_max

    def append(self, payload, at_ms=0):
        start = len(self.data)
        self.data += payload
        self.messages.append((start, len(self.data), payload, at_ms))

    def run(self, upto=None, piece=1 << 20):
        """Read on, up to some message; what has ended."""
        new = self.messages[self.read : upto]
        if not new:
            return []
        reader = StreamTranscript("s", self._body_bytes_max, self.known)
        if reader.missing is not None and reader.missing[1] == new[0][0]:
            start, end = reader.missing
            for at in range(start, end, piece):
                reader.again(self.data[at : min(at + piece, end)])
        found = [each for message in new for each in reader.take(*message)]
        self.read += len(new)
        self.known = reader.left()
        self.damage += [reader.damage] if reader.damage else []
        return found


@st.composite
def histories(draw):
    """Responses, and their frames between one another."""
    bodies = draw(st.lists(st.lists(st.binary(max_size=8), max_size=4), min_size=1, max_size=4))
    outcomes = [draw(st.sampled_from(list(ENDS))) for _ in bodies]
    waiting = {}
    for number, (body, outcome) in enumerate(zip(bodies, outcomes, strict=True), 1):
        frames = [encode_start(number, 200 + number, HEADERS)]
        frames += [encode_frame(DATA, number, each) for each in body]
        frames += [ENDS[outcome](number)] if ENDS[outcome] else []
        waiting[number] = frames
    data = b""
    while any(waiting.values()):
        number = draw(st.sampled_from([each for each, frames in waiting.items() if frames]))
        data += waiting[number].pop(0)
    return [b"".join(each) for each in bodies], outcomes, data


@given(histories(), st.data())
def test_however_it_is_cut(history, chance):
    bodies, outcomes, data = history
    stream = Stream()
    places = st.lists(st.integers(1, max(1, len(data) - 1)), max_size=12)
    cuts = [0, *sorted(set(chance.draw(places))), len(data)]
    for at, (start, end) in enumerate(pairwise(cuts)):
        if start < end:
            stream.append(data[start:end], at)
    found = []
    while stream.read < len(stream.messages):
        upto = stream.read + chance.draw(st.integers(1, 4))
        found += stream.run(upto, chance.draw(st.integers(1, 50)))
    assert not stream.damage
    ended = {each.response_id: each for each in found}
    assert len(ended) == len(found)
    for number, (body, outcome) in enumerate(zip(bodies, outcomes, strict=True), 1):
        if outcome is Outcome.OPEN:
            assert number not in ended
            continue
        each = ended[number]
        assert (each.outcome, each.status, each.headers) == (outcome, 200 + number, HEADERS)
        assert (each.body, each.size_bytes) == (body, len(body))
        assert each.started_at_ms <= each.ended_at_ms
        assert (each.error_code is not None) == (outcome is Outcome.FAILED)
        # When the message came with which its first frame, and its last one, were complete.
        start = data.index(encode_start(number, 200 + number, HEADERS))
        first = start + len(encode_start(number, 200 + number, HEADERS))
        assert each.started_at_ms == next(
            at_ms for _, end, _, at_ms in stream.messages if end >= first
        )
    left = {each.response_id: each for each in (stream.known.responses if stream.known else ())}
    assert set(left) == {at for at, each in enumerate(outcomes, 1) if each is Outcome.OPEN}
    for number, each in left.items():
        assert each.size_bytes == len(bodies[number - 1])


def test_what_ended_is_not_found_again():
    stream = Stream()
    stream.append(encode_start(1, 200, HEADERS))
    stream.append(encode_start(2, 200, HEADERS) + encode_frame(COMPLETE, 2), 5)
    assert [each.response_id for each in stream.run()] == [2]
    assert stream.known == OpenStream("s", 0, len(stream.data), [OpenResponse(1, 0, 200, 0, 0, 0)])
    stream.append(encode_start(3, 200, HEADERS), 7)
    assert stream.run() == []
    stream.append(encode_frame(COMPLETE, 1), 9)
    (first,) = stream.run()
    assert (first.response_id, first.started_at_ms, first.ended_at_ms) == (1, 0, 9)
    # The state does not reach back further than it must.
    assert stream.known.start == stream.messages[2][0]


def test_a_body_is_cut_and_the_answer_is_not():
    events = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n' * 10
    stream = Stream(body_bytes_max=30)
    stream.append(encode_start(1, 200, {"content-type": "text/event-stream"}))
    for at in range(0, len(events), 20):
        stream.append(encode_frame(DATA, 1, events[at : at + 20]))
        stream.run()
    stream.append(encode_frame(COMPLETE, 1))
    (found,) = stream.run()
    assert (found.body, found.size_bytes) == (events[:30], len(events))
    assert found.answer.text == "x" * 10


def test_another_stream_of_the_same_name():
    stream = Stream()
    stream.append(encode_start(1, 200, HEADERS) + encode_frame(DATA, 1, b"abc"), 3)
    stream.run()
    known = stream.known
    again = Stream()
    again.known = known
    again.append(encode_start(1, 201, HEADERS) + encode_frame(COMPLETE, 1), 9)
    old, new = again.run()
    assert (old.outcome, old.started_at_ms, old.status, old.body) == (Outcome.OPEN, 3, 200, None)
    assert (old.size_bytes, old.ended_at_ms) == (3, None)
    assert (new.outcome, new.status, new.ended_at_ms) == (Outcome.COMPLETE, 201, 9)
    assert again.known is None


@pytest.mark.parametrize(
    "bytes_then",
    [
        b"",
        encode_start(1, 200, HEADERS),
        encode_start(1, 200, HEADERS) + encode_frame(DATA, 1, b"xyz1"),
        b"no frames at all, but as long as what was there before once",
    ],
)
def test_what_was_read_before_is_not_there_any_more(bytes_then):
    stream = Stream()
    stream.append(encode_start(1, 200, HEADERS) + encode_frame(DATA, 1, b"abc"))
    stream.run()
    reader = StreamTranscript("s", 100, stream.known)
    reader.again(bytes_then[: stream.known.end])
    end = stream.known.end
    found = reader.take(end, end + 9, encode_frame(COMPLETE, 1), 5)
    assert [(each.outcome, each.body) for each in found] == [(Outcome.OPEN, None)]
    assert reader.left() is None


def test_a_gap_leaves_open_what_was_open():
    reader = StreamTranscript("s", 100)
    start = encode_start(1, 200, HEADERS)
    assert reader.take(0, len(start), start, 1) == []
    data = encode_frame(DATA, 1, b"late") + encode_frame(COMPLETE, 1)
    (found,) = reader.take(1000, 1000 + len(data), data, 2)
    assert (found.outcome, found.body) == (Outcome.OPEN, b"")
    assert reader.left() is None


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"hello, world", "begins no frame"),
        (encode_start(1, 200, HEADERS), "two Start frames"),
        (encode_frame(DATA, 2) + encode_frame(COMPLETE, 2) * 2, "after its end"),
        (b"C\x00\x00\x00\x01\x00\x00\x00\x05", "must have none"),
    ],
)
def test_what_is_no_frame_ends_the_reading(bad, why):
    stream = Stream()
    stream.append(encode_start(1, 200, HEADERS) + encode_frame(DATA, 1, b"abc"))
    stream.append(bad)
    stream.append(encode_frame(COMPLETE, 1))
    (found,) = stream.run()
    assert (found.outcome, found.body) == (Outcome.OPEN, b"abc")
    (damage,) = stream.damage
    assert why in damage.why
    assert damage.offset == f"{stream.messages[1][0]:020d}"
    assert stream.known.damaged
    # Nothing more comes of it, and it is said once.
    stream.append(encode_start(5, 200, HEADERS) + encode_frame(COMPLETE, 5))
    assert stream.run() == []
    assert len(stream.damage) == 1
    again = Stream()
    again.known = stream.known
    again.append(encode_start(1, 200, HEADERS) + encode_frame(COMPLETE, 1))
    assert [each.outcome for each in again.run()] == [Outcome.COMPLETE]


def test_frames_whose_json_is_none_do_not_end_it():
    stream = Stream()
    stream.append(encode_frame(START, 1, b"[]") + encode_frame(DATA, 1, b"abc"))
    stream.append(encode_frame(b"E", 1, b"{"))
    (found,) = stream.run()
    assert (found.status, found.headers, found.body) == (None, None, b"abc")
    assert (found.outcome, found.error_code) == (Outcome.FAILED, None)
