"""Frames of a proxy stream, whatever batches they come in, and the places to go on from."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.client.failures import parse_number
from holdfast.client.messages import Batch
from holdfast.client.proxy_frames import FrameFeed, Position, ReadingState, starting_at
from holdfast.errors import BadAnswerError, InvalidRequestError
from holdfast.protocol.frames import (
    ABORT,
    COMPLETE,
    DATA,
    Frame,
    StartInfo,
    encode_error,
    encode_frame,
    encode_start,
)
from tests.thorough import examples
from tests.unit.protocol.splits import random_cuts

TYPE = "application/octet-stream"
FRAMES = [
    encode_start(1, 200, {"content-type": "text/plain"}),
    encode_frame(DATA, 1, b"first "),
    encode_start(2, 201, {}),
    encode_frame(DATA, 2, b""),
    encode_frame(DATA, 1, b"second"),
    encode_frame(DATA, 2, b"x" * 40),
    encode_frame(COMPLETE, 1),
    encode_error(2, "UPSTREAM_TIMEOUT", "Too slow."),
    encode_start(3, 204, {}),
    encode_frame(ABORT, 3),
]
STREAM = b"".join(FRAMES)
BOUNDARIES = [sum(map(len, FRAMES[:count])) for count in range(len(FRAMES) + 1)]


def counted(position):
    """How a server that counts bytes writes an offset."""
    return f"{position:020d}"


def opaque(position):
    """How another one may: it says nothing, but sorts."""
    return f"{position * 7:020d}_x"


def batches(places, name, data=STREAM):
    """The stream in batches that end at these places, from the first of them on."""
    return [
        Batch(data[start:end], TYPE, name(start) if start else "-1", name(end))
        for start, end in pairwise(places)
    ]


def joined(frames):
    """The same frames with the parts of each Data frame put together."""
    found = []
    for frame in frames:
        last = found[-1] if found else None
        if last and frame.type == last.type == DATA and frame.response_id == last.response_id:
            found[-1] = Frame(DATA, frame.response_id, last.payload + frame.payload)
        else:
            found.append(frame)
    return found


def fed(feed, given):
    return [placed for batch in given for placed in feed.feed(batch)]


WHOLE = joined([placed.frame for placed in fed(FrameFeed(Position()), batches([0, 400], counted))])


def places_of(cuts):
    return [0, *sorted({round(cut * len(STREAM)) for cut in cuts} - {0, len(STREAM)}), len(STREAM)]


def from_offset(offset, places, name):
    """Batches of a later read from this offset on, cut otherwise."""
    starts = {name(place): place for place in range(len(STREAM) + 1)} | {"-1": 0}
    start = starts[offset]
    later = [place for place in places if place > start]
    return batches([start, *later, len(STREAM)] if later else [start, len(STREAM)], name)


@pytest.mark.parametrize("name", [counted, opaque])
class TestPlaces:
    @settings(max_examples=examples(30))
    @given(random_cuts, random_cuts)
    def test_whoever_goes_on_from_a_position_sees_the_rest_and_nothing_twice(
        self, name, cuts, others
    ):
        placed = fed(FrameFeed(Position()), batches(places_of(cuts), name))
        assert joined([each.frame for each in placed]) == WHOLE
        for number, each in enumerate(placed, 1):
            position = starting_at("-1", ReadingState(each.position).text()).position
            given_later = from_offset(position.offset, places_of(others), name)
            later = [each.frame for each in fed(FrameFeed(position), given_later)]
            before = [each.frame for each in placed[:number]]
            assert joined(before + later) == WHOLE

    @settings(max_examples=examples(30))
    @given(random_cuts)
    def test_a_read_can_begin_at_every_offset(self, name, cuts):
        placed = fed(FrameFeed(Position()), batches(places_of(cuts), name))
        for number, each in enumerate(placed, 1):
            given_later = from_offset(each.offset, places_of([]), name)
            later = joined([each.frame for each in fed(FrameFeed(Position()), given_later)])
            seen = joined([each.frame for each in placed[:number]])
            # Nothing is missing; what is seen again is at most the frames of an answer.
            assert [frame for frame in WHOLE if frame not in seen and frame not in later] == []

    def test_byte_by_byte(self, name):
        feed = FrameFeed(Position())
        placed = fed(feed, batches(range(len(STREAM) + 1), name))
        assert joined([each.frame for each in placed]) == WHOLE
        assert feed.is_between_frames
        assert feed.offset == name(len(STREAM))
        assert feed.position == Position(name(len(STREAM)))


class TestOffsets:
    def test_are_exact_where_the_server_counts_bytes(self):
        placed = fed(FrameFeed(Position()), batches([0, len(STREAM)], counted))
        assert [each.offset for each in placed] == [counted(place) for place in BOUNDARIES[1:]]
        assert [each.position for each in placed] == [
            Position(counted(place)) for place in BOUNDARIES[1:]
        ]

    def test_of_a_part_are_where_its_frame_begins(self):
        cut = BOUNDARIES[5] + 20
        placed = fed(FrameFeed(Position()), batches([0, cut, len(STREAM)], counted))
        part = placed[5]
        assert part.frame == Frame(DATA, 2, b"x" * 11)
        assert part.offset == counted(BOUNDARIES[5])
        assert part.position.offset == counted(cut)

    def test_of_a_part_in_a_later_read_are_there_as_well(self):
        cuts = [0, BOUNDARIES[5] + 20, BOUNDARIES[5] + 30, len(STREAM)]
        given_batches = batches(cuts, counted)
        first = FrameFeed(Position())
        first.feed(given_batches[0])
        (part,) = FrameFeed(first.position).feed(given_batches[1])
        assert part.offset == counted(BOUNDARIES[5])

    def test_elsewhere_are_the_ends_of_answers(self):
        ends = [0, BOUNDARIES[3], BOUNDARIES[6] + 4, BOUNDARIES[8], len(STREAM)]
        placed = fed(FrameFeed(Position()), batches(ends, opaque))
        assert [each.offset for each in placed] == [
            *["-1"] * 2,
            *[opaque(BOUNDARIES[3])] * 4,
            opaque(BOUNDARIES[3]),
            opaque(BOUNDARIES[8]),
            opaque(BOUNDARIES[8]),
            opaque(len(STREAM)),
        ]

    def test_an_empty_batch_moves_on(self):
        feed = FrameFeed(Position("now"))
        assert feed.feed(Batch(b"", TYPE, "now", counted(7))) == []
        assert (feed.offset, feed.position) == (counted(7), Position(counted(7)))


@pytest.mark.parametrize("offset", ["", "now", "9" * 5000, "²", "-5", "1_0"])
def test_what_is_no_number_is_not_counted_with(offset):
    assert parse_number(offset) == -1
    for given_batch in (
        Batch(STREAM, TYPE, offset, counted(len(STREAM))),
        Batch(STREAM, TYPE, counted(0), offset),
    ):
        placed = FrameFeed(Position(given_batch.offset)).feed(given_batch)
        assert placed[0].position == Position(given_batch.offset, BOUNDARIES[1])


class TestState:
    def test_is_text_and_comes_back(self):
        feed = FrameFeed(Position())
        feed.feed(batches([0, BOUNDARIES[2] + 12, len(STREAM)], opaque)[0])
        saved = ReadingState(feed.position, StartInfo(200, {"a": "ä"}), b"data: \xff", 3)
        assert starting_at("ignored", saved.text()) == saved

    @pytest.mark.parametrize("text", ["", "{}", "nonsense", "[1]", '["-1","x"]', "\ud800"])
    def test_that_is_none_is_refused(self, text):
        with pytest.raises(InvalidRequestError, match="not the state"):
            starting_at("-1", text)

    def test_without_one_the_offset_counts(self):
        assert starting_at(counted(9), None) == ReadingState(Position(counted(9)))


def test_a_read_that_starts_within_a_frame_says_so():
    with pytest.raises(BadAnswerError, match="middle of a frame"):
        FrameFeed(Position(counted(3))).feed(Batch(STREAM[3:], TYPE, counted(3), counted(99)))


@given(st.integers(0, len(STREAM)))
def test_positions_sort_as_they_come(place):
    placed = fed(FrameFeed(Position()), batches(places_of([place / len(STREAM)]), opaque))
    orders = [each.position.order for each in placed]
    assert orders == sorted(orders)
