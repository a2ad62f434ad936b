"""Turns: how much is done in one round of the event loop, and clients that do not read."""

import asyncio
import logging

import pytest

from holdfast.http.turns import PATIENCE_S, ROUND_S, Turns, Unsent
from holdfast.testing import FakeClock

BUDGET = 1000
TURN_S = ROUND_S / 3


class BusyClock(FakeClock):
    """A clock by which everything that looks at it takes a while."""

    busy_s = 0.0

    def monotonic_s(self):
        self.busy_s += TURN_S
        return super().monotonic_s() + self.busy_s


class Stalled:
    """A client that does not read."""

    aborted = False

    def abort(self):
        self.aborted = True


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def unsent(clock):
    return Unsent(clock, BUDGET)


@pytest.fixture
def turns(clock, unsent):
    return Turns(clock, unsent)


def watched_rounds(clock, done, rounds=50):
    """Have a mark appended to `done` in every round."""

    def mark():
        done.append("|")
        if done.count("|") < rounds:
            clock.call_soon(mark)

    clock.call_soon(mark)


def test_a_round_ends_after_some_time():
    clock = BusyClock()
    turns = Turns(clock, Unsent(clock, BUDGET))
    done = []
    for number in range(10):
        turns.add(lambda number=number: done.append(str(number)))
    watched_rounds(clock, done)
    clock.run()
    assert "".join(done).strip("|") == "012|345|678|9"


def test_who_comes_again_waits_for_all_others(turns, clock):
    done = []

    def again(name, left):
        done.append(name)
        if left:
            turns.add(lambda: again(name, left - 1))

    for name in "abc":
        turns.add(lambda name=name: again(name, 2))
    clock.run()
    assert "".join(done) == "abcabcabc"


def test_a_turn_that_fails_does_not_stop_the_others(turns, clock, caplog):
    done = []
    turns.add(lambda: 1 / 0)
    turns.add(lambda: done.append(1))
    clock.run()
    assert done == [1]
    assert "could not be continued" in caplog.text


def test_tasks_take_turns_as_well(turns, clock):
    done = []

    async def work(name):
        for _ in range(10):
            await turns.next()
            done.append(name)

    async def run():
        tasks = [asyncio.create_task(work(name)) for name in "ab"]
        longest, before = 0, 0
        while not all(task.done() for task in tasks):
            clock.run()
            await asyncio.sleep(0)
            longest, before = max(longest, len(done) - before), len(done)
        return longest

    assert asyncio.run(run()) < 20, "all of it in one round"
    assert "".join(done) == "ab" * 10


def test_nobody_gets_a_turn_while_the_budget_is_used_up(turns, clock, unsent):
    done, slow = [], Stalled()
    unsent.add(slow, BUDGET + 1)
    turns.add(lambda: done.append(1))
    clock.run()
    assert done == []
    unsent.remove(slow)
    clock.run()
    assert done == [1]


def test_who_has_not_read_for_longest_is_disconnected(clock, unsent, caplog):
    caplog.set_level(logging.WARNING)
    clients = [Stalled() for _ in range(8)]
    for client in clients:
        unsent.add(client, BUDGET // 8)
        clock.advance(0.25)
    # One of them has read meanwhile.
    unsent.remove(clients[1])
    unsent.add(clients[1], BUDGET // 8)
    clock.advance(PATIENCE_S)
    assert not any(client.aborted for client in clients), "there was room for all"
    unsent.add(Stalled(), BUDGET // 8)
    assert unsent.is_full
    clock.advance(1)
    assert [clients.index(each) for each in clients if each.aborted] == [0, 2, 3, 4, 5]
    assert unsent.size_bytes <= BUDGET // 2
    assert unsent.disconnects == 5
    assert "disconnected 5 clients that did not read" in caplog.text


def test_a_client_has_some_time_to_read(clock, unsent):
    client = Stalled()
    unsent.add(client, BUDGET + 1)
    clock.advance(PATIENCE_S - 0.1)
    assert not client.aborted
    clock.advance(1)
    assert client.aborted
    assert unsent.size_bytes == 0


def test_what_is_gone_counts_no_more(clock, unsent):
    client = Stalled()
    unsent.add(client, 10)
    unsent.add(client, 30)
    assert unsent.size_bytes == 30
    unsent.remove(client)
    unsent.remove(client)
    assert unsent.size_bytes == 0
