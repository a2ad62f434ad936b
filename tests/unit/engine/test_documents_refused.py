"""Documents while the log takes nothing: whoever asks knows at once, and nothing was begun."""

import pytest

from holdfast.errors import OverloadedError, UnavailableError
from tests.unit.engine.driver import COMMIT_TIMEOUT_S, COMMITTED, Driver


@pytest.fixture
def driver():
    driver = Driver(pending_bytes_max=10)
    driver.committed(driver.create())
    driver.committed(driver.documents(a=b"1"))
    return driver


def overload(driver):
    driver.append(b"x" * 100)


def stall(driver):
    driver.append(b"x")
    driver.clock.advance(COMMIT_TIMEOUT_S + 1)


@pytest.mark.parametrize(
    ("trouble", "error"), [(overload, OverloadedError), (stall, UnavailableError)]
)
def test_it_raises_and_answers_nobody(driver, trouble, error):
    trouble(driver)
    position, replies = driver.shard.commits.last_position, []
    with pytest.raises(error):
        driver.shard.documents.commit({"a": b"2"}, lambda *reply: replies.append(reply), None)
    assert driver.shard.commits.last_position == position
    driver.clock.run()
    driver.log.answer(COMMITTED)
    driver.commit()
    assert replies == []
    assert driver.shard.state.documents == {"a": b"1"}
    # It is taken again once the log has answered.
    driver.committed(driver.documents(a=b"3"))
    assert driver.restart().shard.state.documents == {"a": b"3"}
