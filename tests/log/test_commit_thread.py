"""The commit thread: jobs in order, second attempts later, and an end that loses nothing."""

import threading
from queue import SimpleQueue

import pytest

from holdfast.log.file import CommitThread

WAIT_S_MAX = 10
LONG_S = 3600.0


@pytest.fixture
def thread():
    thread = CommitThread()
    thread.start()
    yield thread
    thread.stop()


def test_jobs_run_in_order_in_a_thread_of_their_own(thread):
    ran = SimpleQueue()
    for number in range(100):
        thread.put(lambda number: ran.put((number, threading.current_thread().name)), number)
    found = [ran.get(timeout=WAIT_S_MAX) for _ in range(100)]
    assert found == [(number, "holdfast-commit") for number in range(100)]


def test_stopping_finishes_what_was_handed_over():
    thread, ran = CommitThread(), []
    for number in range(100):
        thread.put(ran.append, number)
    thread.start()
    thread.stop()
    assert ran == list(range(100))
    thread.stop()


def test_stopping_what_was_never_started_is_harmless():
    thread = CommitThread()
    thread.put(pytest.fail)
    thread.stop()


def test_second_attempt_comes_after_its_pause(thread):
    ran = SimpleQueue()
    thread.put(thread.later, 0.02, ran.put, "later")
    assert ran.get(timeout=WAIT_S_MAX) == "later"


def test_attempts_go_on(thread):
    ran, attempts = SimpleQueue(), iter(range(5))

    def attempt():
        if next(attempts) < 4:
            thread.later(0.001, attempt)
        else:
            ran.put("done")

    thread.put(attempt)
    assert ran.get(timeout=WAIT_S_MAX) == "done"


def test_other_jobs_are_run_meanwhile_and_end_the_pause(thread):
    ran = SimpleQueue()
    thread.put(thread.later, LONG_S, ran.put, "later")
    thread.put(ran.put, "meanwhile")
    assert [ran.get(timeout=WAIT_S_MAX) for _ in range(2)] == ["meanwhile", "later"]


def test_stopping_ends_the_pause_and_runs_what_was_put_off_once():
    thread, ran = CommitThread(), []

    def attempt():
        ran.append("attempt")
        thread.later(LONG_S, attempt)

    thread.start()
    thread.put(attempt)
    thread.stop()
    assert ran == ["attempt", "attempt"]
