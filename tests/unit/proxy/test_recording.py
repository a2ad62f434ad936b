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
    Recording,
    ResponseLocation,
)
from tests.unit.engine.driver import COMMIT_TIMEOUT_S, COMMITTED, FAILED, UNKNOWN, Driver
from tests.unit.proxy.driver import parse

NAME = "_proxy/stream"
START = encode_start(1, 200, {})
END = encode_frame(COMPLETE, 1)


class RecordingDriver:
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
            ResponseLocation(NAME, 1, b"proxy-0", 0, number),
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
def driver():
    return RecordingDriver()


@pytest.mark.spec("proxy 5.2-7", "proxy 9.2-1")
def test_the_first_piece_goes_at_once_and_the_next_ones_together(driver):
    driver.write(b"a")
    driver.engine.commit()
    assert driver.sizes == [1]
    for _ in range(10):
        driver.write(b"bc")
    driver.wait(BATCH_S * 0.9)
    driver.engine.commit()
    assert driver.sizes == [1]
    driver.wait(BATCH_S * 0.11)
    driver.engine.commit()
    assert driver.sizes == [1, 20]
    # They were written just now, so the next one waits again, but not after silence.
    driver.write(b"d")
    driver.engine.commit()
    assert driver.sizes == [1, 20]
    driver.wait(BATCH_S)
    driver.write(b"e")
    driver.engine.commit()
    assert driver.sizes == [1, 20, 1]
    driver.wait(2 * BATCH_S)
    driver.write(b"f")
    driver.engine.commit()
    assert driver.sizes == [1, 20, 1, 1, 1]
    assert driver.body == driver.written


def test_a_steady_upstream_that_was_late_once_is_not_late_for_ever(driver):
    for late_s in (0.0, 0.02, 0.0, 0.0):
        # Each is sent BATCH_S after the one before, and `late_s` is the way here.
        driver.wait(late_s)
        driver.write(b"x")
        driver.engine.commit()
        assert driver.body == driver.written
        driver.wait(BATCH_S - late_s)


@pytest.mark.spec("proxy 5.2-7", "proxy 9.2-1")
def test_enough_for_a_frame_does_not_wait(driver):
    driver.write(b"a")
    driver.write(b"b" * (BATCH_BYTES - 1))
    driver.engine.commit()
    assert driver.sizes == [1]
    driver.write(b"c")
    driver.engine.commit()
    assert driver.sizes == [1, BATCH_BYTES]
    # The timer that was set for them is gone.
    driver.write(b"d")
    driver.wait(BATCH_S * 0.9)
    driver.engine.commit()
    assert driver.sizes == [1, BATCH_BYTES]
    driver.wait(BATCH_S)
    driver.engine.commit()
    assert driver.sizes == [1, BATCH_BYTES, 1]


def test_a_long_piece_becomes_several_frames(driver):
    driver.write(b"x" * (2 * FRAME_BYTES_MAX + 5))
    driver.engine.commit()
    assert driver.sizes == [FRAME_BYTES_MAX, FRAME_BYTES_MAX, 5]
    assert driver.body == driver.written


def test_the_end_takes_along_what_was_gathered(driver):
    driver.write(b"a")
    driver.write(b"b")
    driver.recording.end(END)
    driver.engine.commit()
    assert (driver.types, driver.body, driver.done) == ("SDDC", b"ab", 1)
    driver.recording.write(b"too late")
    driver.settle()
    assert (driver.types, driver.done) == ("SDDC", 1)


def test_an_empty_piece_is_no_frame(driver):
    driver.write(b"")
    driver.recording.end(END)
    driver.engine.commit()
    assert driver.types == "SC"


def test_the_window_bounds_what_is_not_durable(driver):
    async def fill():
        pieces = 0
        while not driver.recording.is_full:
            driver.write(b"x" * BATCH_BYTES)
            pieces += 1
        assert WINDOW_BYTES < pieces * (BATCH_BYTES + 9) <= WINDOW_BYTES + BATCH_BYTES + 9
        waiting = asyncio.create_task(driver.recording.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        driver.engine.commit()
        await asyncio.sleep(0)
        assert waiting.done()
        assert not driver.recording.is_full
        # Whoever waits is let go of if nothing more will be stored.
        while not driver.recording.is_full:
            driver.write(b"x" * BATCH_BYTES)
        waiting = asyncio.create_task(driver.recording.room())
        await asyncio.sleep(0)
        driver.recording.cut()
        await asyncio.sleep(0)
        assert waiting.done()

    asyncio.run(fill())


def fill_one(driver, number):
    driver.write(b"%d" % number * BATCH_BYTES)


@pytest.mark.parametrize("lost", range(4))
def test_what_was_not_stored_is_sent_again_in_order(driver, lost):
    """Any of four frames, each in a batch of its own, fails, and all behind it with it."""
    for number in range(4):
        fill_one(driver, number)
        driver.engine.clock.run()
        if number < lost:
            driver.engine.commit()
        elif number == lost:
            driver.engine.answer(FAILED)
    driver.settle()
    assert driver.sizes == [BATCH_BYTES] * 4
    assert driver.body == driver.written


def test_it_goes_on_after_many_failures(driver):
    for number in range(8):
        fill_one(driver, number)
        driver.wait(5)
        driver.engine.answer(FAILED if number % 4 else COMMITTED)
    driver.recording.end(END)
    driver.settle()
    assert (driver.body, driver.failures, driver.done) == (driver.written, [], 1)
    assert driver.types == "S" + "D" * 8 + "C"


@pytest.mark.parametrize("stored", [True, False])
def test_an_unknown_outcome_neither_loses_nor_repeats(driver, stored):
    fill_one(driver, 0)
    driver.engine.answer(UNKNOWN, stored=stored)
    # Refused meanwhile, and kept.
    fill_one(driver, 1)
    driver.wait(COMMIT_TIMEOUT_S)
    fill_one(driver, 2)
    driver.wait(3)
    driver.engine.answer(COMMITTED if stored else FAILED)
    driver.recording.end(END)
    driver.settle()
    assert (driver.types, driver.done) == ("SDDDC", 1)
    assert driver.body == driver.written


def test_a_batch_behind_an_unknown_one(driver):
    """It is told of a timeout as well, but is only stored later."""
    fill_one(driver, 0)
    driver.engine.clock.run()
    fill_one(driver, 1)
    driver.recording.end(END)
    driver.wait(COMMIT_TIMEOUT_S)
    driver.wait(1)
    assert driver.done == 0
    driver.settle()
    assert (driver.types, driver.body, driver.done) == ("SDDC", driver.written, 1)


def test_a_log_with_too_much_to_do(driver):
    driver.engine.shard.commits.pending_bytes_max = 10_000
    for number in range(8):
        fill_one(driver, number)
    driver.recording.end(END)
    driver.settle()
    assert (driver.types, driver.body, driver.done) == ("S" + "D" * 8 + "C", driver.written, 1)


def test_a_log_that_takes_nothing_for_long_ends_the_response(driver):
    fill_one(driver, 0)
    driver.engine.answer(UNKNOWN, stored=True)
    fill_one(driver, 1)
    driver.wait(PATIENCE_S + 10)
    assert driver.failures == ["unavailable"]
    fill_one(driver, 2)
    driver.engine.answer(COMMITTED)
    driver.settle()
    # What was stored stays, and nothing has a hole.
    assert (driver.types, driver.body, driver.done) == ("SDE", b"0" * BATCH_BYTES, 1)


def test_a_full_bucket():
    driver = RecordingDriver(bucket_bytes_max=1000)
    driver.write(b"kept")
    driver.write(b"x" * (3 * FRAME_BYTES_MAX))
    driver.settle()
    assert driver.failures == ["quota_exceeded"]
    assert (driver.types, driver.body, driver.done) == ("SDE", b"kept", 1)


@pytest.mark.parametrize("more", [5, FRAME_BYTES_MAX])
def test_no_end_without_what_is_before_it(more):
    """The refusal of the data waits for the log, and the end would have room."""
    driver = RecordingDriver(bucket_bytes_max=1000)
    driver.write(b"kept")
    driver.write(b"x" * (FRAME_BYTES_MAX + more))
    driver.recording.end(END)
    driver.settle()
    assert (driver.types, driver.body, driver.done) == ("SDE", b"kept", 1)
    assert driver.failures == ["quota_exceeded"]


def test_there_is_always_room_for_the_end():
    driver = RecordingDriver(bucket_bytes_max=len(START) + 9 + 50)
    driver.write(b"x" * 50)
    driver.engine.commit()
    driver.recording.end(END)
    driver.engine.commit()
    assert (driver.types, driver.body, driver.done, driver.failures) == ("SDC", b"x" * 50, 1, [])


def test_a_bucket_that_is_full_when_the_rest_is_written():
    driver = RecordingDriver(bucket_bytes_max=len(START) + 20)
    driver.write(b"x" * 11)
    driver.engine.commit()
    driver.write(b"gathered")
    driver.recording.end(END)
    driver.settle()
    assert (driver.types, driver.body, driver.done) == ("SDE", b"x" * 11, 1)
    assert driver.failures == ["quota_exceeded"]


def test_a_bucket_that_is_full_already():
    """The refusal comes at once, in the middle of a piece that takes several frames."""
    driver = RecordingDriver(bucket_bytes_max=1000)
    driver.write(b"x" * (3 * FRAME_BYTES_MAX))
    assert driver.failures == ["quota_exceeded"]
    driver.settle()
    assert (driver.types, driver.done) == ("SE", 1)


def test_a_bucket_that_is_more_than_full():
    """What is on its way is not counted until it is there, so that there may be too much."""
    driver = RecordingDriver(bucket_bytes_max=len(START) + 30)
    driver.write(b"x" * 20)
    driver.wait(BATCH_S)
    driver.write(b"y" * 20)
    driver.engine.commit()
    driver.wait(BATCH_S)
    driver.write(b"z")
    driver.settle()
    assert (driver.types, driver.body, driver.done) == ("SDDE", b"x" * 20 + b"y" * 20, 1)
    assert driver.failures == ["quota_exceeded"]


@pytest.mark.parametrize("closes", [True, False])
def test_a_stream_that_takes_nothing_more(driver, closes):
    fill_one(driver, 0)
    if closes:
        driver.engine.append(name=NAME, close=True)
    else:
        driver.engine.delete(NAME)
    fill_one(driver, 1)
    fill_one(driver, 2)
    driver.engine.commit()
    assert driver.done == 1
    driver.recording.write(b"too late")
    driver.settle()
    assert (driver.done, driver.failures) == (1, [])
    if closes:
        assert driver.sizes == [BATCH_BYTES]


def test_cutting_lets_go_of_everything(driver):
    fill_one(driver, 0)
    driver.write(b"gathered")
    driver.recording.cut()
    driver.recording.cut()
    assert driver.done == 1
    driver.settle()
    assert (driver.sizes, driver.done) == ([BATCH_BYTES], 1)
