"""A recording: frames go into the stream in order, once each, and not in too small pieces."""

import asyncio

import pytest

from holdfast.protocol.frames import COMPLETE, DATA, encode_error, encode_frame, encode_start
from holdfast.protocol.producer import Producer
from holdfast.proxy.recording import (
    BATCH_BYTES,
    BATCH_S,
    FRAME_BYTES_MAX,
    PATIENCE_S,
    WINDOW_BYTES,
    Place,
    Recording,
)
from tests.unit.engine.driver import COMMIT_TIMEOUT_S, COMMITTED, FAILED, UNKNOWN, Driver
from tests.unit.proxy.driver import parse

NAME = "_proxy/stream"
START = encode_start(1, 200, {})
END = encode_frame(COMPLETE, 1)


class Desk:
    """A recording whose Start frame is stored, and what it has said."""

    def __init__(self, **settings):
        self.engine = Driver(**settings)
        created = self.engine.create(
            NAME,
            "application/octet-stream",
            body=START,
            producer=Producer(b"proxy-0", 0, 0),
        )
        number = self.engine.committed(created).number
        self.failures, self.done = [], 0
        self.recording = Recording(
            self.engine.shard,
            self.engine.clock,
            Place(NAME, 1, b"proxy-0", 0, number),
            on_failing=self._failing,
            on_done=self._is_done,
        )
        self.recording.has_begun = True
        self.written = b""

    def _failing(self, error):
        self.failures.append(error.code)
        self.recording.end(encode_error(1, "STORAGE_ERROR", "no more"), drop=True)

    def _is_done(self):
        self.done += 1

    def write(self, piece):
        self.written += piece
        self.recording.write(piece)

    def wait(self, seconds):
        self.engine.clock.advance(seconds)

    def settle(self):
        for _ in range(8):
            self.engine.commit()
            self.wait(6)
        self.engine.commit()

    @property
    def frames(self):
        return parse(self.engine.read(NAME))

    @property
    def sizes(self):
        """Of the Data frames that readers see."""
        return [len(frame.payload) for frame in self.frames if frame.type == DATA]

    @property
    def body(self):
        return b"".join(frame.payload for frame in self.frames if frame.type == DATA)

    @property
    def types(self):
        return b"".join(frame.type for frame in self.frames).decode()


@pytest.fixture
def desk():
    return Desk()


@pytest.mark.spec("proxy 5.2-7", "proxy 9.2-1")
def test_the_first_piece_goes_at_once_and_the_next_ones_together(desk):
    desk.write(b"a")
    desk.engine.commit()
    assert desk.sizes == [1]
    for _ in range(10):
        desk.write(b"bc")
    desk.wait(BATCH_S * 0.9)
    desk.engine.commit()
    assert desk.sizes == [1]
    desk.wait(BATCH_S * 0.11)
    desk.engine.commit()
    assert desk.sizes == [1, 20]
    # They were written just now, so the next one waits again, but not after silence.
    desk.write(b"d")
    desk.engine.commit()
    assert desk.sizes == [1, 20]
    desk.wait(BATCH_S)
    desk.write(b"e")
    desk.engine.commit()
    assert desk.sizes == [1, 20, 1]
    desk.wait(2 * BATCH_S)
    desk.write(b"f")
    desk.engine.commit()
    assert desk.sizes == [1, 20, 1, 1, 1]
    assert desk.body == desk.written


def test_a_steady_upstream_that_was_late_once_is_not_late_for_ever(desk):
    for late_s in (0.0, 0.02, 0.0, 0.0):
        # Each is sent BATCH_S after the one before, and `late_s` is the way here.
        desk.wait(late_s)
        desk.write(b"x")
        desk.engine.commit()
        assert desk.body == desk.written
        desk.wait(BATCH_S - late_s)


@pytest.mark.spec("proxy 5.2-7", "proxy 9.2-1")
def test_enough_for_a_frame_does_not_wait(desk):
    desk.write(b"a")
    desk.write(b"b" * (BATCH_BYTES - 1))
    desk.engine.commit()
    assert desk.sizes == [1]
    desk.write(b"c")
    desk.engine.commit()
    assert desk.sizes == [1, BATCH_BYTES]
    # The timer that was set for them is gone.
    desk.write(b"d")
    desk.wait(BATCH_S * 0.9)
    desk.engine.commit()
    assert desk.sizes == [1, BATCH_BYTES]
    desk.wait(BATCH_S)
    desk.engine.commit()
    assert desk.sizes == [1, BATCH_BYTES, 1]


def test_a_long_piece_becomes_several_frames(desk):
    desk.write(b"x" * (2 * FRAME_BYTES_MAX + 5))
    desk.engine.commit()
    assert desk.sizes == [FRAME_BYTES_MAX, FRAME_BYTES_MAX, 5]
    assert desk.body == desk.written


def test_the_end_takes_along_what_was_gathered(desk):
    desk.write(b"a")
    desk.write(b"b")
    desk.recording.end(END)
    desk.engine.commit()
    assert (desk.types, desk.body, desk.done) == ("SDDC", b"ab", 1)
    desk.recording.write(b"too late")
    desk.settle()
    assert (desk.types, desk.done) == ("SDDC", 1)


def test_an_empty_piece_is_no_frame(desk):
    desk.write(b"")
    desk.recording.end(END)
    desk.engine.commit()
    assert desk.types == "SC"


def test_the_window_bounds_what_is_not_durable(desk):
    async def fill():
        pieces = 0
        while not desk.recording.is_full:
            desk.write(b"x" * BATCH_BYTES)
            pieces += 1
        assert WINDOW_BYTES < pieces * (BATCH_BYTES + 9) <= WINDOW_BYTES + BATCH_BYTES + 9
        waiting = asyncio.create_task(desk.recording.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        desk.engine.commit()
        await asyncio.sleep(0)
        assert waiting.done()
        assert not desk.recording.is_full
        # Whoever waits is let go of if nothing more will be stored.
        while not desk.recording.is_full:
            desk.write(b"x" * BATCH_BYTES)
        waiting = asyncio.create_task(desk.recording.room())
        await asyncio.sleep(0)
        desk.recording.cut()
        await asyncio.sleep(0)
        assert waiting.done()

    asyncio.run(fill())


def fill_one(desk, number):
    desk.write(b"%d" % number * BATCH_BYTES)


@pytest.mark.parametrize("lost", range(4))
def test_what_was_not_stored_is_sent_again_in_order(desk, lost):
    """Any of four frames, each in a batch of its own, fails, and all behind it with it."""
    for number in range(4):
        fill_one(desk, number)
        desk.engine.clock.run()
        if number < lost:
            desk.engine.commit()
        elif number == lost:
            desk.engine.answer(FAILED)
    desk.settle()
    assert desk.sizes == [BATCH_BYTES] * 4
    assert desk.body == desk.written


def test_it_goes_on_after_many_failures(desk):
    for number in range(8):
        fill_one(desk, number)
        desk.wait(5)
        desk.engine.answer(FAILED if number % 4 else COMMITTED)
    desk.recording.end(END)
    desk.settle()
    assert (desk.body, desk.failures, desk.done) == (desk.written, [], 1)
    assert desk.types == "S" + "D" * 8 + "C"


@pytest.mark.parametrize("stored", [True, False])
def test_an_unknown_outcome_neither_loses_nor_repeats(desk, stored):
    fill_one(desk, 0)
    desk.engine.answer(UNKNOWN, stored=stored)
    # Refused meanwhile, and kept.
    fill_one(desk, 1)
    desk.wait(COMMIT_TIMEOUT_S)
    fill_one(desk, 2)
    desk.wait(3)
    desk.engine.answer(COMMITTED if stored else FAILED)
    desk.recording.end(END)
    desk.settle()
    assert (desk.types, desk.done) == ("SDDDC", 1)
    assert desk.body == desk.written


def test_a_batch_behind_an_unknown_one(desk):
    """It is told of a timeout as well, but is only stored later."""
    fill_one(desk, 0)
    desk.engine.clock.run()
    fill_one(desk, 1)
    desk.recording.end(END)
    desk.wait(COMMIT_TIMEOUT_S)
    desk.wait(1)
    assert desk.done == 0
    desk.settle()
    assert (desk.types, desk.body, desk.done) == ("SDDC", desk.written, 1)


def test_a_log_with_too_much_to_do(desk):
    desk.engine.shard._commits.pending_bytes_max = 10_000
    for number in range(8):
        fill_one(desk, number)
    desk.recording.end(END)
    desk.settle()
    assert (desk.types, desk.body, desk.done) == ("S" + "D" * 8 + "C", desk.written, 1)


def test_a_log_that_takes_nothing_for_long_ends_the_response(desk):
    fill_one(desk, 0)
    desk.engine.answer(UNKNOWN, stored=True)
    fill_one(desk, 1)
    desk.wait(PATIENCE_S + 10)
    assert desk.failures == ["unavailable"]
    fill_one(desk, 2)
    desk.engine.answer(COMMITTED)
    desk.settle()
    # What was stored stays, and nothing has a hole.
    assert (desk.types, desk.body, desk.done) == ("SDE", b"0" * BATCH_BYTES, 1)


def test_a_full_bucket():
    desk = Desk(bucket_bytes_max=1000)
    desk.write(b"kept")
    desk.write(b"x" * (3 * FRAME_BYTES_MAX))
    desk.settle()
    assert desk.failures == ["quota_exceeded"]
    assert (desk.types, desk.body, desk.done) == ("SDE", b"kept", 1)


@pytest.mark.parametrize("more", [5, FRAME_BYTES_MAX])
def test_no_end_without_what_is_before_it(more):
    """The refusal of the data waits for the log, and the end would have room."""
    desk = Desk(bucket_bytes_max=1000)
    desk.write(b"kept")
    desk.write(b"x" * (FRAME_BYTES_MAX + more))
    desk.recording.end(END)
    desk.settle()
    assert (desk.types, desk.body, desk.done) == ("SDE", b"kept", 1)
    assert desk.failures == ["quota_exceeded"]


def test_there_is_always_room_for_the_end():
    desk = Desk(bucket_bytes_max=len(START) + 9 + 50)
    desk.write(b"x" * 50)
    desk.engine.commit()
    desk.recording.end(END)
    desk.engine.commit()
    assert (desk.types, desk.body, desk.done, desk.failures) == ("SDC", b"x" * 50, 1, [])


def test_a_bucket_that_is_full_when_the_rest_is_written():
    desk = Desk(bucket_bytes_max=len(START) + 20)
    desk.write(b"x" * 11)
    desk.engine.commit()
    desk.write(b"gathered")
    desk.recording.end(END)
    desk.settle()
    assert (desk.types, desk.body, desk.done) == ("SDE", b"x" * 11, 1)
    assert desk.failures == ["quota_exceeded"]


def test_a_bucket_that_is_full_already():
    """The refusal comes at once, in the middle of a piece that takes several frames."""
    desk = Desk(bucket_bytes_max=1000)
    desk.write(b"x" * (3 * FRAME_BYTES_MAX))
    assert desk.failures == ["quota_exceeded"]
    desk.settle()
    assert (desk.types, desk.done) == ("SE", 1)


def test_a_bucket_that_is_more_than_full():
    """What is on its way is not counted until it is there, so that there may be too much."""
    desk = Desk(bucket_bytes_max=len(START) + 30)
    desk.write(b"x" * 20)
    desk.wait(BATCH_S)
    desk.write(b"y" * 20)
    desk.engine.commit()
    desk.wait(BATCH_S)
    desk.write(b"z")
    desk.settle()
    assert (desk.types, desk.body, desk.done) == ("SDDE", b"x" * 20 + b"y" * 20, 1)
    assert desk.failures == ["quota_exceeded"]


@pytest.mark.parametrize("closes", [True, False])
def test_a_stream_that_takes_nothing_more(desk, closes):
    fill_one(desk, 0)
    if closes:
        desk.engine.append(name=NAME, close=True)
    else:
        desk.engine.delete(NAME)
    fill_one(desk, 1)
    fill_one(desk, 2)
    desk.engine.commit()
    assert desk.done == 1
    desk.recording.write(b"too late")
    desk.settle()
    assert (desk.done, desk.failures) == (1, [])
    if closes:
        assert desk.sizes == [BATCH_BYTES]


def test_cutting_lets_go_of_everything(desk):
    fill_one(desk, 0)
    desk.write(b"gathered")
    desk.recording.cut()
    desk.recording.cut()
    assert desk.done == 1
    desk.settle()
    assert (desk.sizes, desk.done) == ([BATCH_BYTES], 1)
