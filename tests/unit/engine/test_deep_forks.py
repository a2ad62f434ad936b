"""Forks of forks: a read finds the owners of its bytes once, and asks for all of them at a time."""

import pytest

from holdfast.errors import StoreError
from holdfast.storage.pending import run
from tests.unit.engine.tiered import Tiered
from tests.unit.storage.ranges import HeldRanges

LEVELS = 50
CONTENT = b"".join(b"%d," % level for level in range(LEVELS + 1))


@pytest.fixture
def chain(tmp_path):
    """Forks of forks, each with a message of its own."""
    driver = Tiered(tmp_path)
    driver.create("b/0", body=b"0,")
    tail = 2
    for level in range(1, LEVELS + 1):
        own = b"%d," % level
        driver.fork(f"b/{level}", f"b/{level - 1}", tail, body=own)
        driver.commit()
        tail += len(own)
    yield driver
    driver.close()


def ask(driver, bytes_max=10_000):
    answers = []
    last = driver.shard.find(f"b/{LEVELS}")
    run(driver.shard.reader.read(last, 0, bytes_max), answers.append)
    return answers


def test_each_source_is_looked_up_once(chain, monkeypatch):
    looked_up, find = [], chain.state.find_number
    monkeypatch.setattr(
        chain.state, "find_number", lambda number: looked_up.append(number) or find(number)
    )
    assert ask(chain) == [(len(CONTENT), CONTENT)]
    assert len(looked_up) == LEVELS


@pytest.mark.parametrize("bytes_max", [10_000, len(CONTENT) - 1, 40])
def test_what_is_in_packs_is_asked_for_at_the_same_time(chain, bytes_max):
    chain.flush()
    chain.cold.blocks._ranges = held = HeldRanges(chain.store)
    answers = ask(chain, bytes_max)
    end = CONTENT.rindex(b",", 0, bytes_max) + 1
    asked = CONTENT[:end].count(b",")
    assert asked <= len(held.asked) <= asked + 1
    held.answer_all()
    assert answers == [(end, CONTENT[:end])]


def test_one_that_fails_fails_the_read(chain):
    chain.flush()
    chain.cold.blocks._ranges = held = HeldRanges(chain.store)
    answers, error = ask(chain), StoreError("no")
    held.answer(20, error)
    held.answer_all()
    assert answers == [error]
