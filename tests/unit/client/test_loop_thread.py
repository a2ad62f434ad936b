"""A loop in a thread: calls from other threads, what passes through them, and what ends them."""

import asyncio
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.client.loop_thread import BlockingIterator, LoopThread
from holdfast.errors import InvalidRequestError, StreamNotFoundError

DEADLINE_S = 20


@pytest.fixture
def thread():
    thread = LoopThread()
    yield thread
    thread.stop()


async def value(given):
    await asyncio.sleep(0)
    return given


def test_results_come_back(thread):
    assert thread.call(value(5)) == 5


def test_everything_runs_in_one_thread_and_loop(thread):
    async def where():
        return threading.get_ident(), id(asyncio.get_running_loop())

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: thread.call(where()), range(100)))
    assert len(found) == 1
    assert threading.get_ident() not in {ident for ident, _ in found}


def test_calls_of_several_threads_are_under_way_together(thread):
    async def meet():
        nonlocal arrived
        arrived += 1
        if arrived == 4:
            together.set()
        await together.wait()
        return arrived

    async def new_event():
        return asyncio.Event()

    arrived, together = 0, thread.call(new_event())
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: thread.call(meet()), range(4))) == [4] * 4


@pytest.mark.parametrize("error", [StreamNotFoundError("b/s"), KeyError("x"), OSError(5, "x")])
def test_errors_pass_through(thread, error):
    async def fail():
        await asyncio.sleep(0)
        raise error

    with pytest.raises(type(error)) as caught:
        thread.call(fail())
    assert caught.value is error
    assert thread.call(value(1)) == 1


def test_iterators_pass_through(thread):
    async def numbers():
        for number in range(3):
            yield await value(number)

    assert list(BlockingIterator(thread, numbers())) == [0, 1, 2]


def test_errors_of_iterators_pass_through(thread):
    async def numbers():
        yield 1
        raise InvalidRequestError("No more.")

    items = BlockingIterator(thread, numbers())
    assert next(items) == 1
    with pytest.raises(InvalidRequestError, match="No more"):
        next(items)
    with pytest.raises(StopIteration):
        next(items)


def test_iterator_that_is_closed_ends_where_it_was(thread):
    ended = threading.Event()

    async def numbers():
        try:
            for number in range(10):
                yield number
        finally:
            await asyncio.sleep(0)
            ended.set()

    items = BlockingIterator(thread, numbers())
    assert next(items) == 0
    items.close()
    assert ended.is_set()
    with pytest.raises(StopIteration):
        next(items)


def test_iterator_that_cannot_be_closed_need_not_be(thread):
    class Numbers:
        def __aiter__(self):
            return self

        async def __anext__(self):
            return 1

    items = BlockingIterator(thread, Numbers())
    assert next(items) == 1
    items.close()


@pytest.fixture
def interruptible():
    """Ctrl-C as it is outside of tests: those of pytest's workers ignore it."""
    assert threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_main_thread():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@pytest.mark.usefixtures("interruptible")
def test_interrupted_call_is_taken_back(thread):
    cancelled = threading.Event()

    async def wait_for_ever():
        try:
            interrupt_main_thread()
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    with pytest.raises(KeyboardInterrupt):
        thread.call(wait_for_ever())
    assert cancelled.wait(DEADLINE_S)
    # The thread goes on all the same.
    assert thread.call(value(7)) == 7


@pytest.mark.usefixtures("interruptible")
def test_interrupted_iterator_can_be_closed(thread):
    ended = threading.Event()

    async def numbers():
        try:
            yield 1
            interrupt_main_thread()
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    items = BlockingIterator(thread, numbers())
    assert next(items) == 1
    with pytest.raises(KeyboardInterrupt):
        next(items)
    items.close()
    assert ended.wait(DEADLINE_S)


def test_call_from_its_own_thread_is_refused_instead_of_waiting_for_itself(thread):
    async def call_back():
        return thread.call(value(1))

    with pytest.raises(RuntimeError, match="must not wait for the client itself"):
        thread.call(call_back())


class TestStop:
    def test_may_be_repeated(self):
        thread = LoopThread()
        assert thread.is_alive
        thread.stop()
        thread.stop()
        assert not thread.is_alive

    def test_calls_behind_it_are_refused(self):
        thread = LoopThread()
        thread.stop()
        # Nor is there a warning about a coroutine that was never awaited.
        with pytest.raises(RuntimeError, match="The client is closed"):
            thread.call(value(1))

    def test_whoever_waits_learns_of_it(self):
        thread, waiting = LoopThread(), threading.Event()

        async def wait_for_ever():
            waiting.set()
            await asyncio.get_running_loop().create_future()

        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(thread.call, wait_for_ever())
            assert waiting.wait(DEADLINE_S)
            thread.stop()
            with pytest.raises(RuntimeError, match="The client is closed"):
                call.result(DEADLINE_S)

    def test_calls_that_come_at_the_same_time_are_answered_or_refused(self):
        def call_on_and_on(thread):
            while True:
                thread.call(asyncio.sleep(0.0005))

        with ThreadPoolExecutor(4) as pool:
            for _ in range(100):
                thread = LoopThread()
                calling = [pool.submit(call_on_and_on, thread) for _ in range(4)]
                thread.call(asyncio.sleep(0.001))
                thread.stop()
                for each in calling:
                    assert isinstance(each.exception(DEADLINE_S), RuntimeError)

    def test_what_was_left_open_is_closed(self):
        thread, ended = LoopThread(), threading.Event()

        async def numbers():
            try:
                yield 1
            finally:
                ended.set()

        items = BlockingIterator(thread, numbers())
        assert next(items) == 1
        thread.stop()
        assert ended.is_set()
